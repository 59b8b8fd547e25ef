"""Write the pages of the task catalog and their pictures, from the tasks themselves and from the measured success.

Usage: MUJOCO_GL=egl python -m benchmarks.artifacts.task_catalog [--no-pictures]
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from benchmarks import RESULTS, ROOT
from benchmarks.harness.environments import CPU, episodes
from benchmarks.harness.measure import run
from isaaclab_arena.environments.arena.builder import TableTask
from isaaclab_arena.environments.arena.environment import TableEnvironment
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.variations.catalogue import word_distance
from isaaclab_arena.environments.variations.overrides import AXES, EDGE_LEVEL, Axis, enabled_variations
from isaaclab_arena.environments.variations.senses import offered_variations
from isaaclab_arena.interfaces.environment_builder import Variation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena.sim.backends import MujocoBackend

LEVELS = range(1, EDGE_LEVEL + 1)


def level_table(catalogue: Sequence[Variation]) -> Iterator[str]:
    """Yield the lines of a table of the effects of every axis of a task at every level."""
    yield f"| axis | what changes | {' | '.join(f'level {level}' for level in LEVELS)} |"
    yield f"| --- | --- |{' --- |' * len(LEVELS)}"
    for axis in AXES.values():
        lines: dict[str, list[str]] = {}
        for variation in axis.variations(catalogue):
            values = " | ".join(level_value(axis, catalogue, level, variation.key) for level in LEVELS)
            lines.setdefault(values, []).append(f"`{variation.key}`")
        for values, keys in lines.items():
            yield f"| `{axis.name}` | {', '.join(keys)} | {values} |"


def paraphrase_table(instruction: str, paraphrases: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a table of the instructions at each level of `language`, and their word distance."""
    if not paraphrases:
        return
    yield "| told | words that differ |"
    yield "| --- | --: |"
    for words in (instruction, *paraphrases):
        yield f"| {words} | {100 * word_distance(instruction, words):.0f} % |"


def level_value(axis: Axis, catalogue: Sequence[Variation], level: int, key: str) -> str:
    """Return a variation's range at a level, with its unit: ``± 0.04 m``, ``0.88 to 1.12``, ``5 pixels``."""
    on = enabled_variations(catalogue, axis.settings(catalogue, level))
    (variation,) = (each for each in on if each.key == key)
    low, high, middle = variation.sampler.low, variation.sampler.high, variation.nominal
    unit = f" {variation.unit}" if variation.unit else ""
    if low == high:
        return f"{_shown(high)}{unit}"
    reach = [round(end - start, 6) for end, start in zip(high, middle, strict=True)]
    if reach == [round(start - end, 6) for end, start in zip(low, middle, strict=True)]:
        about = "" if not any(middle) else f"{_shown(middle)} "
        return f"{about}± {_shown(reach)}{unit}"
    return f"{_shown(low)} to {_shown(high)}{unit}"


def _shown(values: Sequence[float]) -> str:
    """Return numbers in few digits, a single one if all are the same."""
    if len({*values}) == 1:
        return f"{values[0]:g}"
    return f"({', '.join(f'{value:.3g}' for value in values)})"


DOCS = ROOT / "docs"
LIST = DOCS / "reference" / "task_catalog.md"
PAGES = DOCS / "reference" / "task_catalog"
PICTURES = DOCS / "images" / "tasks"
SHEETS = ("scene", "pictures")
"""Contact sheets of change, which `benchmarks.artifacts.robustness_pictures` makes."""
MEASURED = RESULTS / "scripted_success.md"
# Moment of the picture as a share of the episode, unless it is the default.
MOMENTS = {
    "push_to_goal": 0.12,
    "push_cube": 0.5,
    "stack": 0.95,
    "pick_by_colour": 0.9,
    "lift_object": 0.9,
    "sort_two": 0.7,
}
SIZE = (480, 360)
OVERVIEW_TILE = (300, 225)
OVERVIEW_COLUMNS = 4
CAPTION_HEIGHT = 22  # pixels
OVERVIEW_ORDER = (
    *("reach", "lift_object", "pick_and_place", "push_to_goal", "push_cube", "stack", "open_drawer", "close_drawer"),
    *("open_microwave", "press_button", "pick_by_colour", "sort_two"),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the program."""

    pictures: bool = True  # Take new pictures, which needs OpenGL (MUJOCO_GL=egl without a display).


def tasks() -> dict[str, TableTask]:
    """Return the builders of all tasks on the table, by name."""
    builders = {name: ENVIRONMENTS.get(name) for name in ENVIRONMENTS.names()}
    return {name: builder for name, builder in builders.items() if isinstance(builder, TableTask)}


def pages() -> dict[Path, str]:
    """Return every page: the list of tasks, and a page for each."""
    builders = tasks()
    measured = measurements(MEASURED.read_text(encoding="utf-8"))
    written = {PAGES / f"{name}.md": "\n".join(page(name, builder, measured)) for name, builder in builders.items()}
    return {LIST: "\n".join(list_of_tasks(builders)), **written}


def list_of_tasks(builders: dict[str, TableTask]) -> Iterator[str]:
    """Yield the lines of the page that leads to all others."""
    introduction = """
        # The tasks

        Every task runs with joint positions or end-effector deltas (`action_mode`), at 20 control steps per second.
        Where things start is drawn per episode; the same seed gives the same starts to every policy. The numbers on the
        pages are successes of the `scripted` policy, and of `zero_action` as a check that doing nothing solves nothing,
        with 95 % Wilson intervals: [scripted_success.md](../../benchmarks/results/scripted_success.md).
        `isaaclab-arena list environments NAME` shows the same in a terminal; [tasks.md](../how_to/tasks.md) shows how
        to write a task.

        These pages are written by `MUJOCO_GL=egl python -m benchmarks.artifacts.task_catalog`.

        ![All tasks](../images/tasks.jpg)

        | task | what the policy is told | robots |
        | --- | --- | --- |
    """
    yield textwrap.dedent(introduction).strip()
    for name, builder in builders.items():
        summary = builder.summary()
        yield f"| [{name}](task_catalog/{name}.md) | {summary.instruction} | {', '.join(summary.embodiments)} |"
    yield ""


def page(name: str, builder: TableTask, measured: dict[str, list[str]]) -> Iterator[str]:
    """Yield the lines of the page about one task."""
    summary = builder.summary()
    environment = builder.build(builder.config_class(), num_envs=1, device=CPU, num_threads=1)
    specs = environment.observation_spec["policy"]
    assert not isinstance(specs, ArraySpec)
    yield from (f"# {name}", "", f"![{name}](../../images/tasks/{name}.jpg)", "")
    yield from (f"> {summary.instruction}", "", *textwrap.wrap(summary.success, 118), "")
    yield "| | |"
    yield "| --- | --- |"
    yield f"| time limit | {summary.episode_s:g} s, {summary.episode_length} control steps |"
    yield f"| robots | {', '.join(summary.embodiments)} |"
    if summary.objects:
        yield f"| objects | {', '.join(summary.objects)} |"
    yield f"| drawn per episode | {', '.join(f'`{name}`' for name in drawn(environment))} |"
    yield f"| observed besides the robot | {', '.join(f'`{name}`' for name in environment.task.observation_terms())} |"
    numbers = sum(spec.shape[0] for spec in specs.values() if isinstance(spec, ArraySpec))
    yield f"| numbers in observation and action | {numbers} and {environment.action_spec.shape[0]} |"
    if environment.metrics:
        better = {metric.name: metric.better and f", {metric.better} is better" for metric in environment.metrics}
        told = (f"`{name}`{which or ''}" for name, which in better.items())
        yield f"| [metrics](../results.md#metrics) | {'; '.join(told)} |"
    yield from measured.get(name, [])
    yield from ("", *changes(name, builder, environment))
    yield from ("", "[All tasks](../task_catalog.md)", "")


def changes(name: str, builder: TableTask, environment: TableEnvironment) -> Iterator[str]:
    """Yield the lines about changes of an episode, axis by axis and level by level."""
    introduction = """
        ## Levels of change

        What [robustness](../../how_to/robustness.md) draws from at each level, with the default object and cameras.
        At level 5 the `scripted` policy still solves 90 %, with [one exception](../../how_to/robustness.md#levels).
    """
    yield textwrap.dedent(introduction).strip()
    yield from ("", *level_table(offered_variations(builder, builder.config_class())))
    conditions = environment.draw_conditions(episodes(1)[0].conditions_generator())
    words = environment.instruction(conditions)
    yield from (
        "",
        "What `language` tells at levels 0 to 5, and the share of words that differ from the task's own:",
        "",
    )
    yield from paraphrase_table(words, environment.task.paraphrases_for(conditions))
    shown = """
        Levels 0 to 5 of one episode, as the head camera sees it, of each axis the episode that it moves farthest. Mass,
        friction, noise of actions and sensors, delay and language show in no still picture.
    """
    yield from ("", textwrap.dedent(shown).strip())
    for sheet in SHEETS:
        yield from ("", f"![Levels of change, {sheet}](../../images/robustness/{name}_{sheet}.jpg)")


def drawn(environment: TableEnvironment) -> list[str]:
    """Return the names of the initial conditions of an episode."""
    return list(environment.draw_conditions(episodes(1)[0].conditions_generator()))


def measurements(text: str) -> dict[str, list[str]]:
    """Return, by task, the lines of its table that hold its measured success."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) < 5 or cells[1] not in ("scripted", "zero_action"):
            continue
        task, _, variant = cells[0].partition(" ")
        label = " ".join((cells[1], *([variant.strip("()")] if variant else []), *(["ee_delta"] * ("ee" in cells[2]))))
        found.setdefault(task, []).append(f"| {label} | {cells[3]}, {cells[4]} |")
    return found


def scripted_episode(builder: TableTask) -> tuple[TableEnvironment, list[np.ndarray]]:
    """Return a task's environment, and the state after each step of the scripted policy's first episode."""
    environment = builder.build(builder.config_class(), num_envs=1, device=CPU, num_threads=1)
    (episode,) = episodes(1)
    conditions = environment.draw_conditions(episode.conditions_generator())
    observation = environment.reset(torch.tensor([0]), [conditions])
    words = environment.instruction(conditions)
    policy = ScriptedPolicy()
    start = EpisodeStart(env_id=0, episode=episode, conditions=conditions, language_instruction=words)
    policy.start_episodes(environment, [start])
    states = []
    while True:
        step = environment.step(policy.get_action(environment, observation))
        observation = step.observation
        states.append(environment.backend.integration_states([0])[0])
        if bool(step.terminated | step.truncated):
            return environment, states


def render(environment: TableEnvironment, state: np.ndarray, size: tuple[int, int]) -> Image.Image:
    """Return the scene in a state, as seen from beside it."""
    environment.backend.set_integration_state(0, state)
    assert isinstance(environment.backend, MujocoBackend)
    model, data = environment.backend.visible_world(0)
    width, height = size
    with mujoco.Renderer(model, height, width) as renderer:
        renderer.update_scene(data, camera="viewport")
        return Image.fromarray(renderer.render())


def captioned(picture: Image.Image, words: str) -> Image.Image:
    """Return a picture with words in its lower left corner, on a band that keeps them readable."""
    band = Image.new("RGBA", (picture.width, CAPTION_HEIGHT), (255, 255, 255, 200))
    ImageDraw.Draw(band).text((6, 3), words, fill=(20, 20, 25, 255), font=ImageFont.load_default(13))
    whole = picture.convert("RGBA")
    whole.alpha_composite(band, (0, picture.height - CAPTION_HEIGHT))
    return whole.convert("RGB")


def take_picture(name: str, builder: TableTask, path: Path) -> None:
    """Render a moment of the scripted policy's first episode."""
    environment, states = scripted_episode(builder)
    moment = int(MOMENTS.get(name, 0.6) * (len(states) - 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    render(environment, states[moment], SIZE).save(path, quality=88)


def take_overview(names: Sequence[str], path: Path) -> None:
    """Put the pictures of all tasks side by side, each with its name."""
    width, height = OVERVIEW_TILE
    lines = -(-len(names) // OVERVIEW_COLUMNS)
    sheet = Image.new("RGB", (OVERVIEW_COLUMNS * (width + 6) - 6, lines * (height + 6) - 6), "white")
    for index, name in enumerate(names):
        with Image.open(PICTURES / f"{name}.jpg") as opened:
            tile = captioned(opened.convert("RGB").resize(OVERVIEW_TILE, Image.Resampling.LANCZOS), name)
        line, column = divmod(index, OVERVIEW_COLUMNS)
        sheet.paste(tile, (column * (width + 6), line * (height + 6)))
    sheet.save(path, quality=82)


def main(options: Options) -> None:
    """Write the pages, and the pictures."""
    if options.pictures:
        for name, builder in tasks().items():
            take_picture(name, builder, PICTURES / f"{name}.jpg")
        take_overview(OVERVIEW_ORDER, DOCS / "images" / "tasks.jpg")
    PAGES.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    run(main, Options)

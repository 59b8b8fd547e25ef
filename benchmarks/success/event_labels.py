"""Count the agreement of recorded events with labels that a person gives to failed episodes without seeing the events.

First ``--do sheets`` draws the failures of a round, on two numbered pages each, and writes their events to a file
beside the pages. A person writes ``<number> <event>`` lines, or ``<number> none``, from the pages and from
docs/reference/events.md, and ``--do label`` takes them into benchmarks/results/event_labels.csv, which is then
committed. Only after that, ``--do join`` fills in the events, and ``--do page`` counts.
"""

import csv
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageDraw

from benchmarks import RESULTS
from benchmarks.harness.environments import build, make_policy, success_rate
from benchmarks.harness.measure import Page, PageOptions, markdown_table, run
from isaaclab_arena.distributed.devices import default_num_threads
from isaaclab_arena.environments.arena.environment import TableEnvironment
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.variations.overrides import AXES
from isaaclab_arena.environments.variations.senses import offered_variations
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import EVENTS, Episode, EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.specs import VIEWPORT
from isaaclab_arena.sim.backend import VisibleWorld

NUM_MOMENTS = 40
_MOMENTS_PER_SHEET = 20
_COLUMNS = 5
_SIZE = (304, 190)
_LINE_PX = 14


@dataclass(frozen=True, kw_only=True)
class Views:
    """Viewpoints of a person: of the whole table, and of the tool centre point from beside it, in world axes [m]."""

    table_from: tuple[float, float, float]
    table_at: tuple[float, float, float]
    hand_from: tuple[float, float, float]


LOOSE = Views(table_from=(1.05, -0.70, 0.72), table_at=(0.47, 0.03, 0.03), hand_from=(0.27, -0.27, 0.16))
FURNITURE = Views(table_from=(0.10, -0.65, 0.75), table_at=(0.58, 0.02, 0.16), hand_from=(-0.26, -0.30, 0.20))
"""Cabinets and ovens open towards the robot, and hide the hand from the other side."""
_FURNISHED = frozenset({"open_drawer", "close_drawer", "open_microwave"})


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source of failures."""

    environment: str  # Name of the environment.
    policy: str  # Name or class path of the policy.
    called: str  # Name of the policy in the labels.
    policy_options: Mapping[str, Any] = field(default_factory=dict)  # Its options.
    options: Mapping[str, Any] = field(default_factory=dict)  # Options of the environment.
    axes: Mapping[str, int] = field(default_factory=dict)  # Axes of change that are on, each at its level.
    instruction: str | None = None  # Instruction instead of the task's own.
    tried: int  # Episodes that are run.
    wanted: int  # Largest number of failures to take, the first ones.
    num_envs: int = 8  # Number of env slots.

    @property
    def changes(self) -> str:
        """Changes, in words."""
        return " and ".join(f"{name} level {level}" for name, level in self.axes.items())


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A failed episode, with the views of a person and its events."""

    source: Source  # Its source.
    record: EpisodeRecord  # The episode, with its events.
    steps: Sequence[int]  # Control steps of its pictures, 0 for the start.
    worlds: Sequence[VisibleWorld]  # Worlds of these steps.
    hands_m: Sequence[np.ndarray]  # Tool centre point in these steps [m]. Shape of each: (3,).
    draws: "_Painter"  # Draws a world from a camera of its own.

    def sheets(self, title: str) -> list[Image.Image]:
        """Return its pictures in order: lines of the whole table, each above a line from beside the hand."""
        moments = list(zip(self.steps, self.worlds, self.hands_m, strict=True))
        return [
            self._sheet(title, moments[first : first + _MOMENTS_PER_SHEET])
            for first in range(0, len(moments), _MOMENTS_PER_SHEET)
        ]

    def _sheet(self, title: str, moments: Sequence[tuple[int, VisibleWorld, np.ndarray]]) -> Image.Image:
        views, (width, height) = FURNITURE if self.source.environment in _FURNISHED else LOOSE, _SIZE
        lines = -(-len(moments) // _COLUMNS)
        sheet = Image.new("RGB", (_COLUMNS * width, lines * 2 * height + _LINE_PX), "white")
        pen = ImageDraw.Draw(sheet)
        pen.text((2, 1), title, fill="black")
        for number, (step, world, hand) in enumerate(moments):
            left, top = number % _COLUMNS * width, number // _COLUMNS * 2 * height + _LINE_PX
            sheet.paste(self.draws.picture(world, np.array(views.table_from), np.array(views.table_at)), (left, top))
            sheet.paste(self.draws.picture(world, hand + views.hand_from, hand), (left, top + height))
            pen.text((left + 3, top + 2), f"{step * 0.05:.1f} s", fill="white")
        return sheet


class _Painter:
    """Draws worlds from any viewpoint, with the lens of the viewport's camera."""

    def __init__(self, environment: TableEnvironment) -> None:
        from isaaclab_arena.sim.warp_cameras import Camera, RayTracer  # noqa: PLC0415  Warp loads for seconds

        model = environment.backend.model
        self._index = model.camera(VIEWPORT).id
        self._tracer = RayTracer(model, [Camera(name=VIEWPORT, width=_SIZE[0], height=_SIZE[1])])

    def picture(self, world: VisibleWorld, position: np.ndarray, target: np.ndarray) -> Image.Image:
        """Return a picture of a world from a position towards a target [m]."""
        back = (position - target) / np.linalg.norm(position - target)
        right = np.cross((0.0, 0.0, 1.0), back)
        right /= np.linalg.norm(right)
        axes = np.stack((right, np.cross(back, right), back), axis=1)
        poses = {name: value.copy() for name, value in world.poses.items()}
        poses["cam_xpos"][self._index] = position
        poses["cam_xmat"][self._index] = axes.reshape(poses["cam_xmat"][self._index].shape)
        return Image.fromarray(self._tracer.render(replace(world, poses=poses))[VIEWPORT])


class _Watcher(Observer):
    """Copies the visible world in every control step, and keeps some of the moments of failed episodes."""

    sees_pictures = False

    def __init__(self, source: Source, painter: _Painter) -> None:
        self._source, self._painter = source, painter
        self._seen: dict[int, list[tuple[VisibleWorld, np.ndarray]]] = {}
        self.failures: list[Failure] = []

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Begin to watch."""
        del observation
        for start in starts:
            self._seen[start.env_id] = []
            self._look(environment, start.env_id)

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Look once more."""
        for env_id in torch.nonzero(transition.running).flatten().tolist():
            self._look(environment, env_id)

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Keep a few moments of a failure, and forget a success."""
        del environment
        seen = self._seen.pop(record.env_id)
        if record.success is False and record.events is not None:
            steps = np.linspace(0, len(seen) - 1, min(NUM_MOMENTS, len(seen))).round().astype(int).tolist()
            kept = [seen[step] for step in steps]
            self.failures.append(
                Failure(
                    source=self._source,
                    record=record,
                    steps=steps,
                    worlds=[world for world, _ in kept],
                    hands_m=[hand for _, hand in kept],
                    draws=self._painter,
                )
            )

    def _look(self, environment: Any, env_id: int) -> None:
        world = VisibleWorld.of(*environment.backend.visible_world(env_id))
        hand = environment.backend.site_position(environment.robot.tcp_site)[env_id].double().numpy().copy()
        self._seen[env_id].append((world, hand))


def failures_of(source: Source, seed: int) -> list[Failure]:
    """Run the episodes of a source, and return its first failures, by episode."""
    builder = ENVIRONMENTS.get(source.environment)
    catalogue = offered_variations(builder, builder.config_class(**source.options))
    settings = {
        key: value
        for name, level in source.axes.items()
        for key, value in AXES[name].settings(catalogue, level).items()
    }
    threads = {"num_threads": default_num_threads()}
    environment = build(source.environment, source.num_envs, settings=settings, **threads, **source.options)
    watcher = _Watcher(source, _Painter(environment))
    policy = make_policy(source.policy, source.policy_options)
    episodes = [Episode(job=source.environment, episode_index=index, seed=seed) for index in range(source.tried)]
    rollout(environment, policy, episodes, [watcher], language_instruction=source.instruction)
    policy.close()
    return sorted(watcher.failures, key=lambda failure: failure.record.episode.episode_index)[: source.wanted]


LABELS = RESULTS / "event_labels.csv"
LABELLED_BY = "a vision-language model, from sheets of forty moments in two views"
NOT_SHOWN = "not shown yet"
KEY_COLUMNS: tuple[str, ...] = ("round", "environment", "model", "variations", "seed", "episode_index")
COLUMNS: tuple[str, ...] = (*KEY_COLUMNS, "label", "decisive_event", "labelled_by")
RULES_OF_TODAY = 7
"""First round with events by the rules of today for the GR00T models."""
RULES_OF_PUSHES = 9
"""First round with events by the rules of today for all others."""

HAPPENED = {
    1: "ten pictures of the whole scene each",
    2: "the same, after rules for failed grasps were mended",
    3: "twelve moments in two views, after the decisive event was defined by what is seen at the end",
    4: "after handles, short touches and second attempts were mended",
    5: "after that, as round 4",
    6: "after that, as round 4",
    7: "twenty moments in two views, the models only, after rounds 4 to 6",
    8: "forty moments in two views, the models only, after no change of a rule",
    9: "as round 8, the trained policies only, after what counts as reached and pushed away was changed for them",
}
NOTES = """\
Failures were labelled from pages of pictures before the recorded events were read; the labels were committed first.
No seed was used twice, and no rule was changed between labels and count. Rounds 1 to 6 were labelled by one of the
authors. Rounds 7 to 9 were labelled by a vision-language model that was given the pages and the meanings of the events,
and nothing else; no panel of people was asked. Their failures are those of the models of this repository, most of them
under changes that are hard on them. After round 6 "came to the thing" was widened from 5 to 8 cm, for the hands that
were seen at the thing and the rule did not; after round 8 two rules were changed that no GR00T model's tasks have: how
far a cube was pushed away counts from where it stood at first, on whichever side it lies, and a target is come to
within 8 cm. So the rules of today are those of the GR00T models' rounds 7 and 8, and of round 9."""
_TOLD_FILE = "told.json"

_CLOSEDLOOP = {
    "policy_config_yaml_path": "isaaclab_arena_gr00t/policy/config/panda_closedloop.yaml",
    "model_path": "models/panda_tabletop",
}
_SEEING = {"embodiment": "panda", "camera_size": 64, "enable_cameras": True}


def _gr00t(environment: str, tried: int, wanted: int, *, model: str = "panda_tabletop", **more: Any) -> Source:
    policy_options = {**_CLOSEDLOOP, "model_path": f"models/{model}"}
    policy = {"policy": "gr00t_closedloop", "called": model, **more}
    return Source(
        environment=environment, policy_options=policy_options, options=_SEEING, tried=tried, wanted=wanted, **policy
    )


def _by_colour(tried: int, wanted: int, **more: Any) -> Source:
    return _gr00t("pick_by_colour", tried, wanted, model="panda_pick_by_colour", **more)


def _trained(environment: str, tried: int, wanted: int, **more: Any) -> Source:
    return Source(
        environment=environment,
        policy="rsl_rl",
        called=environment,
        policy_options={"checkpoint_path": f"models/{environment}"},
        tried=tried,
        wanted=wanted,
        **more,
    )


def _plain(environment: str, policy: str, tried: int, wanted: int, **axes: int) -> Source:
    return Source(environment=environment, policy=policy, called=policy, tried=tried, wanted=wanted, axes=axes)


EE_DELTA = {"action_mode": "ee_delta"}


@dataclass(frozen=True, kw_only=True)
class Round:
    """Failures that are labelled together."""

    seed: int  # Seed of their episodes, of no other round.
    sources: Sequence[Source]  # Sources of the failures.


ROUNDS: Mapping[int, Round] = {
    3: Round(
        seed=404,
        sources=(
            _trained("push_cube", 16, 6, axes={"delay": 12}),
            _trained("push_cube", 16, 4, axes={"object_mass": 5}),
            _trained("push_cube", 12, 3, axes={"action_noise": 80}),
            _trained("reach", 12, 3, axes={"delay": 15}, options=EE_DELTA),
            _plain("reach", "random_action", 4, 3),
            _plain("press_button", "scripted", 8, 4, action_noise=110),
            _plain("press_button", "random_action", 4, 2),
            _plain("stack", "scripted", 16, 6, action_noise=50),
            _plain("sort_two", "scripted", 8, 5, action_noise=60),
            _plain("push_to_goal", "scripted", 8, 4, action_noise=45),
            _plain("close_drawer", "scripted", 8, 5, action_noise=60),
            _plain("open_microwave", "scripted", 8, 5, action_noise=60),
            _plain("open_drawer", "scripted", 8, 4, action_noise=60),
            _plain("lift_object", "scripted", 8, 3, action_noise=80),
            _plain("pick_and_place", "scripted", 8, 4, action_noise=60),
            _plain("pick_by_colour", "scripted", 8, 3, action_noise=80),
            _plain("push_cube", "random_action", 4, 2),
            _plain("open_drawer", "random_action", 4, 2),
            _plain("lift_object", "zero_action", 2, 1),
            _plain("close_drawer", "zero_action", 2, 1),
        ),
    ),
    4: Round(
        seed=505,
        sources=(
            _gr00t("pick_and_place", 8, 6, axes={"robot_start": 8}),
            _gr00t("open_drawer", 8, 6, axes={"camera_pose": 5}),
            _gr00t("lift_object", 8, 6, axes={"robot_start": 8}),
        ),
    ),
    5: Round(
        seed=606,
        sources=(
            _by_colour(8, 6, axes={"robot_start": 8}),
            _by_colour(8, 5, instruction="pick up the cube"),
            _gr00t("pick_and_place", 8, 5, axes={"camera_pose": 5}),
        ),
    ),
    6: Round(
        seed=707,
        sources=(
            _trained("push_cube", 16, 4, axes={"delay": 12}),
            _plain("press_button", "scripted", 8, 2, action_noise=110),
            _plain("stack", "scripted", 8, 3, action_noise=50),
            _plain("push_to_goal", "scripted", 8, 2, action_noise=45),
            _plain("close_drawer", "scripted", 8, 3, action_noise=60),
            _plain("open_microwave", "scripted", 8, 3, action_noise=60),
            _plain("open_drawer", "scripted", 8, 3, action_noise=60),
            _plain("pick_and_place", "scripted", 8, 3, action_noise=60),
            _plain("sort_two", "scripted", 4, 2, action_noise=60),
        ),
    ),
    7: Round(
        seed=808,
        sources=(
            _gr00t("pick_and_place", 12, 9, axes={"robot_start": 8}),
            _gr00t("pick_and_place", 12, 9, axes={"camera_pose": 5}),
            _gr00t("pick_and_place", 48, 6),
            _gr00t("open_drawer", 12, 8, axes={"robot_start": 8}),
            _gr00t("open_drawer", 12, 9, axes={"camera_pose": 5}),
            _gr00t("open_drawer", 40, 4),
            _gr00t("lift_object", 12, 9, axes={"robot_start": 8}),
            _gr00t("lift_object", 12, 9, axes={"camera_pose": 5}),
            _gr00t("lift_object", 40, 5),
            _by_colour(12, 9, axes={"robot_start": 8}),
            _by_colour(12, 8, axes={"camera_pose": 5}),
            _by_colour(40, 4),
            _trained("push_cube", 16, 5, axes={"delay": 12}),
            _trained("push_cube", 16, 4, axes={"object_mass": 5}),
            _trained("push_cube", 12, 4, axes={"action_noise": 80}),
            _trained("reach", 12, 4, axes={"delay": 15}, options=EE_DELTA),
        ),
    ),
    8: Round(
        seed=909,
        sources=(
            _gr00t("pick_and_place", 12, 9, axes={"robot_start": 8}),
            _gr00t("pick_and_place", 12, 9, axes={"camera_pose": 5}),
            _gr00t("pick_and_place", 48, 6),
            _gr00t("open_drawer", 12, 9, axes={"robot_start": 8}),
            _gr00t("open_drawer", 12, 9, axes={"camera_pose": 5}),
            _gr00t("open_drawer", 40, 4),
            _gr00t("lift_object", 12, 9, axes={"robot_start": 8}),
            _gr00t("lift_object", 12, 9, axes={"camera_pose": 5}),
            _gr00t("lift_object", 40, 6),
            _by_colour(12, 9, axes={"robot_start": 8}),
            _by_colour(12, 9, axes={"camera_pose": 5}),
            _by_colour(48, 6),
            _trained("push_cube", 24, 8, axes={"delay": 12}),
            _trained("reach", 12, 4, axes={"delay": 15}, options=EE_DELTA),
        ),
    ),
    9: Round(
        seed=1010,
        sources=(
            _trained("push_cube", 40, 14, axes={"delay": 12}),
            _trained("push_cube", 40, 4, axes={"object_mass": 5}),
            _trained("reach", 16, 8, axes={"delay": 15}, options=EE_DELTA),
        ),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the program."""

    do: Literal["sheets", "label", "join", "page"] = "page"  # See above.
    round: int = max(ROUNDS)  # Number of the round.
    directory: Path = Path("event_sheets")  # Directory of its pages.
    labels: Path = Path("labels.txt")  # The person's lines.


def draw_sheets(options: Options) -> None:
    """Run a round's episodes, draw the pages of its failures, and write down their events."""
    asked, directory = ROUNDS[options.round], options.directory
    directory.mkdir(parents=True, exist_ok=True)
    by_task: dict[str, list[Failure]] = {}
    for source in asked.sources:
        found = failures_of(source, asked.seed)
        print(source.environment, source.called, source.changes, len(found), flush=True)
        by_task.setdefault(source.environment, []).extend(found)
    order = random.Random(options.round)
    failures = [each for found in by_task.values() for each in order.sample(found, len(found))]
    told: list[dict[str, Any]] = []
    for number, failure in enumerate(failures, start=1):
        episode, events = failure.record.episode, failure.record.events
        assert events is not None
        key = (options.round, failure.source.environment, failure.source.called, failure.source.changes)
        row = dict(zip(KEY_COLUMNS, (*key, episode.seed, episode.episode_index), strict=True))
        judged = {"decisive_event": events.decisive or "", "seen": events.seen, "progress": events.progress}
        told.append({"number": number, **row, **judged})
        for part, sheet in enumerate(failure.sheets(f"{number}: {failure.record.language_instruction}"), start=1):
            sheet.save(directory / f"page_{number:03d}_{part}.png")
    (directory / _TOLD_FILE).write_text(json.dumps(told, indent=1), encoding="utf-8")


def take_labels(options: Options) -> None:
    """Add a person's labels to the file of all labels, without the events."""
    told = {each["number"]: each for each in json.loads((options.directory / _TOLD_FILE).read_text(encoding="utf-8"))}
    rows = read_labels()
    for line in options.labels.read_text(encoding="utf-8").splitlines():
        number, label = line.split()
        if label not in (*EVENTS, "none"):
            raise SystemExit(f"{options.labels}: {line}: there is no event '{label}'")
        key = {name: str(told[int(number)][name]) for name in KEY_COLUMNS}
        label = "" if label == "none" else label
        rows.append({**key, "label": label, "decisive_event": NOT_SHOWN, "labelled_by": LABELLED_BY})
    _write_labels(rows)


def join_told(options: Options) -> None:
    """Fill in the events of the episodes that have labels."""
    told = json.loads((options.directory / _TOLD_FILE).read_text(encoding="utf-8"))
    by_key = {tuple(str(each[name]) for name in KEY_COLUMNS): each["decisive_event"] for each in told}
    rows = read_labels()
    for row in rows:
        key = tuple(row[name] for name in KEY_COLUMNS)
        if row["decisive_event"] == NOT_SHOWN and key in by_key:
            row["decisive_event"] = by_key[key]
    _write_labels(rows)


def read_labels() -> list[dict[str, str]]:
    """Return all labels, with the events that were joined."""
    with LABELS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _write_labels(rows: Sequence[Mapping[str, str]]) -> None:
    with LABELS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_page(options: Options) -> None:
    """Count the agreement of each round, and by event and task of the rounds under the rules of today."""
    page = Page(
        "event_agreement", "How often who looks at a failure agrees with the event that decided it", options, "mujoco"
    )
    rows = [row for row in read_labels() if row["decisive_event"] != NOT_SHOWN]
    by_round = _groups(rows, "round")
    latest = [row for row in rows if int(row["round"]) >= (RULES_OF_TODAY if _is_gr00t(row) else RULES_OF_PUSHES)]
    gr00t = [row for row in latest if _is_gr00t(row)]
    rounds = [(f"{name}: {HAPPENED[int(name)]}", its) for name, its in sorted(by_round, key=lambda each: int(each[0]))]
    differing = Counter(
        (row["environment"], row["label"] or "none", row["decisive_event"] or "none")
        for row in latest
        if row["label"] != row["decisive_event"]
    )
    apart = [(*names, str(number)) for names, number in differing.most_common()]
    together = [("by the rules of today: all", latest), ("by the rules of today: GR00T models", gr00t)]
    page.write(
        NOTES,
        _counted("round", [*rounds, *together]),
        *("By the rules of today, by what was seen:", _counted("label", _groups(latest, "label"))),
        *("By what was told:", _counted("told", _groups(latest, "decisive_event"))),
        *("By policy:", _counted("policy", _groups(latest, "model"))),
        *("By task:", _counted("task", _groups(latest, "environment"))),
        *("Where they differ:", "\n".join(markdown_table(("task", "seen", "told", "failures"), apart, words=3))),
    )


def _is_gr00t(row: Mapping[str, str]) -> bool:
    return row["model"].startswith("panda_")


def _groups(rows: Sequence[Mapping[str, str]], column: str) -> list[tuple[str, list[Mapping[str, str]]]]:
    counted = Counter(row[column] for row in rows)
    return [(name or "none", [row for row in rows if row[column] == name]) for name, _ in counted.most_common()]


def _counted(heading: str, groups: Sequence[tuple[str, Sequence[Mapping[str, str]]]]) -> str:
    lines = []
    for name, rows in groups:
        same = sum(row["label"] == row["decisive_event"] for row in rows)
        lines.append((name, f"{same}/{len(rows)}", success_rate(same, len(rows))))
    return "\n".join(markdown_table((heading, "same", "agreement, Wilson 95 %"), lines))


def main(options: Options) -> None:
    """Do one of the steps of a round."""
    {"sheets": draw_sheets, "label": take_labels, "join": join_told, "page": write_page}[options.do](options)


if __name__ == "__main__":
    run(main, Options)

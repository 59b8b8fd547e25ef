"""Measure the gain of drawing pictures on demand.

Rollouts of the shipped GR00T model, which looks at one picture in eight, with pictures on demand and with every picture
drawn, in turn, in one process, on one core. And rollouts of a policy that never looks, with cameras and without. Each
of the first also runs as a job with ``--eager_pictures`` and without; their tables must be the same bytes.
"""

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks import ROOT
from benchmarks.harness.environments import Tally, build, episodes, make_policy
from benchmarks.harness.measure import Page, PageOptions, Table, Timing, in_turn, median, ratios, run, spread, timed
from benchmarks.harness.runs import evaluate, one_job
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment, Observer
from isaaclab_arena.interfaces.policy import PolicyBase

ENVIRONMENT = "pick_by_colour"
YAML = ROOT / "isaaclab_arena_gr00t" / "policy" / "config" / "panda_closedloop.yaml"
MODEL = ROOT / "models" / "panda_pick_by_colour"
SIZES = ((8, 64), (16, 64), (16, 128), (8, 224))
"""Env slots and pixels of a side of each of the two pictures."""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    pairs: int = 3  # Rollouts of each kind.
    episodes: int = 1  # Episodes for each env slot.


@dataclass(frozen=True, kw_only=True)
class Played(Timing):
    """A rollout: its time, its returns and the number of pictures that were drawn."""

    returns: tuple[float, ...]
    pictures: int


def play(environment: Environment, policy: PolicyBase, number: int, watches: Sequence[Observer] = ()) -> Played:
    """Run episodes, watched by further observers."""
    tally, drawn = Tally(), (environment.pictures_drawn or 0)
    policy.reset()
    took = timed(partial(rollout, environment, policy, episodes(number), [tally, *watches]))
    ordered = sorted(tally.records, key=lambda record: record.episode.episode_index)
    pictures = (environment.pictures_drawn or 0) - drawn
    return Played(**vars(took), returns=tuple(each.episode_return for each in ordered), pictures=pictures)


def chunked(policy: PolicyBase, num_envs: int, size_px: int, options: Options) -> tuple[str, ...]:
    """Return the figures of a policy that looks now and then."""
    environment = build(ENVIRONMENT, num_envs, enable_cameras=True, camera_size=size_px)
    once = partial(play, environment, policy, options.episodes * num_envs)
    # An observer without hooks has every picture drawn, as --eager_pictures does.
    found = in_turn({"every": partial(once, [Observer()]), "demand": once}, options.pairs, warm_up=1)
    environment.close()
    every, demand = found["every"], found["demand"]
    assert {each.returns for each in every} == {each.returns for each in demand}, "the episodes are not the same bits"
    return (
        *(f"{median(each, 'pictures'):,.0f}" for each in (every, demand)),
        *(f"{median(each, 'cpu_s'):.2f}" for each in (every, demand)),
        spread(ratios(every, demand, "cpu_s")),
    )


def require_same_tables(num_envs: int, size_px: int, options: Options) -> None:
    """Require the same table bytes of a job with every picture drawn and with pictures on demand."""
    arguments = {"environment": ENVIRONMENT, "num_envs": num_envs, "enable_cameras": True, "camera_size": size_px}
    policy = {"policy_config_yaml_path": str(YAML), "model_path": str(MODEL)}
    document = one_job(arguments, "gr00t_closedloop", options.episodes * num_envs, policy)
    found = []
    for more_options in ((), ("--eager_pictures",)):
        with tempfile.TemporaryDirectory(prefix="pictures_on_demand_") as name:
            evaluate(Path(name), document, "--num_threads", "1", *more_options)
            found.append([(Path(name) / "out" / table).read_bytes() for table in ("results.csv", "episodes.csv")])
    assert found[0] == found[1], "the tables are not the same bytes"


def never(num_envs: int, size_px: int, options: Options) -> str:
    """Return the CPU time of a policy that never looks, with cameras over without."""
    blind = build("lift_object", num_envs)
    seeing = build("lift_object", num_envs, enable_cameras=True, camera_size=size_px)
    number = 4 * options.episodes * num_envs
    calls = {each: partial(play, each, make_policy("scripted"), number) for each in (blind, seeing)}
    found = in_turn(calls, 3 * options.pairs, warm_up=1)
    assert not any(each.pictures for each in found[seeing]), "pictures without a reader were drawn"
    return f"{statistics.median(ratios(found[seeing], found[blind], 'cpu_s')):.2f}"


def main(options: Options) -> None:
    """Measure, print the tables and write the page."""
    torch.set_num_threads(1)
    page = Page("pictures_on_demand", "Pictures on demand", options)
    policy = make_policy("gr00t_closedloop", {"policy_config_yaml_path": str(YAML), "model_path": str(MODEL)})
    figures = ("pictures, every one", "on demand", "CPU s, every one", "on demand", "times as fast")
    table = Table("env slots", "pictures", *figures)
    for num_envs, size_px in SIZES:
        require_same_tables(num_envs, size_px, options)
        table.add(num_envs, f"2 x {size_px}²", *chunked(policy, num_envs, size_px, options))
    others = Table("env slots", "pictures", "CPU time with cameras, over that without")
    for num_envs, size_px in SIZES[1:]:
        others.add(num_envs, f"2 x {size_px}²", never(num_envs, size_px, options))
    text = f"""\
`{ENVIRONMENT}` with `models/{MODEL.name}`, chunks of 8 steps, one thread for physics, pictures and torch. `every one`
is with `--eager_pictures`. Episodes have the same returns, to the last bit, and jobs of each line
the same bytes in `results.csv` and `episodes.csv`, which the program requires. CPU seconds are medians of
{options.pairs} rollouts; ratios are of pairs, with the smallest and the largest.

The second table is of the `scripted` policy in `lift_object`, which never looks."""
    page.write(text, table, others)


if __name__ == "__main__":
    run(main, Options)

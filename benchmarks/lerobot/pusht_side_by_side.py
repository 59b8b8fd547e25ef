"""Play the same episodes of PushT with the same untrained ACT by ``lerobot-eval`` and by this program, in turn.

Both are whole commands, from the start of the interpreter to its end.
"""

import csv
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks import ROOT
from benchmarks.harness.measure import Page, PageOptions, Table, in_turn, ratios, run, spread, values
from benchmarks.harness.runs import Watched, evaluate, one_job, watched

THREADS = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
EDGE_PX = 96
"""Edge of gym-pusht's pictures for any ``--env.observation_width`` of LeRobot 0.4.4."""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    python: str = ".venv-lerobot/bin/python"  # Interpreter with LeRobot 0.4.4 and gym-pusht.
    episodes: int = 50  # Episodes of each run.
    chunk: int = 50  # Actions that the policy plays before it looks again.
    batch_sizes: tuple[int, ...] = (50,)  # Environments that lerobot-eval steps at once.
    num_envs: tuple[int, ...] = (50,)  # Env slots of this program, in two workers.
    slots_per_call: tuple[int, ...] = (4,)  # Env slots of each call of the policy.
    seed: int = 1000  # Of lerobot-eval; that of episode 0.
    rounds: int = 3  # Runs of each kind, in turn.


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """The episodes of a run, in order."""

    returns: Sequence[float]  # Sum of rewards of each.
    successes: Sequence[bool]  # Success of each.


@dataclass(frozen=True, kw_only=True)
class Played:
    """One run."""

    process: Watched  # Resources of its process with all children.
    episodes: Episodes  # Played episodes.
    load: float  # Load average of the machine at its begin.

    @property
    def cpu_s(self) -> float:
        """CPU time of all processes [s]."""
        return self.process.cpu_s

    @property
    def wall_s(self) -> float:
        """Wall time [s]."""
        return self.process.wall_s


def play_theirs(options: Options, policy: Path, directory: Path, batch_size: int) -> Played:
    """Run ``lerobot-eval``, with one thread and without a net."""
    directory.mkdir()
    load = os.getloadavg()[0]
    arguments = {
        "policy.path": policy,
        "policy.device": "cpu",
        "policy.use_amp": "false",
        "env.type": "pusht",
        "eval.batch_size": batch_size,
        "eval.n_episodes": options.episodes,
        "seed": options.seed,
        "output_dir": directory / "out",
    }
    words = (f"--{key}={value}" for key, value in arguments.items())
    process = watched([options.python, "-m", "lerobot.scripts.lerobot_eval", *words], directory / "log.txt", THREADS)
    return Played(process=process, episodes=their_episodes(directory / "out"), load=load)


def their_episodes(directory: Path) -> Episodes:
    """Return the episodes that ``lerobot-eval`` wrote."""
    found = json.loads((directory / "eval_info.json").read_text(encoding="utf-8"))
    [task] = found["per_task"]
    return Episodes(returns=task["metrics"]["sum_rewards"], successes=task["metrics"]["successes"])


def play_ours(options: Options, policy: Path, directory: Path, num_envs: int, slots_per_call: int) -> Played:
    """Run a job with the same episodes."""
    environment = {
        "environment": "gym:benchmarks.lerobot.pusht_environment:arena_benchmarks/PushT-v0",
        "python": options.python,
        "environment_variables": {"PYTHONPATH": str(ROOT)},
        "make_kwargs": {"start_seed": options.seed},
        "tell_episode": True,
        "success_key": "is_success",
        "num_envs": num_envs,
        "envs_per_worker": num_envs // 2,
    }
    shown = {"images": {"observation.image": "pixels"}, "states": {"observation.state": ["agent_pos"]}}
    asked = {"python": options.python, "pretrained": str(policy), "slots_per_call": slots_per_call, **shown}
    load = os.getloadavg()[0]
    document = one_job(environment, "lerobot", options.episodes, asked, name="pusht")
    process = evaluate(directory, document, variables=THREADS)
    return Played(process=process, episodes=our_episodes(directory / "out"), load=load)


def our_episodes(directory: Path) -> Episodes:
    """Return the episodes of a run."""
    with (directory / "episodes.csv").open(encoding="utf-8", newline="") as file:
        lines = sorted(csv.DictReader(file), key=lambda line: int(line["episode_index"]))
    return Episodes(
        returns=[float(line["return"]) for line in lines], successes=[line["success"] == "True" for line in lines]
    )


def outcomes_apart(ours: Episodes, theirs: Episodes) -> int:
    """Return the number of episodes that succeed in one of two runs alone."""
    return sum(bool(a) != bool(b) for a, b in zip(ours.successes, theirs.successes, strict=True))


def furthest_apart(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the largest difference of an episode's sums of rewards."""
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def main(options: Options) -> None:
    """Run all in turn, and write the page."""
    page = Page("lerobot_pusht", "PushT beside lerobot-eval", options)
    numbers = count()
    with tempfile.TemporaryDirectory(prefix="pusht_side_by_side_") as name:
        directory, policy = Path(name), Path(name) / "act"
        words = ["untrained_act", str(policy), str(options.chunk), str(EDGE_PX), "observation.image"]
        made = [options.python, "-m", "benchmarks.lerobot.inside", *words]
        subprocess.run(made, check=True, cwd=ROOT, env={**os.environ, **THREADS})

        def once(play: Callable[..., Played], *sizes: int) -> Played:
            return play(options, policy, directory / f"run_{next(numbers)}", *sizes)

        theirs = {f"lerobot-eval, batches of {size}": partial(once, play_theirs, size) for size in options.batch_sizes}
        sizes = zip(options.num_envs, options.slots_per_call, strict=True)
        ours = {f"this program, {slots} env slots": partial(once, play_ours, slots, call) for slots, call in sizes}
        found = in_turn({**theirs, **ours}, options.rounds)
    first, last = (found[list(ours)[place]] for place in (0, -1))
    times = ("CPU s", "CPU s per episode", "wall s", "CPU over the last line", "wall over it", "load at the start")
    table = Table("program", *times, "successes", "other outcomes", "returns apart by at most")
    for program, played in found.items():
        table.add(
            program,
            *(spread(values(played, "cpu_s"), 1), f"{min(values(played, 'cpu_s')) / options.episodes:.2f}"),
            *(spread(values(played, "wall_s"), 1), spread(ratios(played, last, "cpu_s"), 1)),
            *(spread(ratios(played, last, "wall_s"), 1), spread(values(played, "load"), 1)),
            f"{sum(map(bool, played[0].episodes.successes))} of {options.episodes}",
            str(max(outcomes_apart(each.episodes, first[0].episodes) for each in played)),
            f"{max(furthest_apart(each.episodes.returns, first[0].episodes.returns) for each in played):.2g}",
        )
    pushed = sum(each > 0 for each in first[0].episodes.returns)
    text = f"""\
Untrained ACT of LeRobot (resnet18, width 128, {options.chunk} actions played per look), {options.episodes} episodes of
300 steps, seeds {options.seed} and following, one thread of torch in each process, without a GPU. Times are those of
whole commands, with the start of all interpreters and what is written in the end. `lerobot-eval` draws every picture,
and a second one for the videos of its first ten episodes, which cannot be switched off. Here pictures are drawn where
the policy looks, and there is a recording of states and actions, but no video; two workers hold the environments. The T
was over its target at some time in {pushed} of {options.episodes} episodes. `lerobot-eval` steps 50 environments at
once unless it is told otherwise. All programs took turns, {options.rounds} times; cells hold the median, the least and
the most. The last two columns compare outcomes and sums of rewards of all runs, episode by episode, with those of
this program's first line. The last digits of an answer depend on how many observations a call has; here it has
{" or ".join(map(str, options.slots_per_call))}."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)

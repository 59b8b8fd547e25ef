"""Measure how many episodes a second the keeper of a run on Ray claims out and commits, and what memory that takes.

The keeper is the real one, an actor of a Ray cluster on this machine. Ranks are actors of this program that ask it as
ranks do, but simulate nothing: an episode is the toss of a coin and its line. The run is cut into pieces as for a
thousand ranks, so that there are as many claims.
"""

import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray

from benchmarks.harness.pages import Page, PageOptions, run
from benchmarks.harness.tables import Table
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.episode_ranges import of_ranges
from isaaclab_arena.evaluation.cluster.cluster_options import ClusterOptions
from isaaclab_arena.evaluation.cluster.driver import needs_of
from isaaclab_arena.evaluation.cluster.messages import KeeperState, Life, RunOrders
from isaaclab_arena.evaluation.cluster.node_check import request_of
from isaaclab_arena.evaluation.cluster.ray_actors import KEEPER_OPTIONS, KeeperActor, RemoteKeeper
from isaaclab_arena.evaluation.cluster.remote_claims import RemoteClaims
from isaaclab_arena.evaluation.cluster.result_sender import ResultSender
from isaaclab_arena.evaluation.eval_runner import asked_for
from isaaclab_arena.evaluation.scheduling.cost import Measured
from isaaclab_arena.evaluation.scheduling.divided_jobs import divided_jobs
from isaaclab_arena.evaluation.startup.start_up import start_run_alone
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.storage.json_values import adapter, json_line, json_text
from isaaclab_arena.storage.layout import job_directory
from isaaclab_arena.storage.run.commits import CommitLine, CommitWriter, read_commits

JOB = "coins"
POLLS_PER_S = 5


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """What to measure."""

    episodes: int = 100_000  # Episodes of the run.
    ranks: int = 1000  # For how many ranks the run is cut into pieces.
    players: int = 2  # How many actors claim and commit.


class MeasuredKeeper(KeeperActor):
    """The keeper, which says how much memory its process has."""

    def memory_mb(self) -> float:
        """Return the memory that is resident [MB]."""
        return _resident_mb(Path("/proc/self"))


class Player:
    """A rank whose episodes are tossed coins.

    Args:
        orders: The run.
        rank: Which rank it is.
        keeper: The keeper.
    """

    def __init__(self, orders: str, rank: int, keeper: Any) -> None:
        self._orders = adapter(RunOrders).validate_json(orders)
        self._life = Life(rank=rank)
        self._keeper = RemoteKeeper(keeper)
        request = request_of(self._orders.needs)
        self._jobs = divided_jobs(request.jobs, self._orders.attempt)

    def ready(self) -> None:
        """Return once this process is there."""

    def play(self) -> int:
        """Claim and commit until nothing is left, and return how many pieces were claimed."""
        directory = Path(tempfile.mkdtemp(prefix="claim_rate_"))
        job_directory(directory, JOB).mkdir()
        sender = ResultSender(self._life, directory, self._keeper.deliver)
        sender.follow(JOB)
        claims = RemoteClaims(
            self._jobs, self._life, self._keeper.claim, self._keeper.begin, sender, output_directory=directory
        )
        commits, generator, num_pieces = CommitWriter(job_directory(directory, JOB), self._life.rank), _coins(), 0
        with sender:
            while (claim := claims.claim_next(None)) is not None:
                episodes = sorted(of_ranges(claim.divided.pieces[claim.piece] or ()))
                claims.begin(claim, episodes[0], episodes[-1])
                for index in episodes:
                    commits.write(_tossed(index, self._life.rank, heads=generator.random() < 0.5))
                claims.finish(claim, Measured(episodes=1, env_steps=1, seconds=0.001))
                num_pieces += 1
        shutil.rmtree(directory)
        return num_pieces


def _coins() -> np.random.Generator:
    return np.random.default_rng(0)


def _tossed(index: int, rank: int, *, heads: bool) -> CommitLine:
    return CommitLine(
        job_name=JOB,
        env_id=0,
        episode_in_env=0,
        language_instruction=None,
        seed=0,
        success=heads,
        episode_length=10 if heads else 100,
        timestamp="",
        episode_index=index,
        outcome=Outcome.SUCCESS if heads else Outcome.TIMEOUT,
        termination="success" if heads else "time_out",
        episode_return=0.0,
        rank=rank,
        episode_seed=index,
    )


@dataclass(frozen=True, kw_only=True)
class Moment:
    """How the run stood."""

    at_s: float  # Since the first claim [s].
    state: KeeperState  # What the keeper said.
    keeper_mb: float  # Its memory [MB].
    head_mb: float  # That of Ray's own processes on the head, without the dashboard and the workers [MB].


def measure(options: Options, place: Path) -> tuple[list[Moment], int]:
    """Play the run, and return how it stood a few times a second, and how many claims there were."""
    jobs = place / "jobs.json"
    # Nobody builds the environment. Its plan is all that a keeper knows of it.
    job = {"name": JOB, "arena_env_args": {"environment": "reach"}, "policy_type": "random_action"}
    jobs.write_text(json_text({"jobs": [{**job, "num_episodes": options.episodes}]}), encoding="utf-8")
    words = ("--eval_jobs_config", str(jobs), "--output_dir", str(place / "out"), "--cluster", "ray")
    request = asked_for(words, may_import=True)
    needs = needs_of(request, ClusterOptions(cluster="ray"), working_directory=str(place))
    context = DistributedContext(world_size=options.ranks, local_world_size=options.ranks)
    started = start_run_alone(request, context, ["cpu"] * options.ranks)
    assert started.attempt is not None
    orders = json_line(
        RunOrders(
            run="claims",
            needs=replace(needs, arguments=words),
            config_hash=started.plan.config_hash,
            output_directory=str(started.output_directory),
            attempt=started.attempt,
            num_ranks=options.ranks,
            node_directory=None,
        )
    )
    remote: Any = ray.remote
    keeper = remote(**KEEPER_OPTIONS)(MeasuredKeeper).remote(orders)
    players = [remote(num_cpus=0)(Player).remote(orders, rank, keeper) for rank in range(options.players)]
    ray.get([player.ready.remote() for player in players])
    ray.get(keeper.state.remote())
    began, moments = time.perf_counter(), []
    playing = [player.play.remote() for player in players]
    while not moments or moments[-1].state.num_episodes < options.episodes:
        ray.wait(playing, num_returns=len(playing), timeout=1 / POLLS_PER_S)
        state, keeper_mb = ray.get([keeper.state.remote(), keeper.memory_mb.remote()])
        at_s = time.perf_counter() - began
        read = adapter(KeeperState).validate_json(state)
        moments.append(Moment(at_s=at_s, state=read, keeper_mb=keeper_mb, head_mb=_head_mb()))
    num_claims = sum(ray.get(playing))
    lines = read_commits(job_directory(started.output_directory, JOB), JOB).lines
    assert sorted(line.episode_index for line in lines) == list(range(options.episodes)), "not every episode once"
    return moments, num_claims


def _resident_mb(process: Path) -> float:
    status = (process / "status").read_text(encoding="utf-8").splitlines()
    return next((int(line.split()[1]) * 1024 / 1e6 for line in status if line.startswith("VmRSS:")), 0.0)


def _head_mb() -> float:
    """Return the memory of the processes of the cluster that this process has started [MB]."""
    session = ray.get_runtime_context().worker.node.get_session_dir_path()
    total = 0.0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            is_ours = Path(words[0].decode()).name in {"gcs_server", "raylet"} and session.encode() in b" ".join(words)
            total += _resident_mb(process) if is_ours else 0.0
        except OSError:
            continue
    return total


def main(options: Options) -> None:
    """Measure, and write the page."""
    page = Page("claim_rate", "Claims and commits of a run on a Ray cluster", options, "ray")
    ray.init(address="local", include_dashboard=False, num_cpus=options.players, log_to_driver=False)
    with tempfile.TemporaryDirectory(prefix="claim_rate_") as name:
        moments, num_claims = measure(options, Path(name))
    ray.shutdown()
    last = moments[-1]
    early = next(each for each in moments if each.state.num_episodes >= options.episodes / 10)
    per_episode_ms = 1000 * last.state.busy_s / options.episodes
    table = Table("measure", "figure")
    for measure_of, figure in {
        "episodes claimed and committed per second": f"{options.episodes / last.at_s:,.0f}",
        "claims": f"{num_claims:,}",
        "answers of the keeper": f"{last.state.num_answers:,}",
        "the keeper at work, of the time": f"{100 * last.state.busy_s / last.at_s:.0f} %",
        "the keeper at work on an episode": f"{per_episode_ms:.2f} ms",
        "memory of the keeper after a tenth of the episodes": f"{early.keeper_mb:.0f} MB",
        "memory of the keeper at the end": f"{last.keeper_mb:.0f} MB",
        "memory of Ray's head (gcs_server, raylet) after a tenth": f"{early.head_mb:.0f} MB",
        "memory of Ray's head at the end": f"{last.head_mb:.0f} MB",
    }.items():
        table.add(measure_of, figure)
    text = f"""\
{options.episodes:,} episodes that only toss a coin, in pieces as for {options.ranks:,} ranks, claimed and committed by
{options.players} actors, which share the machine's cores with the keeper. Episodes have no recordings."""
    page.write(text, table)


if __name__ == "__main__":
    run(main, Options)

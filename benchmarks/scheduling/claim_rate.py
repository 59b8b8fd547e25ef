"""Measure the episodes per second that the claim server of a run on Ray gives out and commits, and their cost.

The claim server is the real one, an actor of a Ray cluster on this machine. Ranks are actors of this program that make
the calls of a rank without a simulation: an episode is a tossed coin and its line. The run is cut into pieces as for a
thousand ranks, so there are as many claims. Then crowds stand for idle ranks: each sends its heartbeats and asks for
work, as often as the claim server lets it.
"""

import heapq
import shutil
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray

from benchmarks.harness.measure import Page, PageOptions, Table, run
from benchmarks.scheduling.scale import ON_A_WORD, ON_AN_EPISODE, PAGE
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.ranks import ranks_of_one
from isaaclab_arena.evaluation.claims import Measured
from isaaclab_arena.evaluation.cluster.claim_server import (
    Life,
    RemoteLedger,
    RunOrders,
    interval_s,
    needs_of,
    request_of,
)
from isaaclab_arena.evaluation.cluster.ray_engine import CLAIM_SERVER_OPTIONS, ClaimServerActor, answer_of
from isaaclab_arena.evaluation.eval_runner import asked_for
from isaaclab_arena.evaluation.options import ClusterOptions
from isaaclab_arena.evaluation.planning import divided_jobs
from isaaclab_arena.evaluation.run_start import start_run
from isaaclab_arena.interfaces.episode import Outcome, of_ranges
from isaaclab_arena.storage.atomic import adapter, json_line, json_text
from isaaclab_arena.storage.commits import CommitLine, line_text, read_commits

JOB = "coins"
POLLS_PER_S = 5
STATUS = b"x" * 900
"""As long as the status of a rank."""


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    episodes: int = 100_000  # Episodes of the run.
    ranks: int = 1000  # Ranks for which the run is cut into pieces.
    players: int = 2  # Actors that claim and commit.
    crowds: tuple[int, ...] = (100, 300, 1000)  # Numbers of idle ranks.
    crowd_s: float = 20.0  # Time of each crowd [s].


@dataclass(frozen=True, kw_only=True)
class State:
    """What the claim server has done."""

    num_episodes: int = 0  # Episodes that it has committed.
    busy_s: float = 0.0  # Time spent on answers [s].
    num_answers: int = 0


class MeasuredClaimServer(ClaimServerActor):
    """The claim server, which says what it has done, how much memory its process has, and how much processor time."""

    def __init__(self, orders: str) -> None:
        super().__init__(orders)
        self._state = State()

    def ask(self, words: str, contents: list[bytes | None]) -> str:
        """Answer, and measure it."""
        began_s = time.perf_counter()
        answer = super().ask(words, contents)
        self._state = State(
            num_episodes=self._state.num_episodes + words.count('["commit", '),
            busy_s=self._state.busy_s + time.perf_counter() - began_s,
            num_answers=self._state.num_answers + 1,
        )
        return answer

    def state(self) -> State:
        """Return its work so far."""
        return self._state

    def cpu_s(self) -> float:
        """Return the CPU time of all its threads [s]."""
        return time.process_time()

    def memory_mb(self) -> float:
        """Return the memory that is resident [MB]."""
        return _resident_mb(Path("/proc/self"))


class Player:
    """A rank whose episodes are tossed coins."""

    def __init__(self, orders: str, rank: int, claim_server: Any) -> None:
        self._orders = adapter(RunOrders).validate_json(orders)
        self._life = Life(rank=rank)
        self._ask = partial(answer_of, claim_server, life=self._life)
        request = request_of(self._orders.needs)
        self._jobs = divided_jobs(request.jobs, self._orders.attempt)

    def ready(self) -> None:
        """Return once this process runs."""

    def play(self) -> int:
        """Claim and commit until nothing is left, and return the number of claimed pieces."""
        directory = Path(tempfile.mkdtemp(prefix="claim_rate_"))
        ledger = RemoteLedger(self._orders, self._life, self._jobs, self._ask, directory, is_own=True)
        generator, num_pieces = np.random.default_rng(0), 0
        with ledger.delivering():
            while (claim := ledger.claim_next(None)) is not None:
                episodes = sorted(of_ranges(ledger.jobs[claim.job_index].pieces[claim.piece] or ()))
                ledger.begin(claim, episodes[0], episodes[-1])
                for index in episodes:
                    line = _tossed(index, self._life.rank, heads=generator.random() < 0.5)
                    ledger.commit(directory, line, line_text(line), None)
                ledger.finish(claim, Measured(episodes=1, env_steps=1, seconds=0.001))
                num_pieces += 1
        shutil.rmtree(directory)
        return num_pieces


class Crowd:
    """Idle ranks, in one process."""

    def __init__(self, claim_server: Any, num_ranks: int) -> None:
        self._claim_server = claim_server
        self._interval_s = interval_s(num_ranks)
        generator = np.random.default_rng(0)
        self._due = [
            (generator.random() * self._interval_s, rank, speak) for rank in range(num_ranks) for speak in (0, 1)
        ]
        heapq.heapify(self._due)
        self._sent: dict[Any, tuple[int, int, float]] = {}
        self._began = time.perf_counter()

    def speak(self, seconds: float) -> list[float]:
        """Send heartbeats and questions of such ranks, and return the time of each answer [s]."""
        took, end = [], self._now() + seconds
        while (at := self._now()) < end:
            while self._due and self._due[0][0] <= at:
                _, rank, kind = heapq.heappop(self._due)
                self._sent[self._question(Life(rank=rank), kind)] = rank, kind, at
            if not self._sent:
                time.sleep(0.002)
                continue
            ready, _ = ray.wait(list(self._sent), num_returns=len(self._sent), timeout=0.002)
            for reference in ready:
                rank, kind, asked_at = self._sent.pop(reference)
                at = self._now()
                took.append(at - asked_at)
                heapq.heappush(self._due, (at + self._interval_s, rank, kind))
        return took

    def _now(self) -> float:
        return time.perf_counter() - self._began

    def _question(self, life: Life, kind: int) -> Any:
        if kind:
            return self._claim_server.ask.remote(json_line([life, [("claim", [])]]), [None])
        status = "keep", [f"logs/rank{life.rank}.status.json", None]
        return self._claim_server.ask.remote(json_line([life, [status, ("beat", ["here"])]]), [STATUS, None])


def _tossed(index: int, rank: int, *, heads: bool) -> CommitLine:
    return CommitLine(
        job=JOB,
        env_id=0,
        episode_in_env=0,
        language_instruction=None,
        seed=0,
        success=heads,
        length=10 if heads else 100,
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
    """The state of the run at a time."""

    at_s: float  # Since the first claim [s].
    state: State  # What the claim server said.
    memory_mb: float  # Its memory [MB].
    head_mb: float  # That of Ray's own processes on the head, without the dashboard and the workers [MB].


def begin(place: Path, num_episodes: int, num_ranks: int) -> tuple[str, Path]:
    """Begin a run, and return its orders and its directory."""
    jobs = place / "jobs.json"
    # The claim server reads only the plan, so no environment is built.
    job = {"name": JOB, "arena_env_args": {"environment": "reach"}, "policy_type": "random_action"}
    jobs.write_text(json_text({"jobs": [{**job, "num_episodes": num_episodes}]}), encoding="utf-8")
    words = ("--eval_jobs_config", str(jobs), "--output_dir", str(place / "out"), "--cluster", "ray")
    request = asked_for(words)
    needs = needs_of(request, ClusterOptions(cluster="ray"), working_directory=str(place))
    context = DistributedContext(world_size=num_ranks, local_world_size=num_ranks)
    started = start_run(request, ranks_of_one(context), devices_to_come=["cpu"] * num_ranks)
    assert started.attempt is not None
    orders = json_line(
        RunOrders(
            run="claims",
            needs=needs,
            config_hash=started.plan.config_hash,
            output_directory=str(started.output_directory),
            attempt=started.attempt,
            node_directory=None,
        )
    )
    return orders, started.output_directory


def measure(options: Options, place: Path) -> tuple[list[Moment], int, float]:
    """Play the run; return its state a few times a second, its claims, and the claim server's CPU time [s]."""
    orders, output_directory = begin(place, options.episodes, options.ranks)
    remote: Any = ray.remote
    claim_server = remote(**CLAIM_SERVER_OPTIONS)(MeasuredClaimServer).remote(orders)
    players = [remote(num_cpus=0)(Player).remote(orders, rank, claim_server) for rank in range(options.players)]
    ray.get([player.ready.remote() for player in players])
    ray.get(claim_server.state.remote())
    cpu_before_s: float = ray.get(claim_server.cpu_s.remote())
    began, moments = time.perf_counter(), []
    playing = [player.play.remote() for player in players]
    while not moments or moments[-1].state.num_episodes < options.episodes:
        ray.wait(playing, num_returns=len(playing), timeout=1 / POLLS_PER_S)
        state, memory_mb = ray.get([claim_server.state.remote(), claim_server.memory_mb.remote()])
        at_s = time.perf_counter() - began
        moments.append(Moment(at_s=at_s, state=state, memory_mb=memory_mb, head_mb=_head_mb()))
    num_claims = sum(ray.get(playing))
    cpu_after_s: float = ray.get(claim_server.cpu_s.remote())
    lines = read_commits(output_directory / JOB, JOB).lines
    assert sorted(line.episode_index for line in lines) == list(range(options.episodes)), "not every episode once"
    return moments, num_claims, cpu_after_s - cpu_before_s


@dataclass(frozen=True, kw_only=True)
class Heard:
    """Figures of a crowd."""

    num_ranks: int  # Ranks of the crowd.
    took_s: list[float]  # Time of each answer [s].
    busy_s: float  # Time that the claim server worked on answers [s].
    cpu_s: float  # CPU time of its process [s].
    wall_s: float  # Wall time [s].

    @property
    def word_ms(self) -> float:
        """CPU time of one heartbeat or question [ms]."""
        return 1000 * self.cpu_s / len(self.took_s)


def listen(num_ranks: int, seconds: float, place: Path) -> Heard:
    """Let a crowd speak to a claim server of its own, all of whose work is with a rank that does not end."""
    orders, _ = begin(place, 1, num_ranks + 1)
    remote: Any = ray.remote
    claim_server = remote(**CLAIM_SERVER_OPTIONS)(MeasuredClaimServer).remote(orders)
    assert answer_of(claim_server, [("claim", [], None)], life=Life(rank=num_ranks))["claim"] is not None
    crowd = remote(num_cpus=0)(Crowd).remote(claim_server, num_ranks)
    ray.get(crowd.speak.remote(interval_s(num_ranks)))
    before, cpu_s = ray.get([claim_server.state.remote(), claim_server.cpu_s.remote()])
    began = time.perf_counter()
    took_s = ray.get(crowd.speak.remote(seconds))
    wall_s = time.perf_counter() - began
    after, cpu_after_s = ray.get([claim_server.state.remote(), claim_server.cpu_s.remote()])
    ray.kill(crowd)
    ray.kill(claim_server)
    busy_s = after.busy_s - before.busy_s
    return Heard(num_ranks=num_ranks, took_s=took_s, busy_s=busy_s, cpu_s=cpu_after_s - cpu_s, wall_s=wall_s)


def _resident_mb(process: Path) -> float:
    status = (process / "status").read_text(encoding="utf-8").splitlines()
    return next((int(line.split()[1]) * 1024 / 1e6 for line in status if line.startswith("VmRSS:")), 0.0)


def _head_mb() -> float:
    """Return the memory of the cluster processes that this process has started [MB]."""
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
    page = Page(PAGE, "Claims and commits of a run on a Ray cluster", options, "ray")
    ray.init(address="local", include_dashboard=False, num_cpus=options.players, log_to_driver=False)
    with tempfile.TemporaryDirectory(prefix="claim_rate_") as name:
        moments, num_claims, cpu_s = measure(options, Path(name))
    crowds = []
    for num_ranks in options.crowds:
        with tempfile.TemporaryDirectory(prefix="claim_rate_") as name:
            crowds.append(listen(num_ranks, options.crowd_s, Path(name)))
    ray.shutdown()
    last = moments[-1]
    early = next(each for each in moments if each.state.num_episodes >= options.episodes / 10)
    table = Table("measure", "figure")
    for measure_of, figure in {
        "episodes claimed and committed per second": f"{options.episodes / last.at_s:,.0f}",
        "claims": f"{num_claims:,}",
        "answers of the claim server": f"{last.state.num_answers:,}",
        "the claim server at work, of the time": f"{100 * last.state.busy_s / last.at_s:.0f} %",
        ON_AN_EPISODE: f"{1000 * cpu_s / options.episodes:.2f} ms",
        ON_A_WORD: f"{max(heard.word_ms for heard in crowds):.2f} ms",
        "memory of the claim server after a tenth of the episodes": f"{early.memory_mb:.0f} MB",
        "memory of the claim server at the end": f"{last.memory_mb:.0f} MB",
        "memory of Ray's head (gcs_server, raylet) after a tenth": f"{early.head_mb:.0f} MB",
        "memory of Ray's head at the end": f"{last.head_mb:.0f} MB",
    }.items():
        table.add(measure_of, figure)
    text = f"""\
{options.episodes:,} episodes that only toss a coin, in pieces as for {options.ranks:,} ranks, claimed and committed by
{options.players} actors, which share the machine's cores with the claim server. Episodes have no recordings."""
    crowd_table = Table(
        "ranks with nothing to do",
        "heard a second",
        "answer ms, median",
        "99 of 100",
        "claim server at work %",
        "processor %",
    )
    for heard in crowds:
        median_ms, slow_ms = 1000 * np.quantile(heard.took_s, (0.5, 0.99))
        at_work, processor = (100 * seconds / heard.wall_s for seconds in (heard.busy_s, heard.cpu_s))
        rate = len(heard.took_s) / heard.wall_s
        crowd_table.add(
            heard.num_ranks, f"{rate:.0f}", f"{median_ms:.1f}", f"{slow_ms:.1f}", f"{at_work:.1f}", f"{processor:.1f}"
        )
    crowd_text = f"""\
Ranks that have nothing to do say that they live and ask for work, for {options.crowd_s:g} s, as often as the
claim server lets them. Its process's share of one processor holds what Ray does in it for each call."""
    page.write(text, table, crowd_text, crowd_table)


if __name__ == "__main__":
    run(main, Options)

"""The ranks of a run on a cluster: their options, their messages to the claim server, and what keeps them alive."""

import logging
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Literal, Protocol

from pydantic import Field

from isaaclab_arena.config.options import Count
from isaaclab_arena.distributed.context import is_a_rank
from isaaclab_arena.distributed.ranks import DistributedError
from isaaclab_arena.episode_ranges import EpisodeRanges
from isaaclab_arena.errors import ArenaError, ConfigError, DiskUnusableError, Problem, first_line
from isaaclab_arena.evaluation.claims import Measured
from isaaclab_arena.evaluation.heartbeat import RankState
from isaaclab_arena.evaluation.options import Assignment, RunOptions
from isaaclab_arena.evaluation.process import Interruption
from isaaclab_arena.registry import check_optional_library
from isaaclab_arena.storage.run_plan import Attempt

# The messages between ranks of a cluster and the claim server of their run, as JSON beside plain bytes.


@dataclass(frozen=True, kw_only=True)
class NodeNeeds:
    """The requirements of a node that runs ranks."""

    program: str  # module whose ``asked_for`` reads the command line
    arguments: tuple[str, ...]  # command line after the program's name
    # Directory of the command; None if the cluster copies the working directory to each node.
    working_directory: str | None
    jobs_hash: str  # of the resolved jobs
    contents: dict[str, str]  # name -> hash or version of what jobs evaluate
    versions: dict[str, str]  # package -> version
    cpus: float  # cores per rank
    gpus: float  # GPUs per rank, or the fraction of one


@dataclass(frozen=True, kw_only=True)
class RunOrders:
    """The orders for every process of a run on a cluster."""

    run: str  # name of the run, for people
    needs: NodeNeeds
    config_hash: str  # of the plan's jobs
    output_directory: str
    attempt: Attempt  # the work left
    num_ranks: int  # at most at once
    node_directory: str | None  # on each node; None: the run's own if visible, else a temporary one


@dataclass(frozen=True, kw_only=True)
class Life:
    """One life of a rank. A rank that died may start again; messages of its earlier lives are ignored."""

    rank: int
    number: int = 0  # lives before this one


@dataclass(frozen=True, kw_only=True)
class ClaimQuestion:
    """The question of a rank for work, or for the state of the claims."""

    life: Life
    job_index: int | None = None  # None for the next job
    piece: int | None = None  # to claim; None to claim none, or a piece of the next job
    built_environment: str | None = None  # key of the rank's environment


@dataclass(frozen=True, kw_only=True)
class GivenPiece:
    """A piece that a rank now holds; see `Claim`."""

    job_index: int
    piece: int
    generation: int
    taken_from: int | None = None
    committed: EpisodeRanges = ()
    suspects: EpisodeRanges = ()


@dataclass(frozen=True, kw_only=True)
class BegunEpisodes:
    """Episodes of a piece that a rank may be playing from now on, unless they have ended."""

    life: Life
    job_index: int
    piece: int
    first: int  # index of the first episode
    last: int  # index of the last, equal to `first` if it is played alone


@dataclass(frozen=True, kw_only=True)
class LifeEnd:
    """The consequences of a rank's end."""

    pieces: int = 0  # open to other ranks again
    was_fruitful: bool = False  # the rank had finished something in that life
    lives_explained: int = 0  # deaths over an episode that is now an error, or a failed job


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The intervals of a rank's messages to the claim server, which limit the rate of all ranks together."""

    delivery_s: float = 0.25  # between two deliveries
    beat_s: float = 0.5  # longest silence before a heartbeat


@dataclass(frozen=True, kw_only=True)
class ClaimAnswer:
    """The claim server's answer to a `ClaimQuestion`."""

    is_gone: bool = False  # the claim server took the rank for dead, so it must end
    given: GivenPiece | None = None  # None if the rank got no piece
    open_pieces: EpisodeRanges = ()  # of the job in question, claimed by no rank
    num_unfinished_jobs: int = 0  # jobs with pieces that are open or under way
    pieces_of_others: int = 0  # under way on other ranks
    settled: str | None = None  # content of the job's ``settled.json``, None if missing
    rest_s: float = 0.5  # pause of a rank without a piece before it asks again


@dataclass(frozen=True, kw_only=True)
class SentEpisode:
    """A finished episode."""

    job: str  # name of the job
    line: str  # commit line
    size: int = 0  # of its file [bytes], 0 if nothing was recorded


@dataclass(frozen=True, kw_only=True)
class SentFile:
    """Another file of a rank, or a part of one."""

    path: str  # relative to the run's directory
    size: int  # of the bytes sent [bytes]
    offset: int | None = None  # of those bytes in a growing file [bytes]; None: a whole file


@dataclass(frozen=True, kw_only=True)
class FinishedPiece:
    """A piece whose last episode has ended."""

    job_index: int
    piece: int
    generation: int
    measured: Measured


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The results of a rank since the last delivery. The bytes of its files follow in the same order."""

    life: Life
    machine: str = ""  # identity of the rank's machine
    status: str | None = None  # JSON of a `RankStatus` that the claim server writes
    episodes: tuple[SentEpisode, ...] = ()
    files: tuple[SentFile, ...] = ()
    finished: tuple[FinishedPiece, ...] = ()  # pieces whose episodes have all been delivered, here or before
    failed: tuple[int, ...] = ()  # job indices


@dataclass(frozen=True, kw_only=True)
class DeliveryAnswer:
    """The claim server's answer to a delivery."""

    is_gone: bool = False  # the rank was taken for dead: nothing was kept, and it must end
    stop_signal: int | None = None  # signal that stops the run, None if none
    jobs_over: tuple[str, ...] = ()  # names of jobs that need no further episode
    pace: Pace = Pace()  # from now on


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """The end of a rank that did not die."""

    state: str | None = None  # final `RankState`, None for a refused rank
    refused: str | None = None  # reason why its node cannot take part
    host: str = ""  # name of the node
    node: str = ""  # id of the node in the cluster, empty if unknown


@dataclass(frozen=True, kw_only=True)
class ClaimServerState:
    """The state of a run, for the process that drives it."""

    num_unfinished_jobs: int  # jobs with pieces that are open or under way
    silent_s: dict[int, float]  # active rank -> time since its last message
    num_episodes: int = 0  # committed in this attempt
    busy_s: float = 0.0  # time spent on answers
    num_answers: int = 0


# The cluster options of a run, and their contradictions.


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(RunOptions):
    """Options of a run whose ranks may be on the nodes of a cluster."""

    cluster: Literal["ray"] | None = None
    """Run the ranks as actors of a Ray cluster, whose nodes need no shared disk; needs the extra ray."""
    ray_address: str = "auto"
    """With --cluster ray, the cluster: auto for the one of this node, local for a new one, or HOST:PORT."""
    num_ranks: Count = 1
    """With --cluster, the most ranks at once."""
    gpus_per_rank: Annotated[float, Field(ge=0)] = 0.0
    """With --cluster, GPUs of each rank: a whole number, or a part of one GPU such as 0.5."""
    cpus_per_rank: Annotated[float, Field(gt=0)] = 1.0
    """With --cluster, cores of each rank, and its number of physics threads."""
    start_timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """With --cluster, longest wait for the resources of the first rank [s]."""
    node_dir: str | None = None
    """With --cluster, directory on each node for files on their way to the run's directory. By default the run's
    directory if the node sees it, else a temporary one."""


def check_cluster(options: ClusterOptions) -> None:
    """Raise `ConfigError` with every contradiction of the cluster options."""
    asks, gpus = options.cluster is not None, options.gpus_per_rank
    asks_for_gpu = (options.device or "cpu").startswith("cuda")
    # Every option of this class except --cluster is useless without --cluster.
    own = [
        each
        for each in fields(ClusterOptions)
        if each.name in ClusterOptions.__annotations__ and each.name != "cluster"
    ]
    given = [each.name for each in own if getattr(options, each.name) != each.default]
    checks = [
        *((name, not asks, "says how to use a cluster; add --cluster ray") for name in given),
        (
            "cluster",
            asks and is_a_rank(),
            "starts the ranks itself; start this program once, without torchrun, srun or mpirun",
        ),
        *(
            (
                name,
                asks and getattr(options, name) is not None,
                "starts ranks on this node; leave it out with --cluster",
            )
            for name in ("gpu_ids", "nproc_per_node")
        ),
        (
            "assignment",
            asks and options.mode is Assignment.SPLIT,
            "ranks of a cluster claim work as they go: leave it out, or say dynamic",
        ),
        ("gpus_per_rank", gpus > 1, "a rank simulates on one GPU; give 1, or a part of one"),
        ("device", asks and asks_for_gpu and gpus == 0, f"'{options.device}' needs --gpus_per_rank 1"),
    ]
    problems = [Problem(message, key=f"--{name}") for name, is_wrong, message in checks if is_wrong]
    if problems:
        raise ConfigError(problems)
    if options.cluster is not None:
        check_optional_library(options.cluster, key="--cluster")


# Keep the ranks of a run on a cluster alive: restart them if they die, and end them with the run.

_LOG = logging.getLogger(__name__)
_INTERVAL_S = 0.5
_SILENT_S = 30.0
_GRACE_S = 30.0
_SAY_EVERY_S = 30.0
_RESTARTS_PER_RANK = 3
"""Restarts for each rank of the run. A restart after a life that finished something costs none."""


@dataclass(frozen=True, kw_only=True)
class EndedRank:
    """A rank that has ended."""

    life: Life
    end: RankEnd | None = None  # None if it died or raised an error
    error: Exception | None = None  # raised by the rank, None if it raised none
    reason: str = ""  # cause of its process's death, in one line


class Engine(Protocol):
    """Runs the processes of a run."""

    def start_claim_server(self, orders: RunOrders) -> None:
        """Start the claim server of the run on this node."""
        ...

    def state(self) -> ClaimServerState:
        """Return the state of the run."""
        ...

    def end_life(self, life: Life, reason: str) -> LifeEnd:
        """Tell the claim server that a rank has ended. `reason` is its death in one line, empty if it did not die."""
        ...

    def stop(self, signal_number: int) -> None:
        """Tell the claim server to stop the run."""
        ...

    def start_rank(self, life: Life) -> None:
        """Start a rank as soon as the cluster has the resources."""
        ...

    def waiting(self) -> Collection[Life]:
        """Return the started ranks without a process, because the cluster lacks the resources."""
        ...

    def wait(self, timeout_s: float) -> Sequence[EndedRank]:
        """Return the ranks that have ended since the last call; wait for `timeout_s` [s] at most."""
        ...

    def kill(self, life: Life) -> None:
        """End a rank at once, or cancel it if it has not started."""
        ...

    def avoid(self, node: str) -> None:
        """Start no rank on a node from now on."""
        ...

    def has_nodes(self) -> bool:
        """Whether a node that is not avoided has enough resources for a rank."""
        ...

    def resources(self) -> str:
        """Return the resources of the cluster in words."""
        ...


class RankSupervisor:
    """The ranks of a run."""

    def __init__(
        self,
        engine: Engine,
        orders: RunOrders,
        interruption: Interruption,  # request of the user to stop
        *,
        fail_fast: bool = False,  # stop the run after the first failed job
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failure: Exception | None = None  # first error of a rank, which ended the run; None without
        self._engine = engine
        self._orders = orders
        self._interruption = interruption
        self._fail_fast = fail_fast
        self._clock = clock
        self._lives = {rank: Life(rank=rank) for rank in range(orders.num_ranks)}
        self._max_restarts = self._restarts_left = _RESTARTS_PER_RANK * orders.num_ranks
        self._stop_by: float | None = None
        self._started_at: dict[int, float] = {}
        self._said_waiting_at: float | None = None
        self._refused: dict[str, str] = {}

    def work(self, start_timeout_s: float) -> None:
        """Start all ranks; return if no work or no rank is left. `DistributedError`: no rank or claim server starts."""
        self._engine.start_claim_server(self._orders)
        for life in self._lives.values():
            self._start(life)
        # `start_timeout_s` [s] limits the wait for the first rank only.
        began_s, has_begun = self._clock(), False
        while True:
            for ended in self._engine.wait(_INTERVAL_S):
                self._take_note(ended)
            state = self._engine.state()
            has_begun = has_begun or bool(state.silent_s)

            # Ranks without a message for too long are killed and treated as dead.
            for rank, silent_s in state.silent_s.items():
                silent = self._lives.get(rank)
                if silent_s > _SILENT_S and silent is not None:
                    self._engine.kill(silent)
                    self._take_note(EndedRank(life=silent, reason=f"nothing was heard of it for {silent_s:.0f} s"))

            # The run is over if no rank or no work is left, or if the ranks take too long to stop.
            if self._interruption.signal_number is not None:
                self._stop(self._interruption.signal_number)
            is_late = self._stop_by is not None and self._clock() > self._stop_by
            nothing_left = state.num_unfinished_jobs == 0 or self._stop_by is not None
            at_work = state.silent_s.keys() & self._lives.keys()
            if is_late or not self._lives or (nothing_left and not at_work):
                break
            self._say_who_waits(state)
            if not has_begun:
                self._give_up_in_time(began_s, start_timeout_s)
        for life in self._lives.values():
            self._engine.kill(life)
        per_answer_ms = 1000 * state.busy_s / max(1, state.num_answers)
        _LOG.debug("%d episodes were committed; an answer took %.2f ms", state.num_episodes, per_answer_ms)

    def _take_note(self, ended: EndedRank) -> None:
        rank = ended.life.rank
        if self._lives.get(rank) != ended.life:
            return
        # `reason` is set only if the process died, so only then its running episodes are suspected.
        end = self._engine.end_life(ended.life, ended.reason)
        del self._lives[rank]
        # After a lost claim server, a death or a refusal the rank gets another life. Any other error ends the run.
        if isinstance(ended.error, DistributedError):
            _LOG.error("rank %d has ended: %s; %d pieces are open to others again", rank, ended.error, end.pieces)
            self._begin_anew(ended.life, costs=int(not end.was_fruitful))
        elif ended.error is not None and self.failure is not None:
            _LOG.debug("rank %d has failed too: %s", rank, ended.error)
        elif ended.error is not None:
            # The first error ends the run, as with a launcher.
            self.failure = error = ended.error
            what = str(error) if isinstance(error, ArenaError) else f"{type(error).__name__}: {first_line(error)}"
            mend = ": make room, then go on with --resume" if isinstance(error, DiskUnusableError) else ""
            _LOG.error("rank %d has failed first: %s; the run stops%s", rank, what, mend)
            self._stop(signal.SIGTERM)
        elif ended.end is None:
            _LOG.error("rank %d has died: %s; %d pieces are open to others again", rank, ended.reason, end.pieces)
            self._restarts_left = min(self._restarts_left + end.lives_explained, self._max_restarts)
            self._begin_anew(ended.life, costs=int(not end.was_fruitful))
        elif ended.end.refused is not None:
            node = ended.end.node
            if node not in self._refused:
                self._refused[node] = f"node {ended.end.host} has no ranks of this run: it {ended.end.refused}"
                _LOG.error("%s", self._refused[node])
                self._engine.avoid(node)
            self._begin_anew(ended.life, costs=0)
        elif ended.end.state == RankState.FAILED and self._fail_fast:
            _LOG.error("a job failed on rank %d, and --fail_fast ends the run", rank)
            self._stop(signal.SIGTERM)

    def _begin_anew(self, life: Life, *, costs: int) -> None:
        if self._stop_by is not None:
            return
        if self._restarts_left < costs:
            _LOG.error("rank %d does not begin anew: ranks of this run have died too often", life.rank)
            return
        self._restarts_left -= costs
        self._lives[life.rank] = following = Life(rank=life.rank, number=life.number + 1)
        self._start(following)

    def _start(self, life: Life) -> None:
        self._engine.start_rank(life)
        self._started_at[life.rank] = self._clock()

    def _stop(self, signal_number: int) -> None:
        if self._stop_by is None:
            self._stop_by = self._clock() + _GRACE_S
            self._engine.stop(signal_number)

    def _say_who_waits(self, state: ClaimServerState) -> None:
        """Log the ranks without resources, and those that are starting up."""
        at = self._clock()
        unheard = [
            life
            for rank, life in self._lives.items()
            if rank not in state.silent_s and at - self._started_at[rank] > _SAY_EVERY_S
        ]
        if not unheard or (self._said_waiting_at is not None and at - self._said_waiting_at <= _SAY_EVERY_S):
            return
        self._said_waiting_at = at
        of_all, num_waiting = self._orders.num_ranks, len(set(unheard) & set(self._engine.waiting()))
        if num_waiting:
            _LOG.warning("%d of %d ranks wait for resources: %s", num_waiting, of_all, self._asked_and_had())
        if num_waiting < len(unheard):
            _LOG.info("%d of %d ranks are starting up", len(unheard) - num_waiting, of_all)

    def _give_up_in_time(self, began_s: float, start_timeout_s: float) -> None:
        if self._refused and not self._engine.has_nodes():
            raise DistributedError("; ".join(self._refused.values()))
        if self._clock() - began_s > start_timeout_s:
            num_processes = len(self._lives) - len(set(self._lives.values()) & set(self._engine.waiting()))
            if num_processes:
                raise DistributedError(
                    f"no rank has begun within {start_timeout_s:g} s, though {num_processes} have a process: look into "
                    "Ray's logs of them, or give a longer --start_timeout_s"
                )
            raise DistributedError(
                f"no rank could start within {start_timeout_s:g} s: {self._asked_and_had()}; ask for less, add nodes, "
                "or give a longer --start_timeout_s"
            )

    def _asked_and_had(self) -> str:
        gpus = f" and {self._orders.needs.gpus:g} GPU" if self._orders.needs.gpus else ""
        return f"each asks for {self._orders.needs.cpus:g} CPU{gpus}, and the cluster has {self._engine.resources()}"

"""What ranks of a cluster and the keeper of their run say to each other, as JSON beside plain bytes."""

from dataclasses import dataclass

from isaaclab_arena.episode_ranges import EpisodeRanges
from isaaclab_arena.evaluation.claims import Measured
from isaaclab_arena.storage.run_plan import Attempt


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
    """The intervals of a rank's messages to the keeper, which limit the rate of all ranks together."""

    delivery_s: float = 0.25  # between two deliveries
    beat_s: float = 0.5  # longest silence before a heartbeat


@dataclass(frozen=True, kw_only=True)
class ClaimAnswer:
    """The keeper's answer to a `ClaimQuestion`."""

    is_gone: bool = False  # the keeper took the rank for dead, so it must end
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
    status: str | None = None  # JSON of a `RankStatus` that the keeper writes
    episodes: tuple[SentEpisode, ...] = ()
    files: tuple[SentFile, ...] = ()
    finished: tuple[FinishedPiece, ...] = ()  # pieces whose episodes have all been delivered, here or before
    failed: tuple[int, ...] = ()  # job indices


@dataclass(frozen=True, kw_only=True)
class DeliveryAnswer:
    """The keeper's answer to a delivery."""

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
class KeeperState:
    """The state of a run, for the process that drives it."""

    num_unfinished_jobs: int  # jobs with pieces that are open or under way
    silent_s: dict[int, float]  # active rank -> time since its last message
    num_episodes: int = 0  # committed in this attempt
    busy_s: float = 0.0  # time spent on answers
    num_answers: int = 0

"""What ranks of a cluster and the keeper of their run say to each other, as JSON beside plain bytes."""

from dataclasses import dataclass

from isaaclab_arena.episode_ranges import EpisodeRanges
from isaaclab_arena.evaluation.claims import Measured
from isaaclab_arena.storage.run_plan import Attempt


@dataclass(frozen=True, kw_only=True)
class NodeNeeds:
    """What a node needs in order to have ranks of a run.

    Attributes:
        program: Module of the program, whose ``asked_for`` reads the command line.
        arguments: The command line, after the program's name.
        working_directory: Where it was typed; None where the cluster brings the working directory to each node.
        jobs_hash: Hash of the resolved jobs.
        contents: Hash or version of everything that the jobs evaluate, by name.
        versions: Package to version.
        cpus: Cores of a rank.
        gpus: GPUs of a rank, or the part of one.
    """

    program: str
    arguments: tuple[str, ...]
    working_directory: str | None
    jobs_hash: str
    contents: dict[str, str]
    versions: dict[str, str]
    cpus: float
    gpus: float


@dataclass(frozen=True, kw_only=True)
class RunOrders:
    """What every process of a run on a cluster needs to know.

    Attributes:
        run: Names the run, for people.
        needs: What its node needs.
        config_hash: Hash of the plan's jobs.
        output_directory: The run's directory.
        attempt: What is left to do.
        num_ranks: How many ranks there may be at once.
        node_directory: Directory of each node for its ranks' files; None for the run's own, or else a temporary one.
    """

    run: str
    needs: NodeNeeds
    config_hash: str
    output_directory: str
    attempt: Attempt
    num_ranks: int
    node_directory: str | None


@dataclass(frozen=True, kw_only=True)
class Life:
    """One life of a rank: a rank that died may begin anew, and then what the earlier life says does not count.

    Attributes:
        rank: The rank.
        number: How many lives it had before.
    """

    rank: int
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class ClaimQuestion:
    """A rank asks for work, or how things are.

    Attributes:
        life: Who asks.
        job_index: The job in question, None for whichever comes next.
        piece: The piece to claim, None to claim none, or that of the job that comes next.
        built_environment: Key of the environment that the rank has built.
    """

    life: Life
    job_index: int | None = None
    piece: int | None = None
    built_environment: str | None = None


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
    """Episodes of a piece that a rank may be playing from now on, as far as they have not ended.

    Attributes:
        life: Who says it.
        job_index: Their job.
        piece: The piece that the rank holds.
        first: Index of the first of them.
        last: Index of the last, which is the first where it is played alone.
    """

    life: Life
    job_index: int
    piece: int
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class LifeEnd:
    """What the end of a rank means for the run.

    Attributes:
        pieces: How many pieces others are to take over.
        was_fruitful: Whether the rank had finished anything in that life.
        lives_explained: How many ranks had died over an episode that is now an error, 0 if none is.
    """

    pieces: int = 0
    was_fruitful: bool = False
    lives_explained: int = 0


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often a rank may speak to the keeper, so that all ranks together do not speak too often.

    Attributes:
        delivery_s: Time between two deliveries of something [s].
        beat_s: After how much silence a rank says that it lives [s].
    """

    delivery_s: float = 0.25
    beat_s: float = 0.5


@dataclass(frozen=True, kw_only=True)
class ClaimAnswer:
    """What the keeper says to a `ClaimQuestion`.

    Attributes:
        is_gone: Whether the rank was taken for dead, and has to end.
        given: The piece that the rank has claimed, None if it got none.
        open_pieces: Pieces of the job in question that nobody works on.
        num_unfinished_jobs: Jobs with pieces that are free or under way.
        pieces_of_others: Pieces that other ranks work on.
        settled: What the job's file ``settled.json`` holds, None as long as there is none.
        rest_s: When a rank that got nothing may ask again [s].
    """

    is_gone: bool = False
    given: GivenPiece | None = None
    open_pieces: EpisodeRanges = ()
    num_unfinished_jobs: int = 0
    pieces_of_others: int = 0
    settled: str | None = None
    rest_s: float = 0.5


@dataclass(frozen=True, kw_only=True)
class SentEpisode:
    """A finished episode.

    Attributes:
        job: Name of its job.
        line: Its commit line.
        size: Length of its file [bytes], 0 where nothing was recorded.
    """

    job: str
    line: str
    size: int = 0


@dataclass(frozen=True, kw_only=True)
class SentFile:
    """Another file of a rank, or a part of one.

    Attributes:
        path: Its path in the run's directory.
        size: How much of it comes [bytes].
        offset: Where that begins in a file that grows [bytes]; None for a whole file.
    """

    path: str
    size: int
    offset: int | None = None


@dataclass(frozen=True, kw_only=True)
class FinishedPiece:
    """A piece whose last episode has ended."""

    job_index: int
    piece: int
    generation: int
    measured: Measured


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What a rank has done since the last delivery; the bytes of its files come beside it, in the same order.

    Attributes:
        life: Who sends it.
        machine: Identity of its machine.
        status: What the rank says of itself, where the keeper is to write that down; see `RankStatus`.
        episodes: Finished episodes.
        files: Other files.
        finished: Pieces of which every episode is in this delivery or in an earlier one.
        failed: Indices of jobs that have failed.
    """

    life: Life
    machine: str = ""
    status: str | None = None
    episodes: tuple[SentEpisode, ...] = ()
    files: tuple[SentFile, ...] = ()
    finished: tuple[FinishedPiece, ...] = ()
    failed: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DeliveryAnswer:
    """What the keeper says to a delivery.

    Attributes:
        is_gone: Whether the rank was taken for dead: nothing of the delivery was kept, and the rank has to end.
        stop_signal: The signal that asks the run to stop, None if none does.
        jobs_over: Names of the jobs of which no further episode is needed.
        pace: How often to speak from now on.
    """

    is_gone: bool = False
    stop_signal: int | None = None
    jobs_over: tuple[str, ...] = ()
    pace: Pace = Pace()


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How a rank ended that did not die.

    Attributes:
        state: Its last state; None for a rank that was refused.
        refused: Why its node cannot take part.
        host: Name of the node.
        node: What the cluster calls the node, empty where nobody knows.
    """

    state: str | None = None
    refused: str | None = None
    host: str = ""
    node: str = ""


@dataclass(frozen=True, kw_only=True)
class KeeperState:
    """How a run stands, for the process that drives it.

    Attributes:
        num_unfinished_jobs: Jobs with pieces that are free or under way.
        silent_s: How long each rank at work has said nothing [s].
        num_episodes: Episodes committed in this attempt.
        busy_s: Time spent on answers [s].
        num_answers: Answers given.
    """

    num_unfinished_jobs: int
    silent_s: dict[int, float]
    num_episodes: int = 0
    busy_s: float = 0.0
    num_answers: int = 0

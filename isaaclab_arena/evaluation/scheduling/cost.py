"""Choose the next job of a free rank. Pure functions, which ranks and their simulation use.

The job with the longest expected time comes first, divided by the ranks that would share it. So ranks begin with
different jobs, build few environments, and share the last jobs. Towards the end those with long pieces come first: a
long episode that begins late keeps one rank busy while the others have nothing left.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_END_IN_PIECES = 8
"""The end of a run begins for a job when what is left to each rank takes as long as so many pieces of it."""

_WEIGHT_OF_A_PIECE = 16
"""How often the time of a piece counts then. The makespan of a simulated hour hardly changes between 8 and 32."""

_STEPS_PER_EPISODE = 100
"""What an episode counts for beside a job that is limited by steps, until something has been measured."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a rank did in a stretch of work on one job.

    Attributes:
        episodes: Episodes that ended.
        env_steps: Control steps summed over running env slots.
        seconds: How long it took [s].
    """

    episodes: int
    env_steps: int
    seconds: float

    def __add__(self, other: "Measured") -> "Measured":
        return Measured(
            episodes=self.episodes + other.episodes,
            env_steps=self.env_steps + other.env_steps,
            seconds=self.seconds + other.seconds,
        )


class Measurements:
    """Sums what was measured, by job, by jobs of one kind, and over all jobs.

    Args:
        kinds: What each job has in common with others, its environment and policy, by the job's index.
    """

    def __init__(self, kinds: Mapping[int, str]) -> None:
        self._kinds = kinds
        self._totals: dict[int | str | None, Measured] = {}

    def add(self, job_index: int, measured: Measured) -> None:
        """Add what was measured of a job."""
        for group in self._groups(job_index):
            known = self._totals.get(group)
            self._totals[group] = measured if known is None else known + measured

    def of(self, job_index: int) -> tuple[Measured, ...]:
        """Return what was measured of the job, of its kind and of all jobs, in this order, as far as anything was."""
        return tuple(self._totals[group] for group in self._groups(job_index) if group in self._totals)

    def _groups(self, job_index: int) -> tuple[int | str | None, ...]:
        return job_index, self._kinds[job_index], None


def expected_s(measured: Iterable[Measured], *, episodes: int = 0, env_steps: int = 0) -> float:
    """Return how long one rank would take for an amount of work [s], which is given in one of two units.

    Before anything is measured it is a number that orders jobs by their episodes.

    Args:
        measured: From `Measurements.of`; the first that says something about the unit counts.
        episodes: Episodes to run.
        env_steps: Control steps to make, summed over env slots, for a job that is limited by steps.
    """
    for known in measured:
        if known.seconds <= 0.0:
            continue
        if env_steps and known.env_steps:
            return env_steps * known.seconds / known.env_steps
        if episodes and known.episodes:
            return episodes * known.seconds / known.episodes
    return episodes + env_steps / _STEPS_PER_EPISODE


@dataclass(frozen=True, kw_only=True)
class OpenWork:
    """What is left of a job that nobody works on.

    Attributes:
        job_index: The job.
        expected_s: How long one rank would take for it [s].
        piece_s: How long one rank would take for the next piece of it [s].
        num_ranks: Ranks at work on other parts of the job.
        environment_key: Equal for jobs that can use the same environment.
    """

    job_index: int
    expected_s: float
    piece_s: float = 0.0
    num_ranks: int = 0
    environment_key: str


def order_of_work(open_work: Sequence[OpenWork]) -> list[OpenWork]:
    """Return jobs in the order in which a free rank takes them.

    The most work for each rank on it comes first, and in the end what has long pieces.
    """
    left_s = sum(work.expected_s for work in open_work) / max(1, sum(work.num_ranks for work in open_work))
    return sorted(open_work, key=lambda work: (-_urgency_s(work, left_s), work.job_index))


def _urgency_s(work: OpenWork, left_s: float) -> float:
    share_s = work.expected_s / (1 + work.num_ranks)
    is_the_end = _END_IN_PIECES * work.piece_s > left_s
    return share_s + _WEIGHT_OF_A_PIECE * work.piece_s if is_the_end else share_s


def choose(order: Sequence[OpenWork], built_environment: str | None) -> int:
    """Return the position of the job to take: the first one, or the first that spares building an environment.

    Only the longer half counts for sparing, so that a long job never waits behind many short ones.

    Args:
        order: From `order_of_work`; not empty.
        built_environment: Key of the environment that the rank has built, None if it has none.
    """
    longer_half = order[: (len(order) + 1) // 2]
    return next((position for position, work in enumerate(longer_half) if work.environment_key == built_environment), 0)


def slots_to_use(num_envs: int, *, open_episodes: int, world_size: int, unfinished_jobs: int) -> int:
    """Return how many env slots a rank uses of a job that several ranks may share.

    A rank that started an episode in every slot could take a whole job before others join. So it leaves room for as
    many ranks as there are for each unfinished job: for all of them at the last job, for itself alone as long as
    there is a job for each rank.

    Args:
        num_envs: Env slots of the job.
        open_episodes: Episodes of the job that nobody has started, with those that this rank has claimed.
        world_size: Number of ranks.
        unfinished_jobs: Jobs that are not finished, this one included.
    """
    sharing_ranks = -(-world_size // max(1, unfinished_jobs))
    return max(1, min(num_envs, -(-open_episodes // sharing_ranks)))

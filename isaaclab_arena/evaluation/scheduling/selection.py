"""Which job a free rank works on next: pure rules, used by the ranks themselves and by a simulation of them.

Longest expected first, measured per rank that would share it: so ranks begin with different jobs, build few
environments, and help each other when jobs run out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_STEPS_PER_EPISODE = 100
"""What an episode counts for beside a job that is limited by steps, until something has been measured."""


@dataclass(frozen=True, kw_only=True)
class WorkSize:
    """How much there is to do; one of the two is given.

    Attributes:
        episodes: Episodes to run.
        env_steps: Control steps summed over rows, for a job that is limited by steps.
    """

    episodes: int = 0
    env_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a rank did in a stretch of work on one job.

    Attributes:
        episodes: Episodes that ended.
        env_steps: Control steps summed over running rows.
        seconds: How long it took [s].
    """

    episodes: int
    env_steps: int
    seconds: float


class ExpectedWork:
    """How long work will take, from what was measured of the same job, of its kind, or of any job.

    Args:
        kinds: For each job what it has in common with others: its environment and policy.
    """

    def __init__(self, kinds: Mapping[int, str]) -> None:
        self._kinds = kinds
        self._totals: dict[int | str | None, Measured] = {}

    def learn(self, job_index: int, measured: Measured) -> None:
        """Take note of what was measured."""
        for group in self._groups(job_index):
            known = self._totals.get(group, Measured(episodes=0, env_steps=0, seconds=0.0))
            self._totals[group] = Measured(
                episodes=known.episodes + measured.episodes,
                env_steps=known.env_steps + measured.env_steps,
                seconds=known.seconds + measured.seconds,
            )

    def seconds(self, job_index: int, size: WorkSize) -> float:
        """Return how long a rank would take for this much of a job [s].

        Before anything is measured it is a number that orders jobs by their episodes.
        """
        for group in self._groups(job_index):
            known = self._totals.get(group)
            if known is None or known.seconds <= 0.0:
                continue
            if size.env_steps and known.env_steps:
                return size.env_steps * known.seconds / known.env_steps
            if size.episodes and known.episodes:
                return size.episodes * known.seconds / known.episodes
        return size.episodes + size.env_steps / _STEPS_PER_EPISODE

    def _groups(self, job_index: int) -> tuple[int | str | None, ...]:
        return job_index, self._kinds[job_index], None


@dataclass(frozen=True, kw_only=True)
class OpenWork:
    """What is left of a job that nobody works on.

    Attributes:
        job_index: The job.
        expected_s: How long one rank would take for it [s].
        num_ranks: Ranks at work on other parts of the job.
        environment_key: Equal for jobs that can use the same environment.
    """

    job_index: int
    expected_s: float
    num_ranks: int = 0
    environment_key: str


def order_of_work(open_work: Sequence[OpenWork]) -> list[OpenWork]:
    """Return jobs in the order in which a free rank takes them: the most work for each rank on it comes first."""
    return sorted(open_work, key=lambda work: (-work.expected_s / (1 + work.num_ranks), work.job_index))


def choose(order: Sequence[OpenWork], built_environment: str | None) -> int:
    """Return the position of the job to take: the first one, or the first that spares building an environment.

    Only the longer half counts for sparing, so that a long job never waits behind many short ones.

    Args:
        order: From `order_of_work`; not empty.
        built_environment: Key of the environment that the rank has built, None if it has none.
    """
    longer_half = order[: (len(order) + 1) // 2]
    return next((position for position, work in enumerate(longer_half) if work.environment_key == built_environment), 0)


def rows_to_use(num_envs: int, *, open_episodes: int, world_size: int, unfinished_jobs: int) -> int:
    """Return how many rows a rank uses of a job that several ranks may share.

    A rank that started an episode in every row could swallow a whole job before others join. So it leaves room for as
    many ranks as there are for each job that is not finished: all of them for the last one, none but itself as long
    as there is a job for each.

    Args:
        num_envs: Rows of the job.
        open_episodes: Episodes of the job that nobody has started, with those that this rank has claimed.
        world_size: Number of ranks.
        unfinished_jobs: Jobs that are not finished, this one included.
    """
    sharing_ranks = -(-world_size // max(1, unfinished_jobs))
    return max(1, min(num_envs, -(-open_episodes // sharing_ranks)))

"""Measure how long a policy's queries take, once, on one rank for all, before the plan is written.

Ranks that each measured for themselves would play other episodes than each other, and so would a run that is resumed.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch

from isaaclab_arena.config.schema import Delays, JobStatus, Meanwhile
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.batching.policy_probe import made_up
from isaaclab_arena.evaluation.latency.answers import Answers, answers_of
from isaaclab_arena.evaluation.latency.continuing import continuation
from isaaclab_arena.evaluation.latency.delays import in_time
from isaaclab_arena.evaluation.latency.refusals import refusals
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.process.left_alone import put_back
from isaaclab_arena.evaluation.startup.settled_backends import Machinery
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.storage.run.attempts import Attempt, AttemptEntry

NUM_QUERIES = 40
QUANTILE = 95
"""Up to which quantile of the measured times answers are late [%]."""
_NUM_WARM_UP = 3
_SEED = 2_506_073

_LOG = logging.getLogger(__name__)

Asked: TypeAlias = Callable[[Job], AbstractContextManager[PolicyBase]]
"""Builds a job's policy for a ``with`` block."""


@contextmanager
def asked_policy(job: Job) -> Iterator[PolicyBase]:
    """Build a job's policy with a network of its own, for a ``with`` block."""
    policy = job.build_policy()
    try:
        yield policy
    finally:
        policy.close()


def settle_latencies(
    jobs: Sequence[Job],
    machinery: Machinery,
    *,
    known: Mapping[str, Delays],
    asked: Asked = asked_policy,
    watch: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> dict[str, Delays]:
    """Return how late the answers are in each job that has its latency measured, by its name.

    Args:
        jobs: The jobs that are to run.
        machinery: What the ranks simulate with.
        known: What was measured when the run began, by job; it stands.
        asked: Builds the policy that is asked.
        watch: Entered while something is measured for the named job.

    Raises:
        ConfigError: If nothing can be measured here, or it is too late for what a job says the robot does meanwhile.
    """
    settled: dict[str, Delays] = {}
    problems: list[Problem] = []
    for job in filter(_is_to_measure, jobs):
        name = job.config.name
        if name in known:
            settled[name] = known[name]
            continue
        if not machinery.measures:
            problems.append(_unmeasurable(name, machinery))
            continue
        with watch(name):
            measured = _tried(job, machinery, asked)
        if measured is None:
            continue
        problems += [replace(each, job=name) for each in measured.problems]
        settled[name] = measured.delays
        _LOG.info("job '%s': the answers of its policy are %s late here; %s", name, measured.delays, measured.quantiles)
    if problems:
        raise ConfigError(problems)
    return settled


def with_latencies(work: Sequence[AttemptEntry], settled: Mapping[str, Delays]) -> list[AttemptEntry]:
    """Return what is left to do, with how late answers are where that was measured."""
    return [replace(each, latency=settled.get(each.job)) for each in work]


def with_settled_latencies(jobs: Sequence[Job], attempt: Attempt) -> tuple[Job, ...]:
    """Return the jobs of a run as every rank of an attempt runs them."""
    settled = {work.job: work.latency for work in attempt.jobs}
    return tuple(job.with_delays(settled.get(job.config.name)) for job in jobs)


def _unmeasurable(name: str, machinery: Machinery) -> Problem:
    message = (
        "is 'measured' where the run is started, and no GPU is there, but its ranks are on "
        f"{machinery.devices[0]}: give steps, ms or a file of measured times"
    )
    return Problem(message, job=name, key="latency")


@dataclass(frozen=True, kw_only=True)
class _Measured:
    delays: Delays
    quantiles: str
    problems: Sequence[Problem]


def _is_to_measure(job: Job) -> bool:
    is_pending = job.config.status is JobStatus.PENDING
    return is_pending and job.latency is not None and job.latency.config.measured


def _tried(job: Job, machinery: Machinery, asked: Asked) -> _Measured | None:
    """Measure a job; None where its policy raises, because then the job will fail by itself, and say so."""
    try:
        with put_back(f"job '{job.config.name}'"):
            return _measured_latency(job, machinery, asked)
    except Exception as error:  # noqa: BLE001  what one policy raises must not stop the others
        _LOG.debug("job '%s' cannot be measured: %s", job.config.name, error)
        return None


def _measured_latency(job: Job, machinery: Machinery, asked: Asked) -> _Measured:
    """Return the delays that queries about one env slot take, which is what a robot asks, and why they are too long."""
    meanwhile = Meanwhile.WAIT if job.latency is None else job.latency.config.meanwhile
    one = job.with_num_envs(1, policy_num_envs=1)
    environment = one.build_environment(device=torch.device(machinery.devices[0]), num_threads=machinery.num_threads)
    try:
        with asked(one) as policy:
            answers = answers_of(policy, waits=meanwhile is Meanwhile.WAIT)
            times_ms = query_times_ms(policy, answers, environment, continues=meanwhile is Meanwhile.RTC)
        delays = in_time(without_outliers(times_ms), environment.control_dt)
        middle, high, longest = np.percentile(times_ms, (50, QUANTILE, 100))
        quantiles = f"{middle:.1f} ms (p50), {high:.1f} ms (p{QUANTILE}), {longest:.1f} ms (longest of {len(times_ms)})"
        problems = refusals(delays, meanwhile, environment, traits=answers.traits)
        return _Measured(
            delays=delays,
            quantiles=quantiles,
            problems=[replace(each, message=f"{each.message}; measured here: {quantiles}") for each in problems],
        )
    finally:
        environment.close()


def without_outliers(times_ms: Sequence[float]) -> list[float]:
    """Return the times with those above the quantile `QUANTILE` as long as that, which is one of them.

    What a chunk has to last is set by the longest: one query during which the machine did something else would
    decide that.
    """
    most = float(np.percentile(times_ms, QUANTILE, method="higher"))
    return [min(each, most) for each in times_ms]


@torch.no_grad()
def query_times_ms(
    policy: PolicyBase, answers: Answers, environment: Environment, *, continues: bool = False
) -> list[float]:
    """Return how long queries of a policy about made-up observations take [ms].

    Args:
        policy: The policy.
        answers: How it is asked.
        environment: An environment of one env slot; it is neither reset nor stepped.
        continues: Whether each chunk goes on from the one before, which takes a network longer.
    """
    generator = np.random.default_rng(_SEED)
    going_on, times_ms = None, []
    continues = continues and answers.traits.can_continue
    policy.check_environment(environment)
    for number in range(_NUM_WARM_UP + NUM_QUERIES):
        episode = Episode(job="measured latency", episode_index=number, seed=_SEED)
        conditions = environment.draw_conditions(episode.conditions_generator())
        words = environment.instruction(conditions)
        start = EpisodeStart(env_id=0, episode=episode, conditions=conditions, language_instruction=words)
        policy.start_episodes(environment, [start])
        observation = made_up(environment.observation_spec, 1, generator, environment.device)
        began_s = time.perf_counter()
        answers.look(environment, observation, [0])
        chunks = answers.chunks(environment, observation, [0], going_on)
        times_ms.append(1000.0 * (time.perf_counter() - began_s))
        if continues:
            going_on = continuation(chunks, torch.tensor([answers.traits.played // 2]), committed=1)
    return times_ms[_NUM_WARM_UP:]

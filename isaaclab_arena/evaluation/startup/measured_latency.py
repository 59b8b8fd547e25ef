"""Measure how long a policy's queries take, once, on one rank for all, before the plan is written.

Ranks that each measured for themselves would play other episodes than each other, and so would a run that is resumed.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import torch

from isaaclab_arena.config.latency import Delays
from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.evaluation.batching.policy_probe import made_up
from isaaclab_arena.evaluation.latency.answers import answers_of
from isaaclab_arena.evaluation.latency.delays import in_time
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.startup.settled_backends import Machinery
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.storage.run.attempts import Attempt, AttemptEntry

NUM_QUERIES = 40
_NUM_WARM_UP = 3
_SEED = 2_506_073

_LOG = logging.getLogger(__name__)


def settle_latencies(
    jobs: Sequence[Job],
    machinery: Machinery,
    *,
    known: Mapping[str, Delays],
    watch: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> dict[str, Delays]:
    """Return how late the answers are in each job that has its latency measured, by its name.

    Args:
        jobs: The jobs that are to run.
        machinery: What the ranks simulate with.
        known: What was measured when the run began, by job; it stands.
        watch: Entered while something is measured for the named job.
    """
    settled: dict[str, Delays] = {}
    for job in jobs:
        name = job.config.name
        is_pending = job.config.status is JobStatus.PENDING
        if job.latency is None or not job.latency.config.measured or not is_pending:
            continue
        if name in known:
            settled[name] = known[name]
            continue
        with watch(name):
            try:
                settled[name] = _measured(job, machinery)
            except Exception as error:  # noqa: BLE001  what one policy raises must not stop the others
                # Its job will fail by itself, and say so.
                _LOG.debug("job '%s' cannot be measured: %s", name, error)
                continue
        _LOG.info("job '%s': the answers of its policy are %s late here", name, settled[name])
    return settled


def with_latencies(work: Sequence[AttemptEntry], settled: Mapping[str, Delays]) -> list[AttemptEntry]:
    """Return what is left to do, with how late answers are where that was measured."""
    return [replace(each, latency=settled.get(each.job)) for each in work]


def with_settled_latencies(jobs: Sequence[Job], attempt: Attempt) -> tuple[Job, ...]:
    """Return the jobs of a run as every rank of an attempt runs them."""
    settled = {work.job: work.latency for work in attempt.jobs}
    return tuple(job.with_delays(settled.get(job.config.name)) for job in jobs)


def _measured(job: Job, machinery: Machinery) -> Delays:
    """Return the delays that queries about one env slot take, which is what a robot asks."""
    one = job.with_num_envs(1, policy_num_envs=1)
    environment = one.build_environment(device=torch.device(machinery.devices[0]), num_threads=machinery.num_threads)
    try:
        policy = one.build_policy()
        try:
            return in_time(query_times_ms(policy, environment), environment.control_dt)
        finally:
            policy.close()
    finally:
        environment.close()


@torch.no_grad()
def query_times_ms(policy: PolicyBase, environment: Environment) -> list[float]:
    """Return how long queries of a policy about made-up observations take [ms].

    Args:
        policy: The policy.
        environment: An environment of one env slot; it is neither reset nor stepped.
    """
    generator = np.random.default_rng(_SEED)
    answers, times_ms = answers_of(policy, waits=True), []
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
        answers.chunks(environment, observation, [0], None)
        times_ms.append(1000.0 * (time.perf_counter() - began_s))
    return times_ms[_NUM_WARM_UP:]

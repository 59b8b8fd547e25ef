"""What one rank settles for all before the plan is written: backends, latency, policy servers."""

import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from isaaclab_arena.config.schema import Delays, JobStatus, Meanwhile, PolicyServerConfig, ServerScope
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, refuse
from isaaclab_arena.evaluation.batching import made_up
from isaaclab_arena.evaluation.job import OPEN_BACKEND, Job
from isaaclab_arena.evaluation.latency import Answers, continuation, in_time, refusals
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.policy_client import (
    DEVICE_OPTION,
    NetworkOrder,
    PolicyServer,
    ServedNetwork,
    ServerAddress,
    ServerOrders,
)
from isaaclab_arena.evaluation.process import put_back
from isaaclab_arena.evaluation.rollout import group_sizes
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.storage.layout import RUN_PLAN_FILE
from isaaclab_arena.storage.ledger import Attempt

# Choose the backend of each job of a run, once, on one rank for all, before the plan is written.
#
# Ranks that timed the backends separately could choose different physics, and so could the groups of a job's env slots.

_LOG = logging.getLogger(__name__)
_ON_CPU = "mujoco"
_ON_GPU = "warp"


@dataclass(frozen=True, kw_only=True)
class Machinery:
    """The devices and threads that the ranks simulate with."""

    devices: tuple[str, ...]  # by rank
    num_threads: int  # of the physics on the rank that measures
    num_groups: int = 1  # groups of a job's env slots
    # Whether this process can measure for the ranks. The head of a cluster may lack the GPUs that its ranks have.
    measures: bool = True


def settle_backends(
    jobs: Sequence[Job],
    machinery: Machinery,
    *,
    known: Mapping[str, str] | None = None,
    watch: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> dict[str, str]:
    """Map each pending job to its backend; jobs whose environment has no choice are left out."""
    measured: dict[str, str] = {}
    settled: dict[str, str] = {}
    # A job keeps the backend that it names, or that the run began with. An open one is MuJoCo unless every rank has a
    # GPU; then the faster one is measured, once for equal environments, if this process can. `watch` is entered during
    # it.
    for job in jobs:
        asked, name = job.asked_backend, job.config.name
        if asked is None or job.config.status is not JobStatus.PENDING:
            continue
        if asked != OPEN_BACKEND:
            settled[name] = asked
        elif known is not None and name in known:
            settled[name] = known[name]
        elif any(torch.device(device).type != "cuda" for device in machinery.devices):
            settled[name] = _ON_CPU
        elif not machinery.measures:
            _LOG.warning(
                "job '%s' runs on %s: which backend is faster is measured where the run is started, and no GPU is "
                "there; 'backend: %s' in its arena_env_args chooses the other one",
                name,
                _ON_CPU,
                _ON_GPU,
            )
            settled[name] = _ON_CPU
        else:
            key = job.environment_key
            if key not in measured:
                with watch(name):
                    measured[key] = _faster_backend(job, machinery)
            settled[name] = measured[key]
    return settled


def refuse_slow_backends(jobs: Sequence[Job], settled: Mapping[str, str | None], machinery: Machinery) -> None:
    """Refuse to resume jobs without GPUs that were settled on MuJoCo-Warp because there were GPUs."""
    # `settled`: the backend of each job that runs. On a CPU MuJoCo-Warp is several times slower than MuJoCo, and the
    # user did not ask for it there.
    left_open = {job.config.name for job in jobs if job.asked_backend == OPEN_BACKEND}
    slow = [name for name, backend in settled.items() if backend == _ON_GPU and name in left_open]
    without = dict.fromkeys(device for device in machinery.devices if torch.device(device).type != "cuda")
    if slow and without:
        message = (
            f"is simulated by MuJoCo-Warp since the run began on GPUs, and now ranks are on {', '.join(without)}; "
            "go on with a GPU for every rank, or start a new run"
        )
        raise ConfigError([Problem(message, job=name, key="arena_env_args.backend") for name in slow])


def _faster_backend(job: Job, machinery: Machinery) -> str:
    """Return the faster backend for a job's largest group of env slots."""
    builder, num_envs = job.builder, job.config.num_envs
    try:
        return builder.faster_backend(
            job.environment_config,
            num_envs=group_sizes(num_envs, min(machinery.num_groups, num_envs))[0],
            device=torch.device(machinery.devices[0]),
            num_threads=machinery.num_threads,
            variations=job.variations,
        )
    except ArenaError as error:
        # The job will fail with this error when it is built, without the others.
        _LOG.debug("job '%s' cannot be measured: %s", job.config.name, error)
        return _ON_CPU


# Measure how long a policy's queries take, once, on one rank for all, before the plan is written.
#
# Ranks that measured separately would play different episodes, and so would a run that is resumed.

NUM_QUERIES = 40
QUANTILE = 95
"""Up to which quantile of the measured times answers are late [%]."""

Asked: TypeAlias = Callable[[Job], AbstractContextManager[PolicyBase]]
"""Builds a job's policy for a ``with`` block."""


def settle_latencies(
    jobs: Sequence[Job],
    machinery: Machinery,
    *,
    known: Mapping[str, Delays],
    asked: Asked = lambda job: closing(job.build_policy()),
    watch: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> dict[str, Delays]:
    """Map each job with a measured latency to its delays; `ConfigError` if it cannot be measured or is too long."""
    # `known`: measured when the run began; it stays. `asked` builds the policy. `watch` is entered during a
    # measurement.
    settled: dict[str, Delays] = {}
    problems: list[Problem] = []
    for job in jobs:
        name, latency = job.config.name, job.latency
        if job.config.status is not JobStatus.PENDING or latency is None or not latency.config.measured:
            continue
        if name in known:
            settled[name] = known[name]
            continue
        if not machinery.measures:
            message = "is 'measured' where the run is started, and no GPU is there, but its ranks are on "
            message += f"{machinery.devices[0]}: give steps, ms or a file of measured times"
            problems.append(Problem(message, job=name, key="latency"))
            continue
        with watch(name):
            try:
                with put_back(f"job '{name}'"):
                    settled[name], quantiles, refused = _measured_latency(
                        job, machinery, asked, latency.config.meanwhile
                    )
            except Exception as error:  # noqa: BLE001  the job will fail with this error itself, without the others
                _LOG.debug("job '%s' cannot be measured: %s", name, error)
                continue
        problems += [replace(each, job=name, message=f"{each.message}; measured here: {quantiles}") for each in refused]
        _LOG.info("job '%s': the answers of its policy are %s late here; %s", name, settled[name], quantiles)
    refuse(problems)
    return settled


def _measured_latency(
    job: Job, machinery: Machinery, asked: Asked, meanwhile: Meanwhile
) -> tuple[Delays, str, list[Problem]]:
    """Return the delays of queries about one env slot, their quantiles in words, and problems with them."""
    one = job.with_num_envs(1, policy_num_envs=1)
    environment = one.build_environment(device=torch.device(machinery.devices[0]), num_threads=machinery.num_threads)
    try:
        with asked(one) as policy:
            answers = Answers(policy, waits=meanwhile is Meanwhile.WAIT)
            times_ms = query_times_ms(policy, answers, environment, continues=meanwhile is Meanwhile.RTC)
        delays = in_time(without_outliers(times_ms), environment.control_dt)
        middle, high, longest = np.percentile(times_ms, (50, QUANTILE, 100))
        quantiles = f"{middle:.1f} ms (p50), {high:.1f} ms (p{QUANTILE}), {longest:.1f} ms (longest of {len(times_ms)})"
        return delays, quantiles, refusals(delays, meanwhile, environment, traits=answers.traits)
    finally:
        environment.close()


def without_outliers(times_ms: Sequence[float]) -> list[float]:
    """Return the times with those above the quantile `QUANTILE` reduced to it."""
    # The longest time decides how long a chunk has to last. Without this, a single disturbed query would decide it.
    most = float(np.percentile(times_ms, QUANTILE, method="higher"))
    return [min(each, most) for each in times_ms]


@torch.no_grad()
def query_times_ms(
    policy: PolicyBase, answers: Answers, environment: Environment, *, continues: bool = False
) -> list[float]:
    """Return the durations of a policy's queries about made-up observations [ms]."""
    # The environment has one env slot, and is neither reset nor stepped. `continues`: whether each chunk continues the
    # one before, which takes a network longer.
    num_warm_up, seed = 3, 2_506_073
    generator = np.random.default_rng(seed)
    going_on, times_ms = None, []
    continues = continues and answers.traits.can_continue
    policy.check_environment(environment)
    for number in range(num_warm_up + NUM_QUERIES):
        episode = Episode(job="measured latency", episode_index=number, seed=seed)
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
    return times_ms[num_warm_up:]


# Give each rank the settled backends and delays of its jobs, and the addresses of the policy servers that they share.


def settled_jobs(jobs: Sequence[Job], attempt: Attempt) -> tuple[Job, ...]:
    """Return the jobs with their settled backends and measured delays, as every rank of an attempt runs them."""
    settled = {work.job: (work.backend, work.latency) for work in attempt.jobs}
    found = [(job, *settled.get(job.config.name, (None, None))) for job in jobs]
    return tuple(job.with_settled(backend, delays) for job, backend, delays in found)


@contextmanager
def running_policy_servers(
    jobs: Sequence[Job], to_run: Collection[str], options: RunOptions, ranks: Ranks, output_directory: Path
) -> Iterator[Mapping[PolicyServerConfig, ServerAddress]]:
    """Run the jobs' policy servers within a `with` block that all ranks enter; yields their addresses."""
    # Every rank lists the same servers and networks in the same order.
    asking: dict[PolicyServerConfig, list[Job]] = {}
    for job in jobs:
        if job.config.policy_server is not None and job.config.name in to_run:
            asking.setdefault(job.config.policy_server, []).append(job)
    orders = {config: _orders(config, its_jobs, options) for config, its_jobs in asking.items()}

    addresses: dict[PolicyServerConfig, ServerAddress] = {}
    context = ranks.context
    with ExitStack() as running:
        for number, config in enumerate(orders):
            # The first rank of a node, or of the run, starts a server, watches it and stops it.
            owner = 0 if config.shared is ServerScope.RUN else context.rank - context.local_rank
            told = ""
            if owner == context.rank:
                # Ranks on other nodes find the server by the name of rank 0's machine.
                host = None
                is_one_node = context.world_size == context.local_world_size
                if config.shared is not ServerScope.NODE and not is_one_node and context.master_address is not None:
                    host = context.master_address.rpartition(":")[0]
                log_file = output_directory / "logs" / f"policy_server{number}_rank{owner}.log"
                server = running.enter_context(closing(PolicyServer(orders[config], host=host, log_file=log_file)))
                told = json.dumps(asdict(server.address))
            said = ranks.gather(f"address of policy server {number}", told)[owner]
            addresses[config] = ServerAddress(**json.loads(said))
            _LOG.debug("policy server %d is rank %d's, at %s", number, owner, addresses[config])
        yield addresses


@contextmanager
def policy_as_served(job: Job, options: RunOptions, output_directory: Path) -> Iterator[PolicyBase]:
    """Build a job's policy for a `with` block, with a policy server of its own if the job has one."""
    config = job.config.policy_server
    with ExitStack() as running:
        if config is None:
            yield running.enter_context(closing(job.build_policy()))
            return
        orders = _orders(config, [job], options)
        # The next start clears away a file of this name if this process dies.
        log_file = output_directory / f".{RUN_PLAN_FILE}.policy_server.tmp"
        running.callback(log_file.unlink, missing_ok=True)
        server = running.enter_context(closing(PolicyServer(orders, host=None, log_file=log_file)))
        network = running.enter_context(closing(ServedNetwork(server.address, job.network_key)))
        yield running.enter_context(closing(job.build_policy(network)))


def _orders(config: PolicyServerConfig, jobs: Sequence[Job], options: RunOptions) -> ServerOrders:
    """Return the orders to the policy server of these jobs."""
    networks: dict[str, NetworkOrder] = {}
    for job in jobs:
        asked = dict(job.policy_options)
        if "num_envs" in asked:
            # The same on every rank, whatever its number of env slots.
            asked["num_envs"] = config.max_batch
        device = config.device or options.policy_device
        if device is not None:
            asked[DEVICE_OPTION] = device
        networks[job.network_key] = NetworkOrder(policy_type=job.config.policy_type, options=asked)
    return ServerOrders(
        networks=networks,
        max_batch=config.max_batch,
        max_wait_ms=config.max_wait_ms,
        torch_threads=options.torch_threads,
        deterministic=options.deterministic,
    )

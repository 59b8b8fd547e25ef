"""Jobs to run in tests, without a job file, and the settings to run them with."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from isaaclab_arena.config.schema import JobConfig, Question
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.ranks import initialise
from isaaclab_arena.evaluation.builds import RankSettings
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.planning import RunRequest
from isaaclab_arena.evaluation.run import RankHost, run
from isaaclab_arena.interfaces.policy import PolicyBase
from tests.fakes import CoinBuilder, CoinConfig, ShrugPolicy
from tests.results.evidence import attempt


def coin_job(
    name: str = "coins",
    builder: CoinBuilder | None = None,
    environment: CoinConfig | None = None,
    policy_class: type[PolicyBase] = ShrugPolicy,
    index: int = 0,
    **config,
) -> Job:
    """Return a job of a made-up environment, of 10 episodes unless told otherwise; other keys are the job's own."""
    options = {key: config.pop(key) for key in ("raise_at", "action") if key in config}
    environment = environment or CoinConfig()
    if not {"num_steps", "num_episodes"} & config.keys():
        config["num_episodes"] = 10
    return Job(
        config=JobConfig(
            index=index,
            name=name,
            environment="coins",
            environment_args=vars(environment),
            policy_type=policy_class.__qualname__,
            num_envs=config.pop("num_envs", 4),
            **config,
        ),
        builder=builder or CoinBuilder(),
        environment_config=environment,
        policy_class=policy_class,
        policy_options=options,
    )


def config_of(environment: str, policy_type: str = "zero_action", name: str = "a", **keys: Any) -> JobConfig:
    """Return a job as its file describes it, of one episode unless told otherwise."""
    keys = {"num_episodes": 1, **keys}
    return JobConfig(index=0, name=name, environment=environment, policy_type=policy_type, **keys)


def settings(output_directory: Path, **changes) -> RankSettings:
    """Return the settings of a single rank that records only commit lines, unless told otherwise."""
    of_rank = {name: changes.pop(name) for name in ("rank", "world_size") if name in changes}
    number = changes.pop("attempt", 1)
    known = {each.name for each in fields(RankSettings)}
    options = {"no_dataset": True, **{name: changes.pop(name) for name in [*changes] if name not in known}}
    if options.get("policy_batch") is None:
        options.pop("policy_batch", None)
    else:
        options["deterministic"] = True
    return RankSettings(
        context=replace(DistributedContext.from_environment({}, device="cpu"), **of_rank),
        options=RunOptions(**options),
        output_directory=output_directory,
        attempt=attempt(number),
        num_threads=1,
        **changes,
    )


def request_of(*jobs: Job, questions: Sequence[Question] = (), config_hash: str = "abc", **options: Any) -> RunRequest:
    """Return the request of a run of these jobs, with these options."""
    return RunRequest(
        jobs=jobs,
        config_hash=config_hash,
        source_file=None,
        command_line=options.pop("command_line", ()),
        options=RunOptions(**options),
        questions=tuple(questions),
    )


def execute(request: RunRequest, context: DistributedContext) -> int:
    """Run a request as a rank's program does, and return the exit code."""
    with initialise(context, process_group=request.options.process_group) as ranks:
        return run(request, RankHost(ranks, is_whole_program=True, writes_report=True)).exit_code

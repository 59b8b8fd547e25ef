"""What is asked of an evaluation from Python: the jobs of a file, or one policy in one environment."""

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from isaaclab_arena.api.arguments import PolicyLike
from isaaclab_arena.api.options import OPTION_NAMES, as_arguments, plain_value, run_options
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.eval_runner import EvalOptions, jobs_request
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.plan.planning import RunRequest
from isaaclab_arena.evaluation.policy_runner import job_request, options_of_policy, resolved_block
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import SharesNetwork
from isaaclab_arena.paths import expanded, given_path
from isaaclab_arena.policy.lent import lent_policy_class
from isaaclab_arena.policy.lent_content import name_of_lent

_OF_THE_JOB = ("name", "variations", "language_instruction", "conditions")


@dataclass(frozen=True, kw_only=True)
class JobFileAsked:
    """The jobs of a file.

    Attributes:
        path: The file.
        given: Options of the run by name.
    """

    path: str
    given: Mapping[str, Any]

    def options(self, *, is_guest: bool) -> EvalOptions:
        """Return the options of the run; see `run_options`."""
        return run_options(EvalOptions, {**self.given, "eval_jobs_config": self.path}, is_guest=is_guest)

    def request(self, options: RunOptions, *, world_size: int) -> RunRequest:
        """Return what is asked for, checked; see `jobs_request`."""
        del world_size
        if not isinstance(options, EvalOptions):
            raise TypeError("options of a job file are those that `options` has returned")
        return jobs_request(options, (), as_arguments(options), import_s=None, may_import=not options.no_import)

    def arguments_for_ranks(self, options: RunOptions, directory: Path) -> list[str]:
        """Return the command line of the evaluation runner that asks for the same."""
        del directory
        return as_arguments(options)

    @property
    def policy(self) -> None:
        """No object of this process takes part."""
        return


@dataclass(frozen=True, kw_only=True)
class OneJobAsked:
    """One policy in one environment.

    Attributes:
        block: What a job file would say of it.
        given: Options of the run by name.
        policy: An object that is lent, None for a policy that is built.
        policy_class: Its class where no other process could import it, or stands for the object.
    """

    block: Mapping[str, Any]
    given: Mapping[str, Any]
    policy: Any = None
    policy_class: type[PolicyBase] | None = None

    def options(self, *, is_guest: bool) -> RunOptions:
        """Return the options of the run; see `run_options`.

        Raises:
            ConfigError: With what an object that is lent cannot do.
        """
        options = run_options(RunOptions, self.given, is_guest=is_guest)
        if self.policy is not None and options.pipeline > 1 and not isinstance(self.policy, SharesNetwork):
            message = "needs a policy of its own for each group, and one object was given; name a class instead"
            raise ConfigError(Problem(message, key="--pipeline"))
        return options

    def request(self, options: RunOptions, *, world_size: int) -> RunRequest:
        """Return what is asked for, checked; see `resolved_block`."""
        if options.resume is not None and self.policy_class is not None and not _is_known(self.policy_class):
            message = (
                "cannot go on with this policy: what it holds cannot be compared with what it held; start a new run, "
                "or name a class"
            )
            raise ConfigError(Problem(message, key="--resume"))
        if self.policy_class is None:
            options_of_policy(self.block["policy_type"], may_import=not options.no_import)
        options = replace(options, split_jobs=True) if world_size > 1 else options
        jobs_file, jobs = resolved_block(options, self.block, policy_class=self.policy_class)
        return job_request(options, jobs_file, jobs)

    def arguments_for_ranks(self, options: RunOptions, directory: Path) -> list[str]:
        """Return the command line of the evaluation runner that asks for the same.

        Args:
            options: The options of the run.
            directory: Where the job file is written that it names.

        Raises:
            ConfigError: If the policy lives in this process alone.
        """
        if self.policy_class is not None:
            message = (
                f"'{self.block['policy_type']}' lives in this process alone and cannot be sent to others; name a class "
                "that can be imported, or evaluate on the ranks of a process group, each with its own"
            )
            raise ConfigError(Problem(message, key="num_ranks"))
        path = directory / "job.json"
        path.write_text(json.dumps({"jobs": [self.block]}), encoding="utf-8")
        return ["--eval_jobs_config", str(path), "--split_jobs", *as_arguments(replace(options, split_jobs=False))]


Asked: TypeAlias = JobFileAsked | OneJobAsked


def asked_for(jobs: "str | PathLike[str] | None", given: Mapping[str, Any], *, num_ranks: int | None) -> Asked:
    """Return what the arguments of `evaluate` ask for.

    Args:
        jobs: The job file, None for one policy in one environment.
        given: Options of the run and, without a job file, of the job.
        num_ranks: See `evaluate`.

    Raises:
        ConfigError: If both are given, or neither, or the number is none.
    """
    given = {name: value if name == "policy" else expanded(value) for name, value in given.items()}
    missing = [name for name in ("environment", "policy") if given.get(name) is None]
    if num_ranks is not None and num_ranks < 1:
        raise ConfigError(Problem(f"must be at least 1, got {num_ranks}", key="num_ranks"))
    if jobs is not None:
        if len(missing) < 2:
            raise ConfigError(Problem("give either this or an environment and a policy", key="jobs"))
        return JobFileAsked(path=str(given_path(jobs)), given=given)
    if missing:
        message = "is missing; give a job file, or an environment and a policy"
        raise ConfigError([Problem(message, key=name) for name in missing])
    return _one_job(**given)


def _one_job(
    *,
    environment: str,
    policy: PolicyLike,
    policy_config: Mapping[str, Any] | None = None,
    environment_args: Mapping[str, Any] | None = None,
    **given: Any,
) -> OneJobAsked:
    policy_type, policy_class, lent = _resolved(policy)
    if lent is not None and policy_config:
        raise ConfigError(Problem("has no effect on an object; it has its options already", key="policy_config"))
    options = {name: value for name, value in given.items() if name in OPTION_NAMES}
    of_job = {name: value for name, value in given.items() if name in _OF_THE_JOB and value is not None}
    own = {name: value for name, value in given.items() if name not in OPTION_NAMES and name not in _OF_THE_JOB}
    of_environment = {"environment": environment, **(environment_args or {}), **own}
    if "conditions" in of_job:
        of_job["conditions"] = str(Path(of_job["conditions"]).absolute())
    block = {
        "name": environment,
        **of_job,
        "arena_env_args": {name: plain_value(value) for name, value in of_environment.items()},
        "policy_type": policy_type,
        "policy_config_dict": {name: plain_value(value) for name, value in (policy_config or {}).items()},
    }
    return OneJobAsked(block=block, given=options, policy=lent, policy_class=policy_class)


def _resolved(policy: Any) -> tuple[str, type[PolicyBase] | None, Any]:
    """Return what a policy is called, its class where other processes cannot find it by that, and the object."""
    if isinstance(policy, str):
        return policy, None, None
    if not isinstance(policy, type):
        return name_of_lent(policy), lent_policy_class(policy), policy
    name = name_of_lent(policy)
    if not issubclass(policy, PolicyBase):
        raise ConfigError(Problem(f"'{name}' is no policy: it must be a class derived from PolicyBase", key="policy"))
    return name, None if _can_be_imported(policy) else policy, None


def _can_be_imported(policy_class: type) -> bool:
    module = importlib.import_module(policy_class.__module__)
    return module.__name__ != "__main__" and getattr(module, policy_class.__qualname__, None) is policy_class


def _is_known(policy_class: type[PolicyBase]) -> bool:
    return not policy_class.traits.is_lent or "unknown" not in policy_class.content_sources({}).stated.values()

"""Evaluate one policy in one environment, both named on the command line.

    python -m isaaclab_arena.evaluation.policy_runner --policy_type scripted --num_episodes 20 lift_object --object cube

First come the options of the run, then the environment's name, then the options of the environment and of the policy
in any order; ``cube.mass.enabled=true`` turns a variation on.
"""

import dataclasses
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.config.tokens import parse_tokens
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.launch import launch_if_asked
from isaaclab_arena.distributed.process import process_age_s
from isaaclab_arena.errors import ConfigError, Problem, shortened
from isaaclab_arena.evaluation.condition_sets import agreed_hash
from isaaclab_arena.evaluation.console import exit_code_of
from isaaclab_arena.evaluation.options import RunOptions, read_command_line
from isaaclab_arena.evaluation.planning import RunRequest
from isaaclab_arena.evaluation.run import execute
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.evaluation.variation_listing import show_variations
from isaaclab_arena.policy.catalog import resolve_policy_class
from isaaclab_arena.policy.policy_base import PolicyBase

PROGRAM = "isaaclab_arena.evaluation.policy_runner"
_SOURCE = "command line"
_VARIATION = re.compile(r"(?:variations\.)?(\w+\.\w+\.(?:enabled|sampler_cfg\.\w+))=(.*)")


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(RunOptions):
    """Evaluate one policy in one environment: OPTIONS ENVIRONMENT [options of environment and policy]."""

    policy_type: str
    """Registered name or dotted class path of the policy."""
    language_instruction: str | None = None
    """What the policy is told instead of the task's own words."""
    conditions: str | None = None
    """File of saved conditions that the episodes start from."""
    name: str | None = None
    """Name of the job; the environment's by default."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        argv: Arguments after the program's name; those of this process where None.

    Returns:
        0 if the job completed, 1 if not, 2 for a mistake of the user's, 130 or 143 if interrupted.
    """
    arguments = tuple(sys.argv[1:] if argv is None else argv)
    import_s = process_age_s()
    return exit_code_of(lambda: _run(arguments, import_s))


def _run(arguments: Sequence[str], import_s: float | None) -> int:
    options, rest = read_command_line(PolicyOptions, arguments, program=PROGRAM)
    launched = launch_if_asked(options, module=PROGRAM, arguments=arguments)
    if launched is not None:
        return launched
    options.check()
    context = DistributedContext.from_environment(device=options.device)
    request = _request(options, rest, arguments, import_s=import_s)
    return show_variations(request.jobs) if options.list_variations else execute(request, context)


def asked_for(arguments: Sequence[str], *, may_import: bool) -> RunRequest:
    """Return what a command line asks for; nothing is run. See `eval_runner.asked_for`."""
    options, rest = read_command_line(PolicyOptions, arguments, program=PROGRAM)
    options = dataclasses.replace(options, no_import=options.no_import or not may_import)
    return _request(options, rest, arguments, import_s=None)


def _request(
    options: PolicyOptions, rest: Sequence[str], arguments: Sequence[str], *, import_s: float | None
) -> RunRequest:
    jobs_file = read_jobs({"jobs": [job_block(options, rest)]}, source=_SOURCE, defaults=options.job_defaults())
    jobs = resolve_jobs(
        jobs_file.jobs,
        file=_SOURCE,
        overrides=options.policy_overrides(),
        policy_batch=options.fixed_policy_batch(),
        device=options.device,
        may_import=not options.no_import,
    )
    return RunRequest(
        jobs=jobs,
        config_hash=agreed_hash(jobs_file.config_hash, [job.saved_conditions for job in jobs]),
        source_file=None,
        command_line=(PROGRAM, *arguments),
        options=options,
        import_s=import_s,
    )


def job_block(options: PolicyOptions, rest: Sequence[str]) -> dict[str, Any]:
    """Return what a job file would say for a command line.

    Args:
        options: The options of the run.
        rest: The environment's name, and the options of environment and policy.

    Raises:
        ConfigError: If no environment is named, or more than one word might be its name.
    """
    variations, rest = split_variations(rest)
    positionals, given = parse_tokens(rest)
    if len(positionals) != 1:
        found = f"got {' '.join(positionals)}" if positionals else "name one after the options"
        raise ConfigError(Problem(f"one environment is needed; {found}", key="ENVIRONMENT"))
    environment_args, policy_config = split_options(given, options.policy_type, may_import=not options.no_import)
    block: dict[str, Any] = {
        "name": options.name or positionals[0],
        "arena_env_args": {"environment": positionals[0], **environment_args},
        "policy_type": options.policy_type,
        "policy_config_dict": policy_config,
    }
    if variations:
        block["variations"] = variations
    if options.conditions is not None:
        block["conditions"] = options.conditions
    if options.language_instruction is not None:
        block["language_instruction"] = options.language_instruction
    return block


def split_variations(tokens: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the variations among the tokens, such as ``cube.mass.enabled=true``, and the other tokens in order.

    Raises:
        ConfigError: If one is given twice, or holds a number that is not finite.
    """
    variations: dict[str, Any] = {}
    others = []
    for token in tokens:
        match = _VARIATION.fullmatch(token)
        if match is None:
            others.append(token)
            continue
        key, value = match.groups()
        if key in variations:
            raise ConfigError(Problem("is given twice", key=key))
        try:
            variations[key] = json.loads(value)
        except (ValueError, RecursionError):
            variations[key] = value
        _refuse_infinite(key, variations[key], value)
    return variations, others


def _refuse_infinite(key: str, value: Any, text: str) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise ConfigError(Problem(f"{shortened(text)} is no finite number", key=key)) from error


def split_options(
    given: Mapping[str, Any], policy_type: str, *, may_import: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the environment and those of the policy: what the policy does not know is the former's.

    Args:
        given: The options of both, by name.
        policy_type: Registered name or class path of the policy.
        may_import: Whether a class path may be imported.

    Raises:
        ConfigError: If there is no such policy.
    """
    config_class = _policy_class(policy_type, may_import=may_import).config_class
    known = {field.name for field in dataclasses.fields(config_class)} if dataclasses.is_dataclass(config_class) else ()
    policy_config = {name: value for name, value in given.items() if name in known}
    return {name: value for name, value in given.items() if name not in known}, policy_config


def _policy_class(policy_type: str, *, may_import: bool) -> type[PolicyBase]:
    try:
        return resolve_policy_class(policy_type, may_import=may_import)
    except ConfigError as error:
        problems = [dataclasses.replace(problem, key="--policy_type") for problem in error.problems]
        raise ConfigError(problems) from error


if __name__ == "__main__":
    raise SystemExit(main())

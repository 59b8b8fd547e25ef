"""Evaluate one policy in one environment, both named on the command line.

    python -m isaaclab_arena.evaluation.policy_runner --policy_type scripted --num_episodes 20 lift_object --object cube

First come the options of the run, then the environment's name, then the options of the environment and of the policy
in any order; ``cube.mass.enabled=true`` turns a variation on. Under a launcher the ranks share the episodes.
"""

import dataclasses
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from isaaclab_arena.garbage import collect_from_now_on, collect_later
from isaaclab_arena.paths import typed_words

if __name__ == "__main__":
    # Imports make hundreds of thousands of objects that stay; looking for garbage among them takes a sixth of the time.
    collect_later()

from isaaclab_arena.config.arena_flags import REFUSED
from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.job_fields import parse_tokens
from isaaclab_arena.config.loading import limited, read_jobs
from isaaclab_arena.config.options import option_names
from isaaclab_arena.config.schema import JobsFile
from isaaclab_arena.distributed.context import DistributedContext, process_age_s
from isaaclab_arena.distributed.launch import launch_if_asked
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.errors import ConfigError, Problem, nearest_option, shortened
from isaaclab_arena.evaluation.condition_sets import agreed_hash
from isaaclab_arena.evaluation.console import exit_code_of
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.options import RunOptions, read_command_line
from isaaclab_arena.evaluation.planning import RunRequest, show_variations
from isaaclab_arena.evaluation.run import execute
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.policy import PolicyBase, declared_options
from isaaclab_arena.interfaces.policy_options import DeclaredOptions
from isaaclab_arena.policy.catalog import resolve_policy_class

PROGRAM = "isaaclab_arena.evaluation.policy_runner"
_SOURCE = "command line"
_FILE_KEY = re.compile(r"^(?:arena_env_args|policy_config_dict)\.(?!environment$)")
_VARIATION = re.compile(r"(?:variations\.)?(\w+\.\w+\.(?:enabled|sampler_cfg\.\w+))=(.*)")


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(RunOptions):
    """Evaluate one policy in one environment: OPTIONS ENVIRONMENT [options of environment and policy]."""

    policy_type: str
    """Registered name or dotted class path of the policy."""
    policy_config: str | None = None
    """File, JSON or YAML, with options of the policy; the command line's own come before them."""
    language_instruction: str | None = None
    """What the policy is told instead of the task's own words."""
    conditions: str | None = None
    """File of saved conditions that the episodes start from."""
    name: str | None = None
    """Name of the job; the environment's by default."""


def main(
    argv: Sequence[str] | None = None, *, options_class: type[PolicyOptions] = PolicyOptions, typed_as: str = PROGRAM
) -> int:
    """Run the command and return its exit code.

    Args:
        argv: Arguments after the program's name; those of this process where None.
        options_class: What the command line is read into; its docstrings are the help.
        typed_as: The name by which the help calls the program.

    Returns:
        0 if the job completed, 1 if not, 2 for a mistake of the user's, 130 or 143 if interrupted.
    """
    arguments = tuple(typed_words(argv))
    import_s = process_age_s()
    return exit_code_of(lambda: _run(arguments, import_s, options_class, typed_as))


def _run(arguments: Sequence[str], import_s: float | None, options_class: type[PolicyOptions], typed_as: str) -> int:
    options, rest = read_command_line(options_class, arguments, program=typed_as)
    launched = launch_if_asked(options, module=PROGRAM, arguments=arguments)
    if launched is not None:
        return launched
    options.check()
    context = DistributedContext.from_environment(device=options.device)
    request = _request(shared_by_ranks(options, context.world_size), rest, arguments, import_s=import_s)
    collect_from_now_on()
    return show_variations(request.jobs) if options.list_variations else execute(request, context)


def asked_for(arguments: Sequence[str], *, may_import: bool) -> RunRequest:
    """Return what a command line asks for; nothing is run. See `eval_runner.asked_for`."""
    options, rest = read_command_line(PolicyOptions, arguments, program=PROGRAM)
    options = dataclasses.replace(options, no_import=options.no_import or not may_import)
    return _request(options, rest, arguments, import_s=None)


def _request(
    options: PolicyOptions, rest: Sequence[str], arguments: Sequence[str], *, import_s: float | None
) -> RunRequest:
    jobs_file, jobs = resolved_job(options, rest)
    return job_request(options, jobs_file, jobs, command_line=(PROGRAM, *arguments), import_s=import_s)


def job_request(
    options: RunOptions,
    jobs_file: JobsFile,
    jobs: tuple[Job, ...],
    *,
    command_line: tuple[str, ...] = (),
    import_s: float | None = None,
) -> RunRequest:
    """Return what is asked of a run of one job; see `resolved_block`, and `RunRequest` for the others."""
    return RunRequest(
        jobs=jobs,
        config_hash=agreed_hash(jobs_file.config_hash, [job.saved_conditions for job in jobs]),
        source_file=None,
        command_line=command_line,
        options=options,
        import_s=import_s,
    )


def shared_by_ranks(options: PolicyOptions, world_size: int) -> PolicyOptions:
    """Return the options with which all ranks take part: there is one job, and who did not share it would be idle.

    Args:
        options: The options as they were typed.
        world_size: Number of ranks.
    """
    return dataclasses.replace(options, split_jobs=True) if world_size > 1 else options


def resolved_job(options: PolicyOptions, rest: Sequence[str]) -> tuple[JobsFile, tuple[Job, ...]]:
    """Return the job that a command line asks for, as a job file would hold it and ready to run.

    Args:
        options: The options of the run.
        rest: The environment's name, and the options of environment and policy.

    Raises:
        ConfigError: With every problem, each with the option as it was typed.
    """
    return resolved_block(options, job_block(options, rest))


def resolved_block(
    options: RunOptions, block: Mapping[str, Any], *, policy_class: type[PolicyBase] | None = None
) -> tuple[JobsFile, tuple[Job, ...]]:
    """Return the one job of a run, as a job file would hold it and ready to run.

    Args:
        options: The options of the run.
        block: What a job file would say of the job.
        policy_class: The class of its policy, None for the one that ``policy_type`` names.

    Raises:
        ConfigError: With every problem, each with the option as it would be typed.
    """
    with _options_named_as_typed():
        read = read_jobs({"jobs": [block]}, source=_SOURCE, defaults=options.job_defaults(), partly=True)
        jobs_file = limited(read, options.limit)
        jobs = resolve_jobs(
            jobs_file,
            overrides=options.policy_overrides(),
            policy_batch=options.fixed_policy_batch(),
            device=options.device,
            may_import=not options.no_import,
            policy_class=policy_class,
        )
    return jobs_file, jobs


@contextmanager
def _options_named_as_typed() -> Iterator[None]:
    """Name options of environment and policy in messages as they stand on the command line, not as in a job file."""
    try:
        yield
    except ConfigError as error:
        problems = [
            dataclasses.replace(problem, key=_FILE_KEY.sub("--", problem.key)) if problem.key else problem
            for problem in error.problems
        ]
        raise ConfigError(problems) from error


def job_block(options: PolicyOptions, rest: Sequence[str]) -> dict[str, Any]:
    """Return what a job file would say for a command line.

    Args:
        options: The options of the run.
        rest: The environment's name, and the options of environment and policy.

    Raises:
        ConfigError: If no environment is named, more than one word might be its name, or an option is refused or had
            taken the name for a value.
    """
    variations, rest = split_variations(rest)
    declared = options_of_policy(options.policy_type, may_import=not options.no_import)
    own, rest = declared.taken_from(rest)
    positionals, given = parse_tokens(rest)
    policy_names = frozenset(declared.names or ())
    _refuse_flags(given, policy_names)
    if not positionals and isinstance(given.get("environment"), str):
        positionals = [given.pop("environment")]
    if not positionals:
        positionals, given = _with_environment_given_back(given, policy_names, options)
    if len(positionals) != 1:
        _refuse_no_environment(positionals, given)
    if "environment" in given:
        raise ConfigError(Problem(f"names the environment twice: '{positionals[0]}' is another", key="--environment"))
    policy_config = {name: value for name, value in given.items() if name in policy_names}
    environment_args = {name: value for name, value in given.items() if name not in policy_names}
    block: dict[str, Any] = {
        "name": options.name or positionals[0],
        "arena_env_args": {"environment": positionals[0], **environment_args},
        "policy_type": options.policy_type,
        "policy_config_dict": {**_options_of_file(options.policy_config), **own, **policy_config},
    }
    if variations:
        block["variations"] = variations
    if options.conditions is not None:
        block["conditions"] = options.conditions
    if options.language_instruction is not None:
        block["language_instruction"] = options.language_instruction
    return block


def _options_of_file(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    document = read_document(path)
    if not isinstance(document, dict):
        raise ConfigError(Problem("holds no mapping of the policy's options", file=path, key="--policy_config"))
    return document


def _refuse_flags(given: Collection[str], policy_names: Collection[str]) -> None:
    problems = [
        Problem(REFUSED[name], key=f"--{name}") for name in given if name in REFUSED and name not in policy_names
    ]
    if problems:
        raise ConfigError(problems)


def _with_environment_given_back(
    given: Mapping[str, Any], policy_names: Collection[str], options: PolicyOptions
) -> tuple[list[str], dict[str, Any]]:
    """Find the environment's name among the words of an option, which takes all words that follow it.

    Args:
        given: The options of environment and policy, by name.
        policy_names: The options that the policy has.
        options: The options of the run.

    Returns:
        The environment's name as the one positional word, where an option of the environment or the policy had taken
        it, and the options without it.

    Raises:
        ConfigError: If an option had taken it that neither has, or that is left without a value.
    """
    for name, value in given.items():
        words = value if isinstance(value, list) else [value]
        environment = words[-1]
        if not isinstance(environment, str) or environment not in ENVIRONMENTS:
            continue
        known = {*policy_names, *(option_names(ENVIRONMENTS.get(environment).config_class) or ())}
        if name not in known:
            runner = {field.name for field in dataclasses.fields(options)}
            raise ConfigError(Problem(f"unknown option{nearest_option(name, runner | known)}", key=f"--{name}"))
        if len(words) == 1:
            message = f"stands right before the environment's name '{environment}'; write it after"
            raise ConfigError(Problem(message, key=f"--{name}"))
        return [environment], {**given, name: words[0] if len(words) == 2 else words[:-1]}
    return [], dict(given)


def _refuse_no_environment(positionals: Sequence[str], given: Mapping[str, Any]) -> NoReturn:
    found = f"got {' '.join(positionals)}" if positionals else "name one after the options"
    last = next((name for name, value in given.items() if isinstance(value, list)), None)
    if not positionals and last is not None:
        found += f"; --{last} took {' '.join(map(str, given[last]))} for its values"
    raise ConfigError(Problem(f"one environment is needed; {found}", key="ENVIRONMENT"))


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


def get_policy_cls(policy_type: str) -> type[PolicyBase]:
    """Return the class that a name or a dotted path stands for; Isaac Lab Arena's name of `resolve_policy_class`."""
    return resolve_policy_class(policy_type)


def options_of_policy(policy_type: str, *, may_import: bool) -> DeclaredOptions:
    """Return what options a policy declares.

    Args:
        policy_type: Registered name or dotted class path.
        may_import: Whether a class path may be imported.

    Raises:
        ConfigError: If there is no such policy, in words of the command line.
    """
    try:
        return declared_options(resolve_policy_class(policy_type, may_import=may_import))
    except ConfigError as error:
        problems = [dataclasses.replace(problem, key="--policy_type") for problem in error.problems]
        raise ConfigError(problems) from error


if __name__ == "__main__":
    raise SystemExit(main())

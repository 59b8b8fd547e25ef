"""Evaluate one policy in one environment, both named on the command line.

    python -m isaaclab_arena.evaluation.policy_runner --policy_type scripted --num_episodes 20 lift_object --object cube

First come the options of the run, then the environment's name, then the options of the environment and of the policy
in any order; ``cube.mass.enabled=true`` turns a variation on. Under a launcher the ranks share the episodes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from isaaclab_arena.distributed.interrupts import leave_on_ctrl_c
from isaaclab_arena.garbage import collect_later
from isaaclab_arena.paths import typed_words

if __name__ == "__main__":
    leave_on_ctrl_c()
    # Imports make hundreds of thousands of objects that stay; looking for garbage among them takes a sixth of the time.
    collect_later()

from isaaclab_arena.config.arena import REFUSED, is_option_of_arena
from isaaclab_arena.config.command_line import misspelt
from isaaclab_arena.config.loading import options_in_file, read_jobs
from isaaclab_arena.config.options import option_names, parse_tokens
from isaaclab_arena.config.schema import COMMON_ENVIRONMENT_KEYS
from isaaclab_arena.distributed.context import process_age_s, take_rank_of_scheduler
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.errors import ConfigError, Problem, nearest_option, placed, problems_at, refuse, shortened
from isaaclab_arena.evaluation import planning, process, run
from isaaclab_arena.evaluation.options import JobOptions, RunOptions, read_command_line
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_options import declared_options
from isaaclab_arena.nested import without_none
from isaaclab_arena.policy.catalog import LentPolicy, resolve_policy_class

PROGRAM = "isaaclab_arena.evaluation.policy_runner"


@dataclass(frozen=True, kw_only=True)
class PolicyJobOptions:
    """What to run, besides the environment's name."""

    heading: ClassVar[str] = JobOptions.heading

    policy_type: str
    """Registered name or dotted class path of the policy."""
    policy_config: str | None = None
    """File, JSON or YAML, with options of the policy; options of the command line override it. For policies without an
    option of that name also --policy_config_yaml_path."""
    language_instruction: str | None = None
    """The instruction of the policy, instead of the task's own words."""
    conditions: str | None = None
    """File of saved conditions for the start of the episodes."""
    name: str | None = None
    """Name of the job; by default the environment's."""


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(PolicyJobOptions, RunOptions):
    """Evaluate one policy in one environment: OPTIONS ENVIRONMENT [options of environment and policy]."""


def main(
    argv: Sequence[str] | None = None, *, options_class: type[PolicyOptions] = PolicyOptions, typed_as: str = PROGRAM
) -> int:
    """Run the command and return its exit code.

    Args:
        argv: Arguments after the program's name; None: those of this process.
        options_class: Class of the options; its docstrings are the help.
        typed_as: Name of the program in the help.

    Returns:
        0 if the job completed, 1 if not, 2 for a mistake of the user's, 130 or 143 if interrupted.
    """
    arguments = tuple(typed_words(argv))
    import_s = process_age_s()
    with process.program() as ended:
        take_rank_of_scheduler()
        options, rest = read_command_line(options_class, arguments, program=typed_as)
        return run.run_command_line(
            options,
            module=PROGRAM,
            arguments=arguments,
            request_of=lambda context: job_request(
                # A rank without a part of the one job would be idle.
                replace(options, split_jobs=options.split_jobs or context.world_size > 1),
                job_block(options, rest),
                command_line=(PROGRAM, *arguments),
                import_s=import_s,
            ),
        )
    return ended.code


def asked_for(arguments: Sequence[str], *, may_import: bool) -> planning.RunRequest:
    """Return the request of a command line, without a run. See `eval_runner.asked_for`."""
    options, rest = read_command_line(PolicyOptions, arguments, program=PROGRAM)
    options = replace(options, no_import=options.no_import or not may_import)
    return job_request(options, job_block(options, rest), command_line=(PROGRAM, *arguments))


def job_request(
    options: RunOptions,
    block: Mapping[str, Any],
    *,
    policy: type[PolicyBase] | LentPolicy | None = None,
    command_line: tuple[str, ...] = (),
    import_s: float | None = None,
) -> planning.RunRequest:
    """Return the request for a run of one job, see `RunRequest`; `ConfigError` with every problem."""
    # `block`: the job as a job file describes it. `policy` None: the class that ``policy_type`` names.
    try:
        read = read_jobs({"jobs": [block]}, source="command line", defaults=options.job_defaults())
        return run.request_for(
            read,
            options,
            policy=policy,
            source_file=None,
            command_line=command_line,
            import_s=import_s,
        )
    except ConfigError as error:
        # Name options of environment and policy as on the command line, not as in a job file.
        key_of_file = re.compile(r"^(?:arena_env_args|policy_config_dict)\.(?!environment$)")
        problems = [
            replace(problem, key=key_of_file.sub("--", problem.key)) if problem.key else problem
            for problem in error.problems
        ]
        raise ConfigError(problems) from error


def job_block(options: PolicyOptions, rest: Sequence[str]) -> dict[str, Any]:
    """Return a command line's job as a job file describes it; `rest`: its environment and the options of the job."""
    # `ConfigError` if no environment is named, more than one word might be its name, or an option is refused or had
    # taken the name for a value.
    variations, rest = split_variations(rest)
    runner = [field.name for field in fields(options)]
    try:
        declared = declared_options(resolve_policy_class(options.policy_type, may_import=not options.no_import))
    except ConfigError as error:
        # The options of this policy are unknown, so only those near to the runner's are mistakes.
        raise ConfigError([*placed(error.problems, key="--policy_type"), *misspelt(rest, runner)]) from error
    own, rest = declared.taken_from(rest)
    positionals, given = parse_tokens(rest)
    policy_names = frozenset(declared.names or ())
    refused = [name for name in given if name in REFUSED and name not in policy_names]
    refuse([Problem(REFUSED[name], key=f"--{name}") for name in refused])

    # The environment's name is the one positional word, or a value of an option that took it.
    if not positionals and isinstance(given.get("environment"), str):
        positionals = [given.pop("environment")]
    # An option takes all words that follow it: its last word may be the name. The option must be one of the environment
    # or the policy, and keep a value.
    for name, value in () if positionals else given.items():
        words = value if isinstance(value, list) else [value]
        environment = words[-1]
        if not isinstance(environment, str) or environment not in ENVIRONMENTS:
            continue
        if len(words) == 1 and name in {*policy_names, *_options_of(environment)}:
            message = f"stands right before the environment's name '{environment}'; write it after"
            raise ConfigError(message, key=f"--{name}")
        positionals, given = [environment], {**given, name: words[0] if len(words) == 2 else words[:-1]}
        break
    if len(positionals) != 1:
        found = f"got {' '.join(positionals)}" if positionals else "name one after the options"
        last = next((name for name, value in given.items() if isinstance(value, list)), None)
        if not positionals and last is not None:
            found += f"; --{last} took {' '.join(map(str, given[last]))} for its values"
        found += "; isaaclab-arena list environments shows them"
        raise ConfigError(f"one environment is needed; {found}", key="ENVIRONMENT")
    # A misspelt option may be one of the runner, the policy or the environment, which is checked with its own names.
    of_environment = _options_of(positionals[0])
    if declared.names is not None and of_environment:
        known = {*policy_names, *of_environment, "environment", "policy_config_yaml_path"}
        refuse(
            [
                Problem(f"unknown option{nearest_option(name, {*known, *runner})}", key=f"--{name}")
                for name in given
                if name not in known and not is_option_of_arena(name)
            ]
        )
    if "environment" in given:
        raise ConfigError(f"names the environment twice: '{positionals[0]}' is another", key="--environment")

    # The options in the policy's file come first, so that the command line overrides them. Isaac Lab Arena's name of
    # that option is an option of some policies.
    file, arenas = options.policy_config, "policy_config_yaml_path"
    if arenas in given and arenas not in policy_names:
        if file is not None:
            raise ConfigError("is the same option as --policy_config; give one of them", key=f"--{arenas}")
        file = str(given.pop(arenas))
    with problems_at(key="--policy_config"):
        of_file = {} if file is None else options_in_file(file)
    policy_config = {name: value for name, value in given.items() if name in policy_names}
    environment_args = {name: value for name, value in given.items() if name not in policy_names}
    block: dict[str, Any] = {
        "name": options.name or positionals[0].replace("/", "-"),
        "arena_env_args": {"environment": positionals[0], **environment_args},
        "policy_type": options.policy_type,
        "policy_config_dict": {**of_file, **own, **policy_config},
    }
    more = {"conditions": options.conditions, "language_instruction": options.language_instruction}
    return block | ({"variations": variations} if variations else {}) | without_none(more)


def _options_of(environment: str) -> frozenset[str]:
    """Return the names of an environment's options, none if it is unknown or takes any."""
    try:
        names = option_names(ENVIRONMENTS.get(environment).config_class)
    except ConfigError:
        return frozenset()
    return names | COMMON_ENVIRONMENT_KEYS if names else frozenset()


def split_variations(tokens: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the variations among the tokens, such as ``cube.mass.enabled=true``, and the other tokens in order."""
    variation = re.compile(r"(?:variations\.)?(\w+\.\w+\.(?:enabled|sampler_cfg\.\w+))=(.*)")
    variations: dict[str, Any] = {}
    others = []
    for token in tokens:
        match = variation.fullmatch(token)
        if match is None:
            others.append(token)
            continue
        key, text = match.groups()
        if key in variations:
            raise ConfigError("is given twice", key=key)
        try:
            variations[key] = json.loads(text)
        except (ValueError, RecursionError):
            variations[key] = text
        try:
            json.dumps(variations[key], allow_nan=False)
        except ValueError as error:
            raise ConfigError(f"{shortened(text)} is no finite number", key=key) from error
    return variations, others


def get_policy_cls(policy_type: str) -> type[PolicyBase]:
    """Return the class of a registered name or dotted path; Isaac Lab Arena's name of `resolve_policy_class`."""
    return resolve_policy_class(policy_type)


if __name__ == "__main__":
    raise SystemExit(main())

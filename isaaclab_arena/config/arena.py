"""Isaac Lab Arena's flags, job keys, options of environments and experiment files, as this project's."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from isaaclab_arena.config.documents import read_value
from isaaclab_arena.config.options import Count, shown
from isaaclab_arena.config.schema import ARENA_JOB_KEYS, respelt
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean, placed, refuse
from isaaclab_arena.nested import leaves, value_at

# Command-line flags: other names of our options, flags without effect, and refused flags. A test holds
# ``docs/users/arena.md`` equal to these tables.

ALIASES = {
    "experiment_config": "eval_jobs_config",
    "experiment_output_directory": "output_dir",
    "video_base_dir": "output_base_dir",
    "video_dir": "output_base_dir",
    "video": "record_viewport_video",
    "camera_video": "record_camera_video",
    "visualizer": "viz",
}
"""Names that other versions of Isaac Lab Arena give to options of ours."""

DATAGEN = "pictures are recorded by --record_observations all with --enable_cameras, without flow and normals"
"""The way to collect data for training on pictures, which differs from Arena's."""

REFUSED = {
    "external_environment_class_path": (
        "classes for Isaac Lab cannot be built without it; an environment of your own is declared by the entry point "
        "isaaclab_arena.environments, or named gym:<module>:<id>"
    ),
    "remote_kill_on_exit": "a policy server may serve others too; stop it where it was started",
    "mimic": "no demonstrations are generated from others here",
    "no_solve_relations": "tasks here always place their objects",
    "collect_datagen": DATAGEN,
    "datagen_output_dir": DATAGEN,
    "datagen_width": DATAGEN,
    "datagen_height": DATAGEN,
    "datagen_camera_position": DATAGEN,
    "datagen_camera_target": DATAGEN,
}
"""Flags for what this program does not do, each with the reason: refused, never ignored."""


@dataclass(frozen=True, kw_only=True)
class FlagsWithoutEffect:
    """Options that are accepted for Isaac Lab Arena's command lines and have no effect."""

    headless: bool = False
    """Accepted for Isaac Lab Arena's command lines; nothing here opens a window."""
    viz: str | None = None
    """Accepted for Isaac Lab Arena's command lines; nothing here opens a window."""
    distributed: bool = False
    """Accepted for Isaac Lab Arena's command lines; the launcher's variables say it."""
    record_trajectories: bool = False
    """Accepted for Isaac Lab Arena's command lines; states and actions are recorded anyway."""
    presets: str | None = None
    """Accepted for Isaac Lab Arena's command lines where it is newton, whose solver MuJoCo-Warp is."""
    chunk_size: Count | None = None
    """Accepted for Isaac Lab Arena's command lines; memory is let go of after every job, in one process."""
    env_spacing: float | None = None
    """Accepted for Isaac Lab Arena's command lines; environments here are not laid out in one world."""
    serve_evaluation_report: bool = False
    """Accepted for Isaac Lab Arena's command lines; report.html needs no server, and its path is shown last."""
    evaluation_report_port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """Accepted for Isaac Lab Arena's command lines; report.html needs no server."""
    disable_fabric: bool = False
    """Accepted for Isaac Lab Arena's command lines; there is no USD stage here."""
    disable_pinocchio: bool = False
    """Accepted for Isaac Lab Arena's command lines; nothing here needs it."""


def is_no_solver_here(preset: object) -> bool:
    """True unless a preset names the solver of Newton, which is MuJoCo-Warp."""
    return not (isinstance(preset, str) and preset.lower().startswith(("newton", "mjwarp", "mujoco")))


# Later keys of a job, by a table.

_TYPED = {
    "environment": ("arena_env_args.environment", "arena_env_args"),
    "policy": ("policy_type", "policy_config_dict"),
}
_ROLLOUT_LIMIT = {"num_steps": "num_steps", "num_episodes": "num_episodes"}
_BUILDER = {
    "num_envs": "arena_env_args.num_envs",
    "env_spacing": "arena_env_args.env_spacing",
    "placement_seed": "arena_env_args.placement_seed",
    "seed": "seed",
    "language_instruction": "language_instruction",
}


_WITHOUT_EFFECT: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "device": (lambda _: False, ""),
    "disable_fabric": (lambda _: False, ""),
    "record_trajectories": (lambda _: False, ""),
    "solve_relations": (lambda value: value is not True, "tasks here always place their objects; leave it out"),
    "resolve_on_reset": (
        lambda value: value is not True,
        "every episode has a start of its own; to repeat starts, save them and give the file as 'conditions'",
    ),
    "mimic": (lambda value: value is True, "no demonstrations are generated from others here; leave it out"),
    "presets": (is_no_solver_here, "MuJoCo or MuJoCo-Warp simulates every environment; leave it out"),
    "recorded_variation_samples_path": (
        lambda value: value is not None,
        "what episodes start from is saved with --save_conditions here, and given as 'conditions'",
    ),
}
"""Keys of ``environment_builder`` that decide nothing here: which values cannot be had, and the way out."""

BUILDER_KEYS = frozenset({*_BUILDER, *_WITHOUT_EFFECT})
"""Every key that ``environment_builder`` may have."""


def in_own_keys(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return a block of job keys with `ARENA_JOB_KEYS` translated to this project's keys, and its problems."""
    # ``arena_env_args`` and ``policy_config_dict`` must be mappings. Text with an interpolation stays until it is
    # resolved.
    if ARENA_JOB_KEYS.isdisjoint(block) or any(
        isinstance(text := block.get(key), str) and "${" in text for key in ("arena_env_args", "policy_config_dict")
    ):
        return dict(block), []
    own, problems = dict(block), list[Problem]()
    for key in ("environment", "policy", "num_envs", "rollout_limit", "environment_builder"):
        value = own.get(key)
        if isinstance(value, str) and "${" in value:
            continue
        own.pop(key, None)
        for moved in () if value is None else _moved(key, value):
            if isinstance(moved, Problem):
                problems.append(moved)
                continue

            # Put the value at its path, unless another value is there already.
            path, item, source = moved
            outer, _, inner = path.rpartition(".")
            target: Any = own
            if outer:
                found = own.get(outer)
                if found is not None and not isinstance(found, dict):
                    continue  # reported elsewhere as no mapping
                target = own[outer] = dict(found or {})
            if target.get(inner) is not None and target[inner] != item:
                problems.append(Problem(f"is also given as {path}; give one of them", key=source))
            else:
                target[inner] = item
    return own, problems


def _moved(key: str, value: Any) -> Iterator[tuple[str, Any, str] | Problem]:
    """Yield the values of a key of `ARENA_JOB_KEYS`, each with its path here and its place there; or a problem."""
    if key == "num_envs":
        yield "arena_env_args.num_envs", value, key
    elif key in _TYPED and isinstance(value, str):
        yield _TYPED[key][0], value, key
    elif not isinstance(value, Mapping):
        hint = f"; its key 'type' names the {key}" if key in _TYPED else ""
        yield Problem(f"{shown(value)} is not a mapping{hint}", key=key)
    elif key in _TYPED:
        # The key ``type`` names the class; the other keys are its options.
        type_path, options = _TYPED[key]
        for name, item in value.items():
            path = type_path if name == "type" else f"{options}.{name}"
            wrong = path == type_path and name != "type"
            place = f"{key}.{name}"
            yield Problem(f"is called {key}.type", key=place) if wrong else (path, item, place)
    else:
        targets, idle = (_BUILDER, _WITHOUT_EFFECT) if key == "environment_builder" else (_ROLLOUT_LIMIT, {})
        for name, item in value.items():
            if name in targets:
                if item is not None:
                    yield targets[name], item, f"{key}.{name}"
            elif name not in idle:
                yield Problem(f"unknown key{did_you_mean(name, {*targets, *idle})}", key=f"{key}.{name}")
            elif item is not None and idle[name][0](item):
                yield Problem(idle[name][1], key=f"{key}.{name}")


# Translate Isaac Lab Arena's environment options to those of this project's environments. Pure functions.

_SAME_AS = {"pick_up_object": "object", "destination_location": "destination"}
_REASONS = {
    "pick_up_object": "environment '{name}' has no object to choose; leave it out",
    "destination_location": "environment '{name}' has its own place to put things, no other to choose; leave it out",
    "hdr": "there are no background pictures here; leave it out, and vary light and cameras by 'variations'",
    "object_set": "a job has one object; make a job of each with sweep: {{arena_env_args.object: [...]}}",
}


def is_option_of_arena(name: str) -> bool:
    """Whether Isaac Lab Arena's environments have an option of that name."""
    return name in _SAME_AS or name in _REASONS


def in_own_options(
    options: Mapping[str, Any], known: Collection[str], *, name: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Rename the file's options to those of the environment; return also the file's name of each; ConfigError."""
    # Options that the environment declares itself (``known``) stay unchanged.
    own: dict[str, Any] = {}
    renamed: dict[str, str] = {}
    problems = []
    for key, value in options.items():
        is_single = isinstance(value, str) or (isinstance(value, list) and len(value) == 1)
        arena = "object" if key == "object_set" and is_single else _SAME_AS.get(key)
        target = arena if key not in known and arena in known else None
        if key in known or (target is None and key not in _REASONS):
            own[key] = value
        elif target is None:
            problems.append(Problem(_REASONS[key].format(name=name), key=key))
        elif target in options or target in renamed:
            problems.append(Problem(f"is also given as {target}; give one of them", key=key))
        else:
            own[target] = value[0] if key == "object_set" and isinstance(value, list) else value
            renamed[target] = key
    refuse(problems)
    return own, renamed


# Translate Isaac Lab Arena's experiment files, ``runs`` with shared keys, into job files.

_PASSED_ON = ("variables", "comparisons", "bars")
_TOP_KEYS = frozenset({"runs", "shared", *_PASSED_ON})
_OVERRIDE = re.compile(r"\+{0,2}((?:runs|shared)\.[^=\s]+)=(.*)", re.DOTALL)
_WHOLE_BLOCK = re.compile(r"\$\{shared\.([\w.-]+)\}")


def in_words_of_the_file(problems: Sequence[Problem], file: str, *, is_experiment: bool) -> tuple[Problem, ...]:
    """Return problems of a job file as problems of `file`, with the keys of an experiment if it is one."""
    renamed = (("defaults.", "shared."), ("jobs[", "runs[")) if is_experiment else ()
    told = []
    for problem in problems:
        job, key = problem.job, problem.key
        for old, new in renamed:
            job = new + job.removeprefix(old) if job is not None and job.startswith(old) else job
            key = new + key.removeprefix(old) if key is not None and key.startswith(old) else key
        told.append(replace(problem, file=file, job=job, key=key))
    return tuple(told)


def is_override(token: str) -> bool:
    """True if a command line word sets an experiment's key: ``runs.lift.rollout_limit.num_episodes=3``."""
    return _OVERRIDE.fullmatch(token) is not None


def as_jobs(
    document: Any, job_keys: frozenset[str], overrides: Sequence[str] = ()
) -> tuple[Any, dict[str, Any], list[Problem]]:
    """Return an experiment as a job file, the values for `${shared.…}`, and its problems; ConfigError without runs."""
    # A job file stays unchanged.
    if isinstance(document, dict) and "datagen" in document:
        raise ConfigError(f"{DATAGEN}; leave it out", key="datagen")
    if not isinstance(document, dict) or "runs" not in document:
        if overrides:
            message = "sets a key of an experiment, but the file has no 'runs'; change its jobs in the file"
            raise ConfigError(message, key=overrides[0])
        return document, {}, []
    unknown = [key for key in document if key not in _TOP_KEYS]
    problems = [Problem(f"unknown key{did_you_mean(key, _TOP_KEYS)}", key=key) for key in unknown]
    shared = deepcopy(document.get("shared") or {})
    if not isinstance(shared, dict):
        raise ConfigError([*problems, Problem(f"{shown(shared)} is not a mapping", key="shared")])
    runs, wrong = _named_runs(document["runs"])
    problems += wrong
    if not runs:
        raise ConfigError(problems)
    for token in overrides if not wrong else ():
        problem = _set_by(token, shared=shared, runs=runs)
        problems += [problem] if problem else []

    # A shared key that is neither a key of a run nor mentioned is a typing mistake, most likely.
    texts = [leaf for _, leaf in leaves((shared, runs), into_lists=True) if isinstance(leaf, str)]
    named = {key for key in shared if any(f"${{shared.{key}" in text for text in texts)}
    defaults, wrong = respelt({key: value for key, value in shared.items() if key not in named - job_keys}, job_keys)
    problems += placed(wrong, below="shared")

    # A text such as ``${shared.policy}`` stands for a whole mapping.
    jobs: list[dict[str, Any]] = []
    for name, block in runs.items():
        job: dict[str, Any] = {"name": name}
        for key, value in block.items():
            match = _WHOLE_BLOCK.fullmatch(value) if isinstance(value, str) else None
            found = value_at(shared, match[1].split(".")) if match else None
            job[key] = deepcopy(found) if isinstance(found, Mapping) else value
        jobs.append(job)

    # Shared keys that a run may have are defaults of every run. Others serve ``${shared.…}``.
    passed_on = {key: document[key] for key in _PASSED_ON if key in document}
    return {"jobs": jobs, "defaults": defaults, **passed_on}, shared, problems


def _named_runs(runs: Any) -> tuple[dict[str, dict[str, Any]], list[Problem]]:
    """Return the runs by name, and the problems of their names and blocks."""
    if isinstance(runs, list):
        blocks = [(run.get("name") if isinstance(run, dict) else None, run) for run in runs]
    elif isinstance(runs, dict):
        blocks = [*runs.items()]
    else:
        return {}, [Problem(f"{shown(runs)} is neither a list nor a mapping", key="runs")]
    named: dict[str, dict[str, Any]] = {}
    problems = [] if blocks else [Problem("names no run", key="runs")]
    # Runs of a list have their name inside, runs of a mapping as their key; both must be unique texts.
    for position, (name, block) in enumerate(blocks):
        label = f"runs[{position}]" if isinstance(runs, list) else f"runs.{name}"
        if block is not None and not isinstance(block, dict):
            problems.append(Problem(f"{shown(block)} is not a mapping", key=label))
        elif not isinstance(name, str):
            problems.append(
                Problem("is missing" if name is None else f"{shown(name)} is not a text", key=f"{label}.name")
            )
        elif name in named:
            problems.append(Problem(f"'{name}' is taken by an earlier run", key=f"{label}.name"))
        elif isinstance(runs, dict) and "name" in (block or {}):
            problems.append(Problem("a run of a mapping is named by its key; leave it out", key=f"{label}.name"))
        else:
            named[name] = {key: deepcopy(value) for key, value in (block or {}).items() if key != "name"}
    return named, problems


def _set_by(token: str, *, shared: dict[str, Any], runs: dict[str, dict[str, Any]]) -> Problem | None:
    """Apply one override of the command line; return its problem, None if it has none."""
    match = _OVERRIDE.fullmatch(token)
    if match is None:
        return Problem("is no override such as runs.NAME.num_rebuilds=2", key=token)
    path, text = match.groups()
    outer, _, inner = path.partition(".")
    parts = inner.split(".")
    if not all(parts):
        return Problem("has an empty part", key=path)
    # A run's name may contain dots, so the longest known name at the start of the path counts.
    if outer == "runs":
        starts = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
        name = next((key for key in starts if key in runs), None)
        if name is None:
            return Problem(f"no run called '{parts[0]}'{did_you_mean(parts[0], runs)}", key=path)
        rest = parts[name.count(".") + 1 :]
        if rest in ([], ["name"]):
            return Problem("a run's name and the run as a whole are the file's; set a key of it", key=path)
        target, parts = runs[name], rest
    else:
        target = shared
    try:
        value = read_value(text)
    except ConfigError as error:
        return Problem(str(error), key=path)

    # A key of the file may itself contain dots, as those of variations do.
    while True:
        starts = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
        key = next((key for key in starts if key in target), parts[0])
        parts = parts[key.count(".") + 1 :]
        if not parts:
            target[key] = value
            return None
        if target.get(key) is None:
            target[key] = {}
        if not isinstance(target[key], dict):
            return Problem(f"cannot be set: '{key}' is {shown(target[key])}, which is no mapping", key=path)
        target = target[key]

"""Entries that stand for several jobs: suites, sweeps, checkpoints and robustness."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.config.expansion.suites import (
    MAX_JOBS,
    Controls,
    Robustness,
    SuiteTask,
    expand,
    read_robustness,
    sweep_problems,
    swept_step,
)
from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.config.schema import JobConfig, JobDefaults, JobsFile, SuiteMember
from isaaclab_arena.errors import ConfigError, Problem, refuse
from isaaclab_arena.evaluation.eval_runner import EvalOptions
from isaaclab_arena.registry import Registry
from tests.checkpoints.written import rsl_rl, trainer, write

# Tests of suites in job files.


JOB = {"name": "mine", "policy_type": "zero_action", "num_episodes": 2}


@dataclass
class Listed:
    """A suite of numbered tasks, which needs an option to find them."""

    numbers: Sequence[int] = (0, 1, 2)
    asked: list[Mapping[str, Any]] = field(default_factory=list)

    def tasks(self, options: Mapping[str, Any]) -> list[SuiteTask]:
        self.asked.append(dict(options))
        if options.get("checkout") == "nowhere":
            raise ConfigError(Problem("there is no such directory", key="checkout"))
        return [
            SuiteTask(label=f"task{number}", environment=f"cook:kitchen/{number}", options={"dish": number})
            for number in self.numbers
        ]


def registered(**suites: Any) -> Registry:
    registry = Registry("suite", {}, entry_point_group="isaaclab_arena.nobody")
    for name, suite in suites.items():
        registry.register(name, suite)
    return registry


def read(*jobs: dict[str, Any], suite: Any = None, **top: Any) -> JobsFile:
    registry = registered(kitchen=Listed() if suite is None else suite)
    found = read_jobs({"jobs": list(jobs), **top}, source="jobs.yaml", suites=registry)
    refuse(found.problems)
    return found


def problems(*jobs: dict[str, Any], suite: Any = None, **top: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read(*jobs, suite=suite, **top)
    return list(map(str, raised.value.problems))


def test_a_suite_becomes_one_job_per_task_as_if_they_were_written_out():
    suite = Listed()
    mine = {**JOB, "suite": "kitchen", "arena_env_args": {"checkout": "here", "num_envs": 4}, "seed": 7}
    after = {**JOB, "name": "after", "arena_env_args": {"environment": "reach"}}
    found = read(mine, after, suite=suite)
    written = [
        {
            **mine,
            "name": f"mine-task{number}",
            "suite": None,
            "arena_env_args": {**mine["arena_env_args"], "environment": f"cook:kitchen/{number}", "dish": number},
        }
        for number in range(3)
    ]
    assert [job.suite for job in found.jobs] == [
        *(SuiteMember(name="mine", suite="kitchen", task=f"task{number}") for number in range(3)),
        None,
    ]
    assert tuple(replace(job, suite=None) for job in found.jobs) == read(*written, after).jobs
    assert found.config_hash == read(*written, after).config_hash
    assert suite.asked == [{"checkout": "here", "num_envs": 4}]


def test_suites_can_be_swept_each_combination_is_one_and_they_stand_in_the_defaults():
    registry = registered(kitchen=Listed((0,)), garden=Listed((0, 1)))
    swept = {**JOB, "sweep": {"suite": ["kitchen", "garden"], "seed": [1]}}
    found = read_jobs({"jobs": [swept]}, source="jobs.yaml", suites=registry).jobs
    combinations = ["mine-kitchen-seed1", "mine-garden-seed1", "mine-garden-seed1"]
    assert [job.suite.name for job in found if job.suite] == combinations
    assert [job.name for job in found] == [f"{combinations[index]}-task{index // 2}" for index in range(3)]
    assert len(read(JOB, defaults={"suite": "kitchen"}).jobs) == 3
    own = {**JOB, "suite": None, "arena_env_args": {"environment": "reach"}}
    assert [job.name for job in read(own, defaults={"suite": "kitchen"}).jobs] == ["mine"]


@pytest.mark.parametrize(
    ("changes", "suite", "job", "expected"),
    [
        ({"suite": "kitchn"}, None, "mine", "suite: no suite called 'kitchn'; did you mean 'kitchen'?"),
        ({"suite": 3}, None, "mine", "suite: 3 is not the name of a suite"),
        ({"arena_env_args": {"environment": "reach"}}, None, "mine", "suite: gives every job its environment"),
        ({"arena_env_args": {"checkout": "nowhere"}}, None, "mine", "arena_env_args.checkout: there is no such"),
        ({"arena_env_args": 3}, None, "mine", "arena_env_args: 3 is not a mapping"),
        ({"name": "m" * 78}, None, "m" * 78, "name: with a task behind it, has 84 characters; at most 80"),
        ({}, Listed(()), "mine", "suite: 'kitchen' lists no task"),
        ({}, Listed((0, 0)), "mine", "suite: 'kitchen' lists a task twice"),
        ({}, object, "mine", "suite: 'kitchen' is registered as a type, which lists no tasks"),
        # Of all jobs of a suite once.
        ({"num_episodes": 0}, None, "mine", "num_episodes: must be at least 1, got 0"),
        ({"name": "taken"}, None, "taken-task1", "name: is taken by an earlier job"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_suite_is_told_with_its_key(changes, suite, job, expected):
    taken = {**JOB, "name": "taken-task1", "arena_env_args": {"environment": "reach"}}
    [problem] = problems(taken, {**JOB, "suite": "kitchen", **changes}, suite=suite)
    assert problem.startswith(f"jobs.yaml: job '{job}': {expected}")


def test_no_question_stops_one_task_of_a_suite_early():
    [problem] = problems({**JOB, "suite": "kitchen"}, bars=[{"job": "mine-task1", "at_least": 0.5, "stop": {}}])
    assert problem.startswith("jobs.yaml: bars[0].job: ")
    assert "'mine-task1'" in problem


def test_a_suite_may_not_make_more_jobs_than_a_file_may_have():
    registry = registered(kitchen=Listed(range(MAX_JOBS + 1)))
    with pytest.raises(ConfigError, match=f"suite: makes {MAX_JOBS + 1} jobs"):
        refuse(read_jobs({"jobs": [{**JOB, "suite": "kitchen"}]}, source="jobs.yaml", suites=registry).problems)


# Tests of sweeps.


KEYS = frozenset({"name", "seed", "policy_type", "arena_env_args", "policy_config_dict", "sweep"})


def test_the_last_key_changes_fastest():
    sweep = {"seed": [0, 1], "arena_env_args.object": ["cube", "can"]}
    jobs = list(expand({"name": "lift", "arena_env_args": {"environment": "lift_object"}}, sweep))
    assert [job["name"] for job in jobs] == ["lift-seed0-cube", "lift-seed0-can", "lift-seed1-cube", "lift-seed1-can"]
    assert jobs[3] == {
        "name": "lift-seed1-can",
        "seed": 1,
        "arena_env_args": {"environment": "lift_object", "object": "can"},
    }


@pytest.mark.parametrize(
    ("name", "sweep", "expected"),
    [
        ("a", {}, ["a"]),
        ("a-{seed}", {}, ["a-{seed}"]),
        ("a", {"policy_type": ["my_package.policies.Mine", "zero_action"]}, ["a-Mine", "a-zero_action"]),
        ("a", {"policy_type": ["one.Mine", "two.Mine"]}, ["a-policy_type0", "a-policy_type1"]),
        ("a", {"policy_config_dict.path": ["runs/a b.pt", "runs/c.pt"]}, ["a-runs_a_b.pt", "a-runs_c.pt"]),
        ("a", {"policy_config_dict.scale": [0.5, -1]}, ["a-scale0.5", "a-scale-1"]),
        ("a", {"policy_config_dict.fast": [True, None]}, ["a-fasttrue", "a-fastnone"]),
        ("a", {"policy_config_dict": [{"x": 1}, {"x": 2}]}, ["a-policy_config_dict0", "a-policy_config_dict1"]),
        # A placeholder takes the value, and the rest is appended.
        ("lift-{object}", {"seed": [3], "arena_env_args.object": ["cube"]}, ["lift-cube-seed3"]),
        ("{arena_env_args.object}-{seed}", {"seed": [3], "arena_env_args.object": ["cube"]}, ["cube-3"]),
    ],
    ids=str,
)
def test_a_name_says_what_was_swept(name, sweep, expected):
    assert [job["name"] for job in expand({"name": name}, sweep)] == expected


@pytest.mark.parametrize(
    ("job", "sweep", "message"),
    [
        ({}, {"seeds": [1]}, "did you mean 'seed'"),
        ({}, {"name": ["a"]}, "'name' is no key that can be swept"),
        ({}, {"sweep.seed": [1]}, "'sweep' is no key that can be swept"),
        ({}, {"seed": []}, "at least one value"),
        ({}, {"seed": 3}, "at least one value"),
        ({"arena_env_args": "x"}, {"arena_env_args.object": ["cube"]}, "is no mapping"),
        ({"name": "a-{sed}"}, {"seed": [1]}, "'{sed}' is no swept key; did you mean 'seed'"),
    ],
)
def test_a_sweep_that_cannot_be_expanded_is_refused(job, sweep, message):
    [found] = sweep_problems(job, sweep, KEYS)
    assert message in found.message


# Tests of `checkpoints` in job files.


ARCHIVE = rsl_rl(0)["model_100.pt"]


@pytest.fixture
def trained(tmp_path) -> Path:
    """The directory of a training that saved three checkpoints and its best."""
    write(tmp_path, {f"model_{name}.pt": ARCHIVE for name in ("0", "50", "100", "best")})
    return tmp_path


def checkpoints_read(
    directory: Path, asked: Any, *, option: str = "checkpoint_path", **more: Any
) -> tuple[JobConfig, ...]:
    job = {"name": "go1", "policy_type": "rsl_rl", "num_episodes": 2, "arena_env_args": {"environment": "reach"}}
    job |= {"policy_config_dict": {option: str(directory)}, "checkpoints": asked, **more}
    return read_jobs({"jobs": [job]}, source="jobs.yaml").jobs


def refusal(directory: Path, asked: Any, **more: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        checkpoints_read(directory, asked, **more)
    (problem,) = refused.value.problems
    assert (problem.file, problem.job) == ("jobs.yaml", "go1")
    return f"{problem.key}: {problem.message}".replace(str(directory), "DIR")


@pytest.mark.parametrize(
    ("asked", "jobs"),
    [
        ("all", {"go1-0": 0, "go1-50": 50, "go1-100": 100}),
        ("last", {"go1-100": 100}),
        ("best", {"go1-best": None}),
        ([100, 0, 100], {"go1-100": 100, "go1-0": 0}),
        (50, {"go1-50": 50}),
        ({"pattern": "model_*0.pt", "steps": [50]}, {"go1-50": 50}),
        ("model_*0.pt", {"go1-0": 0, "go1-50": 50, "go1-100": 100}),
        (None, {"go1": None}),
    ],
    ids=str,
)
def test_one_job_becomes_one_per_checkpoint_with_its_step_beside_it(trained, asked, jobs):
    found = checkpoints_read(trained, asked)
    assert {job.name: job.swept.get("checkpoint_step") for job in found} == jobs
    files = [Path(job.policy_config_dict["checkpoint_path"]) for job in found]
    names = [f"model_{name.removeprefix('go1-')}.pt" for name in jobs]
    assert files == ([trained / name for name in names] if asked else [trained])


def test_the_best_has_the_step_that_its_training_says(trained, tmp_path, caplog):
    checkpoints_read(trained, "best")
    assert f"the step of '{trained / 'model_best.pt'}' is unknown" in caplog.text
    (trained / "model_best.json").write_text('{"iterations": 50}')
    (job,) = checkpoints_read(trained, "best")
    assert (job.name, job.swept["checkpoint_step"]) == ("go1-best", 50)


def test_every_combination_of_a_sweep_has_the_checkpoints(trained):
    found = checkpoints_read(trained, [0, 50], sweep={"seed": [1, 2]})
    assert [(job.name, job.seed, dict(job.swept)) for job in found] == [
        (f"go1-seed{seed}-{step}", seed, {"seed": seed, "checkpoint_step": step}) for seed in (1, 2) for step in (0, 50)
    ]


def test_the_checkpoints_of_another_trainer_belong_to_the_option_of_another_policy(tmp_path):
    best = {"checkpoint-100/trainer_state.json": b'{"best_model_checkpoint": "out/checkpoint-100"}'}
    write(tmp_path, {**trainer(0), **best})
    for asked, name in (("all", "go1-100"), ("best", "go1-best")):
        (job,) = checkpoints_read(tmp_path, asked, option="model_path")
        assert job.policy_config_dict == {"model_path": str(tmp_path / "checkpoint-100")}
        assert (job.name, job.swept["checkpoint_step"]) == (name, 100)


@pytest.mark.parametrize(
    ("asked", "more", "message"),
    [
        ([50, 75], {}, "checkpoints: there is no checkpoint of step 75 in 'DIR'; its steps are 0, 50"),
        ("model_9*.pt", {}, "checkpoints: there is none like \"model_9*.pt\" in 'DIR'; its steps are 0, 50"),
        ("newest", {}, "checkpoints: must be all, best, last, a list of steps or a glob"),
        ([], {}, "got []"),
        ([True], {}, "got [true]"),
        ("last", {}, "DIR/model_100.pt' cannot be loaded: is not complete"),
        ("all", {"policy_config_dict": {"checkpoint_path": "DIR/model_50.pt"}}, "'DIR/model_50.pt' is no directory"),
        ("all", {"policy_config_dict": {}}, "checkpoints: needs the directory of the training"),
        (
            "all",
            {"policy_config_dict": {"checkpoint_path": "DIR/empty"}},
            "in 'DIR/empty'; its steps are none",
        ),
        ("best", {"policy_config_dict": {"checkpoint_path": "DIR/empty"}}, "'DIR/empty' names no best checkpoint"),
    ],
    ids=str,
)
def test_checkpoints_that_are_not_there_are_refused(trained, asked, more, message):
    (trained / "empty").mkdir()
    (trained / "model_100.pt").write_bytes(ARCHIVE[:-9])
    for options in more.values():
        options |= {name: path.replace("DIR", str(trained)) for name, path in options.items()}
    assert message in refusal(trained, asked, **more)


@pytest.mark.parametrize(
    ("key", "value", "step"),
    [
        ("policy_config_dict.checkpoint_path", "runs/2026-01-01/model_2000.pt", 2000),
        ("policy_config_dict.checkpoint_path", "outputs/train/checkpoints/002000/pretrained_model", 2000),
        ("policy_config_dict.model_path", "finetuned/checkpoint-500", 500),
        ("policy_config_dict.checkpoint_step", 30, 30),
        ("checkpoint_step", 30, 30),
        ("policy_config_dict.agent.Checkpoint", "step-7/model.pt", 7),
        ("policy_config_dict.checkpoint_path", "models/best", None),
        ("policy_config_dict.checkpoint_path", "9" * 5000, None),
        ("policy_config_dict.checkpoint_path", True, None),
        ("policy_config_dict.speed", 2, None),
        ("arena_env_args.checkpoint", 4, None),
    ],
)
def test_a_swept_checkpoint_says_after_how_many_steps_it_was_saved(key, value, step):
    assert swept_step(key, value) == step


# Tests of `robustness` in job files.


ROBUSTNESS_JOB = {"policy_type": "zero_action", "num_episodes": 2, "arena_env_args": {"environment": "reach"}}


def two_arms(job: JobConfig, asked: Robustness | Controls) -> Sequence[JobConfig]:
    """Make the job itself and one for each level, with no environment behind them."""
    assert isinstance(asked, Robustness)
    return [replace(job, name=f"{job.name}-{level}", seed=level) for level in (0, *asked.levels)]


def robustness_read(*jobs: dict[str, Any], **how: Any) -> tuple[JobConfig, ...]:
    document = {"jobs": [{**ROBUSTNESS_JOB, **job} for job in jobs], **how.pop("more", {})}
    return read_jobs(document, source="jobs.yaml", arms=two_arms, **how).jobs


def robustness_typed(axes: str, levels: int | None = None) -> Any:
    return EvalOptions(eval_jobs_config="", robustness=axes, robustness_levels=levels).job_defaults().robustness


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        ({}, Robustness()),
        ({"axes": "all", "levels": 2}, Robustness(levels=(1, 2))),
        ({"axes": ["light", "delay", "light"], "levels": [5, 1]}, Robustness(axes=("light", "delay"), levels=(1, 5))),
        ({"axes": "light"}, Robustness(axes=("light",))),
        (robustness_typed("light, delay", 1), Robustness(axes=("light", "delay"), levels=(1,))),
        (robustness_typed("all"), Robustness()),
    ],
    ids=str,
)
def test_axes_and_levels_are_read(value, asked):
    assert read_robustness(value) == asked


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "robustness: 3 is not a mapping"),
        ({"axis": "light"}, "robustness.axis: unknown key; did you mean 'axes'?"),
        ({"levels": 0}, "robustness.levels: must be 1 to 20, or a list of such levels, got 0"),
        ({"levels": [1, 40]}, "robustness.levels: must be 1 to 20, or a list of such levels, got [1, 40]"),
        ({"axes": 3}, "robustness.axes: must be all or a list of axes, got 3"),
        ({"axes": []}, "robustness.axes: lists no axis"),
    ],
    ids=str,
)
def test_what_is_wrong_with_robustness_is_told_with_its_job(value, message):
    with pytest.raises(ConfigError) as refused:
        robustness_read({"name": "reach", "robustness": value})
    assert f"jobs.yaml: job 'reach': {message}" in {str(problem) for problem in refused.value.problems}


def test_an_arm_needs_a_name_of_its_own_and_a_program_that_makes_arms():
    with pytest.raises(ConfigError, match="is taken by an earlier job"):
        robustness_read({"name": "a-0"}, {"name": "a", "robustness": {"levels": 1}})
    [problem] = read_jobs({"jobs": [{**ROBUSTNESS_JOB, "name": "a", "robustness": {}}]}, source="jobs.yaml").problems
    assert (problem.job, problem.key) == ("a", "robustness")


def test_arms_stand_where_their_job_stood_and_are_counted_on():
    jobs = robustness_read({"name": "a"}, {"name": "b", "robustness": {"levels": 2}}, {"name": "c"})
    assert [(job.index, job.name) for job in jobs] == [(0, "a"), (1, "b-0"), (2, "b-1"), (3, "b-2"), (4, "c")]


def test_defaults_the_file_and_the_command_line_may_ask_for_it_and_the_job_has_the_last_word():
    asked = JobDefaults(robustness={"levels": 1})
    assert [job.name for job in robustness_read({"name": "a"}, defaults=asked)] == ["a-0", "a-1"]
    of_file = {"defaults": {"robustness": {"levels": [3]}}}
    assert [job.name for job in robustness_read({"name": "a"}, more=of_file, defaults=asked)] == ["a-0", "a-3"]
    own = {"name": "a", "robustness": {"levels": [4]}}
    assert [job.name for job in robustness_read(own, more=of_file, defaults=asked)] == ["a-0", "a-4"]

"""Tests of job files, from the file to its jobs."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from isaaclab_arena.config.loading import load_jobs_file, read_jobs
from isaaclab_arena.config.schema import UNREADABLE, JobConfig, JobDefaults, JobStatus
from isaaclab_arena.errors import ConfigError, Problem
from tests.growth import assert_grows_linearly

JOB = {"name": "lift", "policy_type": "zero_action", "arena_env_args": {"environment": "lift_object"}}


@pytest.fixture
def problems_of(load):
    def load_and_fail(document: Any) -> tuple[Problem, ...]:
        with pytest.raises(ConfigError) as refused:
            load(document)
        return refused.value.problems

    return load_and_fail


def test_a_job_gets_arenas_defaults(load):
    given = {"name": "lift", "policy_type": "zero_action", "num_episodes": 5}
    [job] = load({"jobs": [{**JOB, **given}]}).jobs
    assert job == JobConfig(index=0, environment="lift_object", chooses_num_envs=True, **given)


@pytest.fixture
def policy_file(tmp_path) -> Path:
    (tmp_path / "policy.yaml").write_text("speed: 0.5\ncheckpoint_path: ~/a.pt\n")
    return tmp_path / "jobs.yaml"


def options_in(file: Path, document: dict[str, Any]) -> list[Any]:
    file.write_text(yaml.safe_dump(document))
    return [job.policy_config_dict for job in load_jobs_file(file).jobs]


def test_a_policys_options_may_be_in_a_file_beside_the_job_file_or_in_the_working_directory(
    policy_file, tmp_path, monkeypatch
):
    read = {"speed": 0.5, "checkpoint_path": str(Path("~/a.pt").expanduser())}
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "other.yaml").write_text("speed: 2")
    for place, key, named, options in (
        (policy_file, "policy_config_dict", "policy.yaml", read),
        (policy_file, "policy_args", "policy.yaml", read),
        (policy_file, "policy_config_dict", "other.yaml", {"speed": 2}),
        (here / "jobs.yaml", "policy_config_dict", str(tmp_path / "policy.yaml"), read),
    ):
        assert options_in(place, {"jobs": [{**JOB, key: named}]}) == [options]
    (tmp_path / "wrong.yaml").write_text("[1, 2]")
    policy_file.write_text(yaml.safe_dump({"jobs": [{**JOB, "policy_config_dict": "wrong.yaml"}]}))
    [problem] = load_jobs_file(policy_file).problems
    assert (problem.job, problem.key) == ("lift", "policy_config_dict")


def test_a_file_of_options_goes_over_defaults_and_into_sweeps_and_interpolations_as_what_it_holds(policy_file):
    defaults = {"policy_config_dict": {"speed": 1.0, "gain": 3}}
    job = {**JOB, "policy_config_dict": "policy.yaml"}
    [merged] = options_in(policy_file, {"defaults": defaults, "jobs": [job]})
    assert (merged["speed"], merged["gain"]) == (0.5, 3)
    defaults = {"policy_config_dict": "policy.yaml"}
    [merged] = options_in(policy_file, {"defaults": defaults, "jobs": [{**JOB, "policy_config_dict": {"speed": 9}}]})
    assert (merged["speed"], "checkpoint_path" in merged) == (9, True)
    (policy_file.parent / "other.yaml").write_text("speed: 2")
    swept = {**JOB, "sweep": {"policy_config_dict": ["policy.yaml", "other.yaml"]}}
    assert [each["speed"] for each in options_in(policy_file, {"jobs": [swept]})] == [0.5, 2]
    named = {"variables": {"file": "other"}, "jobs": [{**JOB, "policy_config_dict": "${variables.file}.yaml"}]}
    assert options_in(policy_file, named) == [{"speed": 2}]


def test_every_key_of_arenas_job_files_is_understood(load):
    same = {
        "name": "lift", "policy_type": "my.Policy", "policy_config_dict": {"policy_device_id": None}, "num_episodes": 6,
        "num_rebuilds": 2, "language_instruction": "lift it", "variations": {"light": {"enabled": True}}, "seed": 3,
    }  # fmt: skip
    of_environment = {"num_envs": 4, "enable_cameras": True, "placement_seed": 7}
    own = {"object": "cube", "object_set": ["a", "b"]}
    named = {"environment": "lift_object", "env_spacing": 2.5, "nothing": None, **of_environment, **own}
    assert load({"jobs": [{**same, "status": "completed", "arena_env_args": named}]}).jobs == (
        JobConfig(
            index=0, environment="lift_object", environment_args=own, status=JobStatus.COMPLETED,
            **same, **of_environment,
        ),
    )  # fmt: skip


def test_token_lists_and_policy_args_mean_the_same_as_mappings(load):
    tokens = ["--num_envs", "4", "--enable_cameras", "lift_object", "--object", "cube"]
    old = {**JOB, "arena_env_args": tokens, "policy_args": ["--replay-file-path", "a.hdf5", "--loop"]}
    new = {
        **JOB,
        "arena_env_args": {"environment": "lift_object", "num_envs": 4, "enable_cameras": True, "object": "cube"},
        "policy_config_dict": {"replay_file_path": "a.hdf5", "loop": True},
    }
    assert load({"jobs": [old]}) == load({"jobs": [new]})
    assert load({"jobs": [{**JOB, "policy_args": {"a": 1}}]}).jobs[0].policy_config_dict == {"a": 1}


def test_a_jobs_interpreter_is_an_option_of_its_policy(load):
    short = load({"defaults": {"python": "a"}, "jobs": [{**JOB, "policy_config_dict": {"speed": 1}}]})
    assert short.jobs[0].policy_config_dict == {"speed": 1, "python": "a"}
    assert short == load({"jobs": [{**JOB, "python": "a", "policy_config_dict": {"speed": 1, "python": "a"}}]})


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({}, True),
        ({"seed": 1}, False),
        ({"timeout_s": 60, "episode_timeout_s": 1.5}, True),
    ],
    ids=str,
)
def test_the_hash_is_that_of_what_decides_the_results(load, tmp_path, change, is_same):
    plain = load({"jobs": [JOB]})
    changed = load({"jobs": [{**JOB, **change}], "tracking": ["wandb", "tensorboard"]})
    assert changed.tracking == ("wandb", "tensorboard")
    assert (changed.jobs == plain.jobs) == (change == {})
    assert (changed.config_hash == plain.config_hash) == is_same
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump({"jobs": [JOB]}))
    assert load_jobs_file(tmp_path / "jobs.yaml").config_hash == plain.config_hash


def test_a_job_of_a_sweep_knows_what_was_swept_and_is_the_same_job_as_one_that_is_written_out(load):
    sweep = {"policy_config_dict.speed": ["${variables.slow}", 2], "seed": [4]}
    swept = load({"variables": {"slow": 0.5}, "jobs": [{**JOB, "name": "a", "sweep": sweep}]})
    assert [job.swept for job in swept.jobs] == [{"policy_config_dict.speed": speed, "seed": 4} for speed in (0.5, 2)]
    written = [
        {**JOB, "name": job.name, "seed": 4, "policy_config_dict": {"speed": job.swept["policy_config_dict.speed"]}}
        for job in swept.jobs
    ]
    assert load({"jobs": written}).config_hash == swept.config_hash
    assert [job.swept for job in load({"jobs": written}).jobs] == [{}, {}]
    # A key that another one replaces has no value.
    sweep = {"policy_config_dict.speed": [1], "policy_config_dict": [{"other": 2}]}
    (job,) = load({"jobs": [{**JOB, "name": "a", "sweep": sweep}]}).jobs
    assert job.swept == {"policy_config_dict.speed": None, "policy_config_dict": {"other": 2}}


def test_defaults_lie_under_each_job_whose_own_length_replaces_theirs(load):
    defaults = {"num_episodes": 20, "seed": 4, "arena_env_args": {"num_envs": 8, "embodiment": "panda"}}
    own = {**JOB, "arena_env_args": {"environment": "lift_object", "num_envs": 2}, "seed": None}
    job, steps = load({"defaults": defaults, "jobs": [own, {**JOB, "name": "b", "num_steps": 100}]}).jobs
    assert (job.num_episodes, job.num_envs, job.seed, job.environment_args) == (20, 2, 0, {"embodiment": "panda"})
    assert (steps.num_steps, steps.num_episodes, steps.num_envs, steps.seed) == (100, None, 8, 4)


def test_the_command_line_speaks_for_jobs_that_do_not(load):
    defaults = JobDefaults(num_episodes=7, num_envs=3, seed=9)
    jobs = load({"jobs": [JOB, {**JOB, "name": "b", "num_steps": 5, "seed": 1}]}, defaults).jobs
    assert [(job.num_episodes, job.num_steps, job.num_envs, job.seed) for job in jobs] == [
        (7, None, 3, 9),
        (None, 5, 3, 1),
    ]


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        (JobDefaults(num_episodes=0), "--num_episodes: must be at least 1, got 0"),
        (JobDefaults(num_envs=-1), "--num_envs: must be at least 1, got -1"),
        (JobDefaults(seed=2**63), "--seed: must be at most 9223372036854775807, got 9223372036854775808"),
        (JobDefaults(num_steps=1, num_episodes=1), "--num_steps: excludes --num_episodes"),
    ],
)
def test_the_command_line_is_checked_too(load, defaults, message):
    with pytest.raises(ConfigError, match=message):
        load({"jobs": [JOB]}, defaults)


def test_interpolation_reaches_variables_defaults_other_jobs_and_the_job_itself(load):
    document = {
        "variables": {"episodes": 20, "directory": "models", "args": {"object": "can"}},
        "defaults": {"num_episodes": "${variables.episodes}", "language_instruction": "lift the ${.name}"},
        "jobs": [
            {**JOB, "name": "cube", "seed": 5, "policy_config_dict": {"path": "${variables.directory}/a.pt"}},
            {**JOB, "name": "can", "seed": "${jobs[0].seed}", "policy_config_dict": "${variables.args}"},
        ],
    }
    cube, can = load(document).jobs
    assert (cube.num_episodes, cube.language_instruction) == (20, "lift the cube")
    assert cube.policy_config_dict == {"path": "models/a.pt"}
    assert (can.seed, can.language_instruction) == (5, "lift the can")
    assert can.policy_config_dict == {"object": "can"}


@pytest.mark.parametrize(
    ("reference", "further"),
    [
        ("${{oc.select:${{oc.env:NO_SUCH_VARIABLE_HERE,variables.a{0}}}}}", {}),
        ("${{oc.select:${{variables.stem}}${{variables.n{0}}}}}", {"stem": "variables.a"}),
        ("${{oc.decode:'${{variables.dollar}}${{variables.t{0}}}'}}", {"dollar": "$"}),
        ("${{oc.select:'variables[a{0}]'}}", {}),
    ],
    ids=["a default of the environment", "joined names", "a decoded text", "a quoted name"],
)
def test_references_whose_names_are_results_are_followed_and_counted_too(load, problems_of, reference, further):
    texts = {f"n{level}": level for level in range(15)}
    texts |= {f"t{level}": f"{{variables.a{level}}}" for level in range(15)}

    def document(levels: int) -> dict[str, Any]:
        # Each variable holds a reference to the one before twice.
        doubled = {f"a{level}": reference.format(level - 1) * 2 for level in range(1, levels + 1)}
        variables = {**further, **texts, "a0": "x", **doubled}
        return {"variables": variables, "jobs": [{**JOB, "policy_type": f"${{variables.a{levels}}}"}]}

    assert load(document(3)).jobs[0].policy_type == "x" * 8
    [problem] = problems_of(document(15))
    assert "1100 look-ups" in problem.message


def test_a_resolver_of_the_program_may_load_another_job_file(load):
    def load_another() -> str:
        return load({"variables": {"name": "inner"}, "jobs": [{**JOB, "name": "${variables.name}"}]}).jobs[0].name

    OmegaConf.register_resolver("another", load_another)
    try:
        assert load({"jobs": [{**JOB, "name": "from_${another:}"}]}).jobs[0].name == "from_inner"
    finally:
        OmegaConf.clear_resolver("another")


def test_a_sweep_gives_stable_indices_and_names(load):
    document = {
        "variables": {"seeds": [0, 1]},
        "sweep": {"seed": "${variables.seeds}"},
        "jobs": [
            {**JOB, "sweep": {"arena_env_args.object": ["cube", "can"]}, "language_instruction": "seed ${.seed}"},
            {**JOB, "name": "alone", "sweep": None},
        ],
    }
    jobs = load(document).jobs
    assert [(job.index, job.name, job.seed) for job in jobs] == [
        (0, "lift-seed0-cube", 0),
        (1, "lift-seed0-can", 0),
        (2, "lift-seed1-cube", 1),
        (3, "lift-seed1-can", 1),
        (4, "alone", 0),
    ]
    assert jobs[3].environment_args == {"object": "can"}
    assert jobs[3].language_instruction == "seed 1"


# Mistakes: what names the thing, the value and the way out.


@pytest.mark.parametrize(
    ("document", "key", "message"),
    [
        ([], None, "the top level is [], not a mapping"),
        ("text", None, 'the top level is "text"'),
        ({}, "jobs", "is missing"),
        ({"jobs": None}, "jobs", "null is not a list"),
        ({"jobs": []}, "jobs", "lists no job"),
        ({"jbos": [], "jobs": [JOB]}, "jbos", "did you mean 'jobs'?"),
        ({"jobs": [JOB], "defaults": [1]}, "defaults", "[1] is not a mapping"),
        ({"jobs": [JOB], "sweep": 3}, "sweep", "3 is not a mapping"),
        ({"jobs": [JOB], "defaults": {"num_episode": 3}}, "defaults.num_episode", "did you mean 'num_episodes'?"),
        ({"jobs": [JOB], "defaults": {"name": "a"}}, "defaults.name", "unknown key"),
        ({"jobs": [JOB], "defaults": {"sweep": {}}}, "defaults.sweep", "belongs to the top level"),
        ({"jobs": [JOB], "defaults": {"policy_args": ["a"]}}, "defaults.policy_config_dict", "belongs to no option"),
        ({"jobs": [JOB], "defaults": {"seed": "${"}}, "defaults.seed", "no well-formed interpolation"),
        ({"jobs": [JOB], "tracking": "wandb"}, "tracking", '"wandb" is not a list such as [wandb]'),
        ({"jobs": [JOB], "tracking": ["wandbb"]}, "tracking", "did you mean 'wandb'?"),
        ({"jobs": [JOB], "tracking": [{"wandb": True}]}, "tracking", 'no tracker {"wandb": true}'),
        (JOB, None, "put this job into a list under the key 'jobs'"),
        ({"embodiment_tag": "X"}, None, "it lists no 'jobs'; its keys are embod"),
    ],
    ids=str,
)
def test_a_wrong_top_level_is_refused(problems_of, document, key, message):
    [problem] = problems_of(document)
    assert (problem.job, problem.key, Path(problem.file).name) == (None, key, "jobs.json")
    assert message in problem.message


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        ({"num_episode": 3}, "num_episode", "unknown key; did you mean 'num_episodes'?"),
        ({"policy_type": None}, "policy_type", "null is not a text"),
        ({"policy_type": ""}, "policy_type", "is empty"),
        ({"arena_env_args": "lift_object"}, "arena_env_args", '"lift_object" is not a mapping'),
        ({"arena_env_args": {}}, "arena_env_args.environment", "is missing"),
        ({"arena_env_args": {"environment": None}}, "arena_env_args.environment", "null is not a text"),
        ({"arena_env_args": ["--num_envs", "4"]}, "arena_env_args.environment", "is missing"),
        ({"arena_env_args": ["a", "b"]}, "arena_env_args", "takes one environment, got 'a' and 'b'"),
        ({"arena_env_args": ["a", "--environment", "b"]}, "arena_env_args", "names the environment twice"),
        ({"arena_env_args": ["a", 4]}, "arena_env_args", "the token 4 is not a text"),
        ({"arena_env_args": ["a", "--b", "1", "--b", "2"]}, "arena_env_args.b", "--b is given twice"),
        ({"policy_args": ["x"]}, "policy_config_dict", "'x' belongs to no option"),
        ({"policy_args": {}, "policy_config_dict": {}}, "policy_args", "old name of policy_config_dict"),
        ({"policy_config_dict": "a"}, "policy_config_dict", '"a", a file of options: there is no such file'),
        ({"policy_config_dict": 3}, "policy_config_dict", "3 is not a mapping"),
        ({"python": "a", "policy_config_dict": {"python": "b"}}, "python", "policy_config_dict.python is 'b'"),
        ({"variations": [1]}, "variations", "[1] is not a mapping"),
        ({"num_episodes": 0}, "num_episodes", "must be at least 1, got 0"),
        ({"num_episodes": 3.0}, "num_episodes", "3.0 is not a whole number"),
        ({"num_episodes": True}, "num_episodes", "true is not a whole number"),
        ({"num_episodes": 10**12}, "num_episodes", "must be at most 10000000, got 1000000000000"),
        ({"num_steps": 0}, "num_steps", "must be at least 1, got 0"),
        ({"num_steps": 1, "num_episodes": 1}, "num_steps", "excludes num_episodes"),
        ({"num_episodes": 2, "num_rebuilds": 3}, "num_rebuilds", "3 rebuilds cannot share 2 episodes"),
        ({"num_rebuilds": 0}, "num_rebuilds", "must be at least 1, got 0"),
        ({"seed": -1}, "seed", "must be at least 0, got -1"),
        ({"seed": 2**63}, "seed", "must be at most 9223372036854775807, got 9223372036854775808"),
        ({"seed": "abc"}, "seed", '"abc" is not a whole number'),
        *(
            ({key: value}, key, message)
            for key in ("timeout_s", "episode_timeout_s")
            for value, message in ((0, "greater than 0"), (1e9, "at most 100000000"), ("60", "is not a number"))
        ),
        ({"status": "done"}, "status", "no status 'done'; known are: completed, failed, pending, running"),
        ({"status": True}, "status", "true is not a text"),
        ({"language_instruction": "\ud800"}, "language_instruction", "holds half a character"),
        ({"arena_env_args": {"environment": "a", "num_envs": 0}}, "arena_env_args.num_envs", "at least 1, got 0"),
        ({"arena_env_args": {"environment": "a", "num_envs": "4"}}, "arena_env_args.num_envs", "not a whole number"),
        ({"arena_env_args": {"environment": "a", "enable_cameras": 1}}, "arena_env_args.enable_cameras", "not true"),
        ({"arena_env_args": {"environment": "a", "placement_seed": -1}}, "arena_env_args.placement_seed", "got -1"),
        ({"seed": "${no.such}"}, "seed", "Interpolation key 'no.such' not found"),
        ({"seed": "${.seed}"}, "seed", "cannot be resolved"),
        ({"policy_config_dict": {"a": "${"}}, "policy_config_dict.a", '"${" is no well-formed interpolation'),
        ({"sweep": [1]}, "sweep", "[1] is not a mapping"),
        ({"sweep": {"seeds": [1]}}, "sweep.seeds", "did you mean 'seed'?"),
        ({"sweep": {"seed": "${no.such}"}}, "sweep.seed", "not found"),
        ({"sweep": {"seed": list(range(400)), "policy_type": ["a"] * 400}}, "sweep", "makes 160000 jobs"),
        ({"name": "first"}, "name", "is taken by an earlier job"),
        ({"name": "FIRST"}, "name", "is taken by 'first' where file systems ignore case"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_job_is_refused_with_its_name_and_key(problems_of, change, key, message):
    [problem] = problems_of({"jobs": [{**JOB, "name": "first"}, {**JOB, **change}]})
    assert (problem.job, problem.key) == (change.get("name", "lift"), key)
    assert message in problem.message


@pytest.mark.parametrize(
    ("job", "key", "message"),
    [
        (3, None, "3 is not a mapping"),
        *(
            ({**JOB, "name": name}, "name", message)
            for name, message in ((3, "3 is not a text"), ("a/b", "slash"), ("", "is empty"), ("\ud800", "surrogate"))
        ),
    ],
)
def test_a_job_without_a_usable_name_is_called_by_its_position(problems_of, job, key, message):
    [problem] = problems_of({"jobs": [JOB, job]})
    assert (problem.job, problem.key) == ("jobs[1]", key)
    assert message in problem.message


def test_what_is_wrong_in_the_defaults_is_told_once(problems_of):
    jobs = [{**JOB, "name": str(position)} for position in range(10)]
    [problem] = problems_of({"defaults": {"arena_env_args": {"num_envs": 0}}, "jobs": jobs})
    assert (problem.job, problem.key) == (None, "defaults.arena_env_args.num_envs")


def test_ten_times_the_jobs_load_in_about_ten_times_the_time(tmp_path):
    path: Path = tmp_path / "jobs.json"

    def load(num_jobs: int) -> None:
        jobs = [
            {**JOB, "name": f"lift{position}", "language_instruction": "lift ${variables.what}"}
            for position in range(num_jobs)
        ]
        path.write_text(json.dumps({"variables": {"what": "it"}, "defaults": {"num_episodes": 3}, "jobs": jobs}))
        loaded = load_jobs_file(path)
        assert len(loaded.jobs) == num_jobs
        assert {job.language_instruction for job in loaded.jobs} == {"lift it"}

    assert_grows_linearly(load, size=200)


def test_what_is_wrong_with_each_of_ten_times_the_jobs_is_told_in_about_ten_times_the_time(problems_of):
    def tell(num_jobs: int) -> None:
        jobs = [{"name": f"lift{position}", "num_episodes": 3} for position in range(num_jobs)]
        assert len(problems_of({"jobs": jobs})) == 2 * num_jobs

    assert_grows_linearly(tell, size=200)


def test_a_file_with_mistakes_is_read_as_far_as_it_goes_and_all_that_is_wrong_is_told_at_once(problems_of):
    document = {
        "jobz": [],
        "tracking": ["wandbb"],
        "defaults": {"num_step": 1},
        "jobs": [
            {**JOB, "name": "a/b", "seed": "abc", "num_episods": 3},
            {"name": "bare", "policy_type": "scripted", "sweep": {"seed": []}},
            {"name": "blind", "arena_env_args": {"environment": "reach", "num_envs": 0, "object": "mug"}},
            {**JOB, "name": "bare"},
        ],
        "bars": [{"job": "blind", "at_least": 2.0, "stop": {}}, {"job": "bare-seed1", "at_least": 0.5, "stop": {}}],
    }
    read = read_jobs(document, source="jobs.yaml")
    assert [(problem.job, problem.key) for problem in read.problems] == [
        (None, "jobz"),
        (None, "tracking"),
        (None, "defaults.num_step"),
        ("jobs[0]", "num_episods"),
        ("jobs[0]", "seed"),
        ("jobs[0]", "name"),
        ("bare", "sweep.seed"),
        ("bare", "arena_env_args"),
        ("blind", "arena_env_args.num_envs"),
        ("blind", "policy_type"),
        ("bare", "name"),
        (None, "bars[0].at_least"),
    ]
    assert [problem.message for problem in problems_of(document)] == [problem.message for problem in read.problems]
    first, *_, blind, _ = read.readable_jobs
    assert (first.name, first.environment, first.policy_type) == ("jobs[0]", "lift_object", "zero_action")
    assert (blind.environment_args, blind.policy_type) == ({"object": "mug"}, UNREADABLE)


def test_a_question_about_jobs_that_can_be_read_is_checked_whatever_is_wrong_with_others(problems_of):
    wrong, sound = {**JOB, "name": "wrong", "num_episods": 3}, {**JOB, "num_episodes": 3}
    comparisons = [
        {"name": f"new or {other}", "jobs": ["new", other], "stop": {"max_episodes": 3}}
        for other in ("nowhere", "seeded", "wrong")
    ]
    document = {
        "jobs": [wrong, {**sound, "name": "new"}, {**sound, "name": "seeded", "seed": 5}],
        "tracking": ["wandbb"],
        "comparisons": comparisons,
    }
    keys = [problem.key for problem in problems_of(document)]
    assert keys == ["tracking", "num_episods", "comparisons[0].jobs", "comparisons[1].jobs"]

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
    jobs = load({"jobs": [{**JOB, "num_episodes": 5}]}).jobs
    assert jobs == (
        JobConfig(
            index=0,
            name="lift",
            environment="lift_object",
            policy_type="zero_action",
            num_episodes=5,
            chooses_num_envs=True,
        ),
    )


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
    job = {**JOB, "policy_config_dict": "policy.yaml"}
    assert options_in(policy_file, {"jobs": [job]}) == [read]
    assert options_in(policy_file, {"jobs": [{**JOB, "policy_args": "policy.yaml"}]}) == [read]
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "other.yaml").write_text("speed: 2")
    assert options_in(policy_file, {"jobs": [{**job, "policy_config_dict": "other.yaml"}]}) == [{"speed": 2}]
    absolute = str(tmp_path / "policy.yaml")
    assert options_in(here / "jobs.yaml", {"jobs": [{**job, "policy_config_dict": absolute}]}) == [read]


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


@pytest.mark.parametrize(
    ("text", "message"), [(None, "no such file"), ("[1, 2]", "holds no mapping of the policy's options")]
)
def test_a_file_without_options_is_named_with_the_job(policy_file, text, message):
    if text is not None:
        (policy_file.parent / "wrong.yaml").write_text(text)
    policy_file.write_text(yaml.safe_dump({"jobs": [{**JOB, "policy_config_dict": "wrong.yaml"}]}))
    problems = load_jobs_file(policy_file).problems
    assert [(each.job, each.key) for each in problems] == [("lift", "policy_config_dict")]
    assert message in problems[0].message


def test_every_key_of_arenas_job_files_is_understood(load):
    job = {
        "name": "lift",
        "arena_env_args": {
            "environment": "lift_object",
            "num_envs": 4,
            "env_spacing": 2.5,
            "enable_cameras": True,
            "placement_seed": 7,
            "object": "cube",
            "object_set": ["a", "b"],
            "nothing": None,
        },
        "policy_type": "my.Policy",
        "policy_config_dict": {"policy_device_id": None},
        "num_episodes": 6,
        "num_rebuilds": 2,
        "language_instruction": "lift it",
        "variations": {"light": {"enabled": True}},
        "seed": 3,
        "status": "completed",
    }
    assert load({"jobs": [job]}).jobs == (
        JobConfig(
            index=0,
            name="lift",
            environment="lift_object",
            environment_args={"object": "cube", "object_set": ["a", "b"]},
            num_envs=4,
            enable_cameras=True,
            placement_seed=7,
            policy_type="my.Policy",
            policy_config_dict={"policy_device_id": None},
            num_episodes=6,
            num_rebuilds=2,
            language_instruction="lift it",
            variations={"light": {"enabled": True}},
            seed=3,
            status=JobStatus.COMPLETED,
        ),
    )


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


def test_json_and_yaml_say_the_same(tmp_path):
    document = {"defaults": {"num_episodes": 3}, "jobs": [JOB]}
    (tmp_path / "a.json").write_text(json.dumps(document))
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(document))
    from_json, from_yaml = load_jobs_file(tmp_path / "a.json"), load_jobs_file(tmp_path / "a.yaml")
    assert from_json.jobs == from_yaml.jobs
    assert from_json.config_hash == from_yaml.config_hash


def test_the_hash_tells_different_jobs_apart(load):
    first = load({"jobs": [JOB]})
    assert first.config_hash == load({"jobs": [JOB]}).config_hash
    assert first.config_hash != load({"jobs": [{**JOB, "seed": 1}]}).config_hash


def test_a_job_of_a_sweep_knows_what_was_swept_and_is_the_same_job_as_one_that_is_written_out(load):
    sweep = {"policy_config_dict.speed": ["${variables.slow}", 2], "seed": [4]}
    swept = load({"variables": {"slow": 0.5}, "jobs": [{**JOB, "name": "a", "sweep": sweep}]})
    assert [job.swept for job in swept.jobs] == [
        {"policy_config_dict.speed": 0.5, "seed": 4},
        {"policy_config_dict.speed": 2, "seed": 4},
    ]
    written = [
        {**JOB, "name": job.name, "seed": 4, "policy_config_dict": {"speed": job.swept["policy_config_dict.speed"]}}
        for job in swept.jobs
    ]
    assert load({"jobs": written}).config_hash == swept.config_hash
    assert [job.swept for job in load({"jobs": written}).jobs] == [{}, {}]


def test_a_swept_key_that_another_one_replaces_has_no_value(load):
    sweep = {"policy_config_dict.speed": [1], "policy_config_dict": [{"other": 2}]}
    (job,) = load({"jobs": [{**JOB, "name": "a", "sweep": sweep}]}).jobs
    assert job.swept == {"policy_config_dict.speed": None, "policy_config_dict": {"other": 2}}


def test_how_long_a_job_may_take_is_no_part_of_the_hash(load):
    limited = load({"jobs": [{**JOB, "timeout_s": 60, "episode_timeout_s": 1.5}]})
    assert (limited.jobs[0].timeout_s, limited.jobs[0].episode_timeout_s) == (60.0, 1.5)
    assert limited.config_hash == load({"jobs": [JOB]}).config_hash


@pytest.mark.parametrize("key", ["timeout_s", "episode_timeout_s"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "must be greater than 0"),
        (-1.5, "must be greater than 0"),
        (1e9, "must be at most 100000000"),
        ("60", "is not a number"),
        (True, "is not a number"),
    ],
)
def test_a_time_limit_is_a_positive_number_of_seconds(problems_of, key, value, message):
    [problem] = problems_of({"jobs": [{**JOB, key: value}]})
    assert problem.key == key
    assert message in problem.message


def test_defaults_lie_under_each_job(load):
    defaults = {"num_episodes": 20, "seed": 4, "arena_env_args": {"num_envs": 8, "embodiment": "panda"}}
    own = {**JOB, "arena_env_args": {"environment": "lift_object", "num_envs": 2}, "seed": None}
    [job] = load({"defaults": defaults, "jobs": [own]}).jobs
    assert (job.num_episodes, job.num_envs, job.seed) == (20, 2, 0)
    assert job.environment_args == {"embodiment": "panda"}


def test_a_jobs_own_length_replaces_the_default_length(load):
    [job] = load({"defaults": {"num_episodes": 20}, "jobs": [{**JOB, "num_steps": 100}]}).jobs
    assert (job.num_steps, job.num_episodes) == (100, None)


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


def _of_levels(levels: int, reference: str) -> dict[str, Any]:
    """Return variables of which each holds a reference to the one before twice; ``{0}`` is the number of that one."""
    return {"a0": "x", **{f"a{level}": reference.format(level - 1) * 2 for level in range(1, levels + 1)}}


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
        variables = {**further, **texts, **_of_levels(levels, reference)}
        return {"variables": variables, "jobs": [{**JOB, "policy_type": f"${{variables.a{levels}}}"}]}

    assert load(document(3)).jobs[0].policy_type == "x" * 8
    [problem] = problems_of(document(15))
    assert "need more than 1100 look-ups of other keys" in problem.message


def test_a_mapping_that_is_created_elsewhere_is_counted_where_it_is(problems_of):
    levels = {
        f"l{level}": {"before": f"${{variables.l{level - 1}.made}}", "made": "${oc.create:${variables.pair}}"}
        for level in range(1, 16)
    }
    pair = {"left": "${..before}", "right": "${..before}"}
    variables = {"before": "x", "pair": pair, "l0": {"made": "x"}, **levels}
    [problem] = problems_of({"variables": variables, "jobs": [{**JOB, "policy_config_dict": "${variables.l15.made}"}]})
    assert "need more than 1100 look-ups of other keys" in problem.message


def test_references_inside_a_created_mapping_are_counted_too(load, problems_of):
    def document(levels: int) -> dict[str, Any]:
        texts = [f"k{level}: '\\${{.k{level - 1}}}\\${{.k{level - 1}}}'" for level in range(1, levels + 1)]
        variables = {"made": f"${{oc.create:{{k0: x, {', '.join(texts)}}}}}"}
        return {"variables": variables, "jobs": [{**JOB, "policy_type": f"${{variables.made.k{levels}}}"}]}

    assert load(document(3)).jobs[0].policy_type == "x" * 8
    [problem] = problems_of(document(15))
    assert "need more than 1100 look-ups of other keys" in problem.message


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


@pytest.mark.parametrize(
    ("document", "key", "message"),
    [
        ([], None, "the top level is [], not a mapping"),
        ("text", None, 'the top level is "text"'),
        (3, None, "the top level is 3"),
        ({}, "jobs", "is missing"),
        ({"jobs": None}, "jobs", "null is not a list"),
        ({"jobs": {}}, "jobs", "{} is not a list"),
        ({"jobs": []}, "jobs", "lists no job"),
        ({"jbos": [], "jobs": [JOB]}, "jbos", "unknown key; did you mean 'jobs'?"),
        ({"jobs": [JOB], "defaults": [1]}, "defaults", "[1] is not a mapping"),
        ({"jobs": [JOB], "sweep": 3}, "sweep", "3 is not a mapping"),
        ({"jobs": [JOB], "defaults": {"num_episode": 3}}, "defaults.num_episode", "did you mean 'num_episodes'?"),
        ({"jobs": [JOB], "defaults": {"name": "a"}}, "defaults.name", "unknown key"),
        ({"jobs": [JOB], "defaults": {"sweep": {}}}, "defaults.sweep", "belongs to the top level"),
        ({"jobs": [JOB], "defaults": {"policy_args": ["a"]}}, "defaults.policy_config_dict", "belongs to no option"),
        ({"jobs": [JOB], "defaults": {"seed": "${"}}, "defaults.seed", "no well-formed interpolation"),
    ],
)
def test_a_wrong_top_level_is_refused(problems_of, document, key, message):
    [problem] = problems_of(document)
    assert problem.key == key
    assert message in problem.message
    assert problem.job is None
    assert problem.file is not None
    assert problem.file.endswith("jobs.json")


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        ({"num_episode": 3}, "num_episode", "unknown key; did you mean 'num_episodes'?"),
        ({"policy_type": None}, "policy_type", "null is not a text"),
        ({"policy_type": 3}, "policy_type", "3 is not a text"),
        ({"policy_type": ""}, "policy_type", "is empty"),
        ({"arena_env_args": None}, "arena_env_args", "null is not a mapping"),
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
        (
            {"python": "a", "policy_config_dict": {"python": "b"}},
            "python",
            "policy_config_dict.python is 'b'; give one",
        ),
        ({"variations": [1]}, "variations", "[1] is not a mapping"),
        ({"num_episodes": 0}, "num_episodes", "must be at least 1, got 0"),
        ({"num_episodes": -1}, "num_episodes", "must be at least 1, got -1"),
        ({"num_episodes": 1.5}, "num_episodes", "1.5 is not a whole number"),
        ({"num_episodes": 3.0}, "num_episodes", "3.0 is not a whole number"),
        ({"num_episodes": "10"}, "num_episodes", '"10" is not a whole number'),
        ({"num_episodes": True}, "num_episodes", "true is not a whole number"),
        ({"num_episodes": [3]}, "num_episodes", "[3] is not a whole number"),
        ({"num_episodes": 10**12}, "num_episodes", "must be at most 10000000, got 1000000000000"),
        ({"num_steps": 0}, "num_steps", "must be at least 1, got 0"),
        ({"num_steps": 1, "num_episodes": 1}, "num_steps", "excludes num_episodes"),
        ({"num_episodes": 2, "num_rebuilds": 3}, "num_rebuilds", "3 rebuilds cannot share 2 episodes"),
        ({"num_rebuilds": 0}, "num_rebuilds", "must be at least 1, got 0"),
        ({"seed": -1}, "seed", "must be at least 0, got -1"),
        ({"seed": 2**63}, "seed", "must be at most 9223372036854775807, got 9223372036854775808"),
        ({"seed": "abc"}, "seed", '"abc" is not a whole number'),
        ({"status": "done"}, "status", "no status 'done'; known are: completed, failed, pending, running"),
        ({"status": True}, "status", "true is not a text"),
        ({"language_instruction": ""}, "language_instruction", "is empty"),
        ({"language_instruction": "\ud800"}, "language_instruction", "holds half a character"),
        (
            {"arena_env_args": {"environment": "a", "num_envs": 0}},
            "arena_env_args.num_envs",
            "must be at least 1, got 0",
        ),
        ({"arena_env_args": {"environment": "a", "num_envs": "4"}}, "arena_env_args.num_envs", "not a whole number"),
        ({"arena_env_args": {"environment": "a", "enable_cameras": 1}}, "arena_env_args.enable_cameras", "not true"),
        (
            {"arena_env_args": {"environment": "a", "placement_seed": -1}},
            "arena_env_args.placement_seed",
            "must be at least 0, got -1",
        ),
        ({"seed": "${no.such}"}, "seed", "Interpolation key 'no.such' not found"),
        ({"seed": "${.seed}"}, "seed", "cannot be resolved"),
        ({"policy_config_dict": {"a": "${"}}, "policy_config_dict.a", '"${" is no well-formed interpolation'),
        ({"sweep": [1]}, "sweep", "[1] is not a mapping"),
        ({"sweep": {"seeds": [1]}}, "sweep.seeds", "did you mean 'seed'?"),
        ({"sweep": {"seed": "${no.such}"}}, "sweep.seed", "not found"),
        ({"sweep": {"seed": list(range(400)), "policy_type": ["a"] * 400}}, "sweep", "makes 160000 jobs"),
    ],
)
def test_a_wrong_job_is_refused_with_its_name_and_key(problems_of, change, key, message):
    [problem] = problems_of({"jobs": [{**JOB, **change}]})
    assert (problem.job, problem.key) == ("lift", key)
    assert message in problem.message


@pytest.mark.parametrize(
    ("name", "message"),
    [(3, "3 is not a text"), (None, "null is not a text"), ("a/b", "slash"), ("", "is empty"), ("\ud800", "surrogate")],
)
def test_a_job_without_a_usable_name_is_called_by_its_position(problems_of, name, message):
    [problem] = problems_of({"jobs": [JOB, {**JOB, "name": name}]})
    assert (problem.job, problem.key) == ("jobs[1]", "name")
    assert message in problem.message


def test_a_job_that_is_no_mapping_is_called_by_its_position(problems_of):
    [problem] = problems_of({"jobs": [JOB, 3]})
    assert str(problem).endswith("jobs.json: job 'jobs[1]': 3 is not a mapping")


@pytest.mark.parametrize(
    ("name", "message"),
    [("lift", "is taken by an earlier job"), ("LIFT", "is taken by 'lift' where file systems ignore case")],
)
def test_two_jobs_cannot_share_a_name(problems_of, name, message):
    [problem] = problems_of({"jobs": [JOB, {**JOB, "name": name}]})
    assert (problem.job, problem.key, problem.message) == (name, "name", message)


def test_every_problem_of_the_file_is_told_at_once(problems_of):
    jobs = [
        {**JOB, "num_episode": 3, "seed": -1},
        {"name": "b", "arena_env_args": {"environment": "reach"}},
        {**JOB, "name": "c", "sweep": {"seed": []}},
        JOB,
    ]
    found = problems_of({"defaults": {"num_step": 1}, "jobs": jobs})
    assert [(problem.job, problem.key) for problem in found] == [
        (None, "defaults.num_step"),
        ("lift", "num_episode"),
        ("lift", "seed"),
        ("b", "policy_type"),
        ("c", "sweep.seed"),
        ("lift", "name"),
    ]


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


def test_where_results_are_logged_is_no_part_of_what_is_hashed(load):
    document = {"jobs": [{**JOB, "num_episodes": 5}]}
    tracked = load({**document, "tracking": ["wandb", "tensorboard"]})
    assert tracked.tracking == ("wandb", "tensorboard")
    assert tracked.config_hash == load(document).config_hash


@pytest.mark.parametrize(
    ("tracking", "message"),
    [
        ("wandb", '"wandb" is not a list such as [wandb]'),
        (["wandbb"], "there is no tracker \"wandbb\"; did you mean 'wandb'?"),
        ([{"wandb": True}], 'there is no tracker {"wandb": true}'),
    ],
)
def test_a_wrong_tracker_is_named_with_its_key(problems_of, tracking, message):
    [problem] = problems_of({"jobs": [{**JOB, "num_episodes": 5}], "tracking": tracking})
    assert (problem.key, problem.message.startswith(message)) == ("tracking", True)


def test_a_file_with_mistakes_is_read_as_far_as_it_goes_and_says_what_is_wrong(problems_of):
    document = {
        "jobz": [],
        "tracking": ["wandbb"],
        "jobs": [
            {**JOB, "name": "a/b", "seed": "abc", "num_episods": 3},
            {"name": "bare", "policy_type": "scripted"},
            {"name": "blind", "arena_env_args": {"environment": "reach", "num_envs": 0, "object": "mug"}},
        ],
    }
    read = read_jobs(document, source="jobs.yaml")
    keys = [(problem.job, problem.key) for problem in read.problems]
    assert keys == [
        (None, "jobz"),
        (None, "tracking"),
        ("jobs[0]", "num_episods"),
        ("jobs[0]", "seed"),
        ("jobs[0]", "name"),
        ("bare", "arena_env_args"),
        ("blind", "arena_env_args.num_envs"),
        ("blind", "policy_type"),
    ]
    refused = problems_of(document)
    assert [problem.message for problem in refused] == [problem.message for problem in read.problems]
    first, bare, blind = read.readable_jobs
    assert (first.name, first.environment, first.policy_type) == ("jobs[0]", "lift_object", "zero_action")
    assert (bare.environment, bare.policy_type) == (UNREADABLE, "scripted")
    assert (blind.environment_args, blind.policy_type) == ({"object": "mug"}, UNREADABLE)


def test_a_question_about_jobs_that_can_be_read_is_checked_whatever_is_wrong_with_others(problems_of):
    wrong, sound = {**JOB, "name": "wrong", "num_episods": 3}, {**JOB, "num_episodes": 3}
    stop = {"stop": {"max_episodes": 3}}
    comparisons = [
        {"name": "unknown", "jobs": ["new", "nowhere"], **stop},
        {"name": "unpaired", "jobs": ["new", "other"], **stop},
        {"name": "unread", "jobs": ["new", "wrong"], **stop},
    ]
    document = {
        "jobs": [wrong, {**sound, "name": "new"}, {**sound, "name": "other", "seed": 5}],
        "tracking": ["wandbb"],
        "comparisons": comparisons,
    }
    found = [(problem.key, problem.message.partition(";")[0]) for problem in problems_of(document)]
    assert found[2:] == [
        ("comparisons[0].jobs", "there is no job 'nowhere'"),
        ("comparisons[1].jobs", "'new' and 'other' give no pairs: the seed of its conditions is 0 and 5"),
    ]


def test_questions_are_checked_beside_jobs_that_are_wrong_but_not_against_them(problems_of):
    document = {
        "jobs": [{**JOB, "seed": -1}, {"name": "other"}],
        "bars": [{"job": "lift", "at_least": 2.0, "stop": {}}, {"job": "other-seed1", "at_least": 0.5, "stop": {}}],
    }
    assert [problem.key for problem in problems_of(document)] == [
        "seed",
        "arena_env_args",
        "policy_type",
        "bars[0].at_least",
    ]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (JOB, "is no job file: put this job into a list under the key 'jobs'; its keys are name, policy_type"),
        ({"embodiment_tag": "X", "video_backend": "decord"}, "is no job file: it lists no 'jobs'; its keys are embod"),
    ],
)
def test_another_kind_of_file_is_told_in_one_line(problems_of, document, message):
    [problem] = problems_of(document)
    assert problem.message.startswith(message)

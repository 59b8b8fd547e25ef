"""Files of Isaac Lab Arena."""

import pytest
import yaml

from isaaclab_arena.config.arena import ARENA_JOB_KEYS, BUILDER_KEYS, in_own_options
from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.errors import ConfigError
from tests.documentation.arena_page import table


def test_the_page_has_every_key_that_is_known_as_arenas():
    written = [yaml.safe_load(row.written) for row in table("Keys")]
    assert {key for block in written for key in block} >= ARENA_JOB_KEYS
    assert {key for block in written for key in block.get("environment_builder", {})} == BUILDER_KEYS


PICKED = {"pick_up_object": "cube", "destination_location": "bowl"}


@pytest.mark.parametrize(
    ("given", "declared", "own", "renamed"),
    [
        ({"pick_up_object": "cube", "hdr": "hall"}, {"pick_up_object", "hdr", "object"}, ..., {}),
        (PICKED, {"object", "destination"}, {"object": "cube", "destination": "bowl"},
         {"object": "pick_up_object", "destination": "destination_location"}),
    ],
)  # fmt: skip
def test_an_environment_gets_the_options_that_it_declares(given, declared, own, renamed):
    assert in_own_options(given, declared, name="theirs") == (given if own is ... else own, renamed)


@pytest.mark.parametrize(
    ("given", "declared", "keys"),
    [
        ({**PICKED, "hdr": "hall"}, {"x"}, ["pick_up_object", "destination_location", "hdr"]),
        ({"pick_up_object": "cube", "object": "can"}, {"object"}, ["pick_up_object"]),
        ({"pick_up_object": "cube", "object_set": ["can"]}, {"object"}, None),
    ],
)
def test_everything_that_cannot_be_given_or_is_given_twice_is_named_at_once(given, declared, keys):
    with pytest.raises(ConfigError) as refused:
        in_own_options(given, declared, name="reach")
    assert keys in (None, [problem.key for problem in refused.value.problems])


# Tests of experiments, from the file and the words of the command line to jobs.


RUN = {
    "environment": {"type": "lift_object", "object": "can"},
    "policy": {"type": "scripted", "speed": 0.5},
    "rollout_limit": {"num_episodes": 3},
}


def jobs(document, *overrides):
    return read_jobs(document, source="experiment.yaml", overrides=overrides).jobs


def problems(document, *overrides) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        jobs(document, *overrides)
    return [str(problem) for problem in refused.value.problems]


def test_a_run_becomes_a_job_whether_runs_are_a_list_or_a_mapping():
    [of_mapping] = jobs({"runs": {"lift": RUN}})
    assert [of_mapping] == list(jobs({"runs": [{"name": "lift", **RUN}]}))
    assert (of_mapping.name, of_mapping.environment, of_mapping.environment_args) == (
        "lift",
        "lift_object",
        {"object": "can"},
    )
    assert (of_mapping.policy_type, of_mapping.policy_config_dict) == ("scripted", {"speed": 0.5})
    assert of_mapping.num_episodes == 3


def test_a_name_alone_stands_for_an_environment_or_a_policy_without_options():
    [job] = jobs({"runs": {"a": {"environment": "reach", "policy": "scripted", "rollout_limit": {"num_episodes": 1}}}})
    assert (job.environment, job.policy_type) == ("reach", "scripted")


def test_what_is_shared_lies_under_every_run_whose_own_limit_replaces_it():
    changed = {"environment": {"object": "mug"}, "rollout_limit": {"num_steps": 40}}
    first, second = jobs({"shared": RUN, "runs": {"a": None, "b": changed}})
    assert (first.environment_args, second.environment_args) == ({"object": "can"}, {"object": "mug"})
    assert first.policy_config_dict == second.policy_config_dict == {"speed": 0.5}
    assert (first.num_steps, first.num_episodes, second.num_steps, second.num_episodes) == (None, 3, 40, None)


def test_shared_values_may_be_named_one_by_one_or_as_whole_blocks():
    shared = {"expert": {"type": "scripted", "speed": 0.5}, "how_many": 7}
    run = {**RUN, "policy": "${shared.expert}", "rollout_limit": {"num_episodes": "${shared.how_many}"}}
    [job] = jobs({"shared": shared, "runs": {"a": run}})
    assert (job.policy_type, job.policy_config_dict, job.num_episodes) == ("scripted", {"speed": 0.5}, 7)


def test_the_command_line_sets_keys_of_runs_and_of_what_they_share():
    dotted = {**RUN, "variations": {"can.mass.enabled": True}}
    document = {"shared": {"environment_builder": {"num_envs": 2}}, "runs": {"a": dotted, "v1.5": RUN}}
    first, second = jobs(
        document, "runs.v1.5.environment.object=mug", "shared.environment_builder.num_envs=5", "+runs.a.num_rebuilds=2",
        # It comes before a key of the file that holds dots.
        "runs.a.variations.can.mass.enabled=false",
    )  # fmt: skip
    assert (first.num_envs, second.num_envs) == (5, 5)
    assert (first.num_rebuilds, second.num_rebuilds) == (2, 1)
    assert (first.environment_args["object"], second.environment_args["object"]) == ("can", "mug")
    assert first.variations == {"can.mass.enabled": False}
    assert document["runs"]["v1.5"] == RUN


JOB = {"name": "a", "arena_env_args": {"environment": "reach"}, "policy_type": "scripted", "num_episodes": 1}


@pytest.mark.parametrize(
    ("document", "overrides", "message"),
    [
        *(
            ({"runs": {"lift": RUN}}, [override], message)
            for override, message in (
                ("runs.b.num_rebuilds=2", "runs.b.num_rebuilds: no run called 'b'; known are: lift"),
                ("runs.lift.name=x", "runs.lift.name: a run's name and the run as a whole are the file's"),
                ("runs.lift={}", "runs.lift: a run's name and the run as a whole are the file's"),
                ("runs.lift..x=1", "runs.lift..x: has an empty part"),
                ("runs.lift.policy.speed.low=1", "cannot be set: 'speed' is 0.5, which is no mapping"),
                ("runs.lift.num_rebuilds=.inf", "holds inf, which is no finite number"),
                ("runs.lift.polcy.speed=1", "job 'lift': polcy: unknown key; did you mean 'policy'?"),
            )
        ),
        ({"jobs": [JOB]}, ["runs.a.num_rebuilds=2"], "the file has no 'runs'"),
        ({"runs": 3}, [], "runs: 3 is neither a list nor a mapping"),
        ({"runs": {}}, [], "runs: names no run"),
        ({"runs": [RUN]}, [], "runs[0].name: is missing"),
        ({"runs": [{**RUN, "name": "a"}] * 2}, [], "runs[1].name: 'a' is taken by an earlier run"),
        ({"runs": {"a": {**RUN, "name": "b"}}}, [], "runs.a.name: a run of a mapping is named by its key"),
        ({"runs": {"a": [1]}}, [], "runs.a: [1] is not a mapping"),
        ({"runs": {"a": RUN}, "shared": [1]}, [], "shared: [1] is not a mapping"),
        ({"runs": {"a": RUN}, "shared": {"polcy": {}}}, [], "shared.polcy: unknown key; did you mean 'policy'?"),
        ({"runs": {"a": RUN}, "jobs": []}, [], "jobs: unknown key"),
        ({"runs": {"a": {**RUN, "environment": 3}}}, [], "environment: 3 is not a mapping; its key 'type' names"),
        ({"runs": {"a": RUN}, "shared": {"num_rebuilds": "x"}}, [], 'shared.num_rebuilds: "x" is not a whole number'),
        ({"runs": {"a": {**RUN, "num_episodes": 4}}}, [], "rollout_limit.num_episodes: is also given as num_episodes"),
        ({"runs": {"a": {**RUN, "rollout_limit": {"num_epsodes": 4}}}}, [], "did you mean 'num_episodes'?"),
        ({"runs": {"a": {**RUN, "labels": {"task": 3}}}}, [], "labels.task: 3 is not a text"),
        ({"runs": {"../a": RUN}}, [], "holds a slash"),
        ({"runs": {"a": {"policy": 1}, "b": {**RUN, "environment_builder": {"mimic": True}}}}, [], "'b'"),
        ({"jobs": [], "datagen": {"width": 640}}, [], "datagen: pictures are recorded by --record_observations all"),
        ({"jobs": [{**JOB, "num_envs": 4, "arena_env_args": {"environment": "reach", "num_envs": 2}}]}, [],
         "job 'a': num_envs: is also given as arena_env_args.num_envs"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_experiment_is_named(document, overrides, message):
    assert any(message in problem for problem in problems(document, *overrides))


def test_labels_do_not_make_another_run_of_it_and_a_sweep_may_go_over_arenas_keys():
    labelled = read_jobs({"runs": {"a": {**RUN, "labels": {"task": "lifting"}}}}, source="x")
    assert labelled.jobs[0].labels == {"task": "lifting"}
    assert labelled.config_hash == read_jobs({"runs": {"a": RUN}}, source="x").config_hash
    assert [each.num_envs for each in jobs({"jobs": [{**JOB, "sweep": {"num_envs": [1, 2]}}]})] == [1, 2]

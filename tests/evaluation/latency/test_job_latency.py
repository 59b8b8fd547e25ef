"""What cannot be late is refused before anything is simulated, or else when environment and policy are built."""

import pytest

from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.config.schema import Delays, LatencyConfig, Meanwhile
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.latency import JobLatency, LatePolicy, QueryTimes, in_steps, late_groups
from isaaclab_arena.evaluation.rollout import EnvGroup
from isaaclab_arena.evaluation.validation import resolve_jobs
from tests.evaluation.latency.plants import ConstantChunks, NoisyChunks, Proportional, UnstablePlant
from tests.fakes_environment import ScriptedEnvironment


def job(latency, environment="reach", policy="zero_action", options=None, **arguments):
    block = {
        "name": "late",
        "arena_env_args": {"environment": environment, **arguments},
        "policy_type": policy,
        "policy_config_dict": options or {},
        "num_episodes": 1,
        "latency": latency,
    }
    (resolved,) = resolve_jobs(read_jobs({"jobs": [block]}, source="jobs.yaml").jobs, file="jobs.yaml")
    return resolved


def test_times_come_to_control_steps_of_the_environment_before_the_run_starts():
    resolved = job({"ms": 120, "meanwhile": "hold"}, environment="lift_object")
    assert resolved.latency is not None
    assert resolved.latency.delays == Delays(steps=((3, 1),), control_dt=0.05)


OPENPI = {"states": {"observation/state": ["robot_joint_pos"]}, "action_chunk_length": 6}


@pytest.mark.parametrize(
    ("latency", "policy", "options", "why", "key"),
    [
        ({"steps": 4, "meanwhile": "chunk"}, "openpi_remote", OPENPI, "at most 3 steps late", "latency.meanwhile"),
        ({"steps": 1, "meanwhile": "rtc"}, "openpi_remote", OPENPI, "cannot; say chunk", "latency.meanwhile"),
        ({"steps": 9, "meanwhile": "chunk"}, "gr00t_closedloop", {}, "at most 8 steps late", "latency.meanwhile"),
        ({"steps": 1, "meanwhile": "rtc"}, "gr00t_remote_closedloop", {}, "cannot; say chunk", "latency.meanwhile"),
        (
            {"steps": 1, "meanwhile": "hold"},
            "gr00t_closedloop",
            {"temporal_ensemble_coeff": 0.1},
            "averages the answers",
            "policy_config_dict.temporal_ensemble_coeff",
        ),
    ],
)
def test_what_a_policys_options_already_rule_out_is_refused_before_it_is_built(latency, policy, options, why, key):
    yaml = {"policy_config_yaml_path": "isaaclab_arena_gr00t/policy/config/panda_closedloop.yaml"}
    asked = {**({} if policy == "openpi_remote" else yaml), **options}
    if policy == "gr00t_closedloop":
        asked["model_path"] = "models/panda_tabletop"
    with pytest.raises(ConfigError) as refused:
        job(latency, "lift_object", policy, asked, camera_size=64, enable_cameras=True)
    (problem,) = refused.value.problems
    assert why in problem.message
    assert (problem.file, problem.job, problem.key) == ("jobs.yaml", "late", key)


def test_what_a_policys_options_allow_is_not_refused():
    options = {
        "policy_config_yaml_path": "isaaclab_arena_gr00t/policy/config/panda_closedloop.yaml",
        "model_path": "models/panda_tabletop",
    }
    said = {"steps": 8, "meanwhile": "rtc"}
    resolved = job(said, "lift_object", "gr00t_closedloop", options, camera_size=64, enable_cameras=True)
    assert resolved.latency is not None
    assert resolved.latency.continues
    assert not JobLatency(config=resolved.latency.config, delays=in_steps(0, 0)).continues


class BuiltItsOwnWay(ConstantChunks):
    def __init__(self, first, second) -> None:
        super().__init__()
        self.parts = first, second

    @classmethod
    def from_dict(cls, config_dict):
        return cls(1, 2)


def test_a_policy_that_states_no_chunks_before_it_is_built_is_not_asked_for_its_options():
    assert job({"steps": 1, "meanwhile": "chunk"}, policy=f"{__name__}.BuiltItsOwnWay").latency is not None


@pytest.mark.parametrize(
    ("latency", "why"),
    [
        ({"steps": 10_000, "meanwhile": "wait"}, "control steps late; an episode has"),
        ({"steps": 1, "meanwhile": "chunk"}, "predicts 1 action, which would be used up"),
        ({"steps": 0, "meanwhile": "rtc"}, "needs a policy that can be given the actions to go on from"),
        ({"file": "none.csv"}, "cannot be read"),
    ],
)
def test_a_latency_that_cannot_work_is_refused_before_anything_is_built(latency, why):
    with pytest.raises(ConfigError) as refused:
        job(latency)
    assert why in str(refused.value)
    assert (refused.value.problems[0].job, refused.value.problems[0].file) == ("late", "jobs.yaml")


@pytest.mark.parametrize(
    ("steps", "meanwhile", "environment", "policy", "why"),
    [
        ((1, 1), "hold", UnstablePlant(1, None), Proportional(), "declares none"),
        ((0, 5), "chunk", ScriptedEnvironment(1), NoisyChunks(), "at most 4 steps late"),
        ((2, 2), "rtc", UnstablePlant(1, None), ConstantChunks(), "cannot; say chunk"),
        ((8, 8), "wait", ScriptedEnvironment(1), NoisyChunks(), "an episode has 8"),
    ],
)
def test_what_environment_and_policy_cannot_do_is_refused_when_they_are_built(
    steps, meanwhile, environment, policy, why
):
    latency = JobLatency(config=LatencyConfig(steps=steps, meanwhile=Meanwhile(meanwhile)), delays=in_steps(*steps))
    with pytest.raises(ConfigError) as refused:
        late_groups([EnvGroup(environment=environment, policy=policy)], latency, QueryTimes())
    assert why in str(refused.value)


def test_what_is_possible_is_not_refused():
    latency = JobLatency(config=LatencyConfig(steps=(4, 4), meanwhile=Meanwhile.CHUNK), delays=in_steps(4, 4))
    group = EnvGroup(environment=ScriptedEnvironment(1), policy=NoisyChunks())
    assert isinstance(late_groups([group], latency, QueryTimes())[0].policy, LatePolicy)


@pytest.mark.parametrize(("environment", "held"), [("lift_object", "last"), ("reach", "last"), ("cartpole", (0.0,))])
def test_the_environments_of_this_package_declare_what_holds_their_robots(environment, held):
    resolved = job({"steps": 1}, environment=environment)
    sample = resolved.builder.sample(resolved.environment_config)
    assert sample is not None
    assert sample.hold_action == held


def test_steps_of_the_hand_are_held_by_none_and_the_gripper_by_its_last_width():
    resolved = job({"steps": 1}, environment="lift_object", action_mode="ee_delta")
    sample = resolved.builder.sample(resolved.environment_config)
    assert sample is not None
    assert sample.hold_action == (0.0,) * 6 + (None,)


def test_jobs_without_latency_run_as_they_did():
    group = EnvGroup(environment=UnstablePlant(1, None), policy=Proportional())
    assert late_groups([group], None, QueryTimes()) == [group]

"""Variations of the MuJoCo model inside environments made elsewhere, by its own names of bodies and cameras."""

import os
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from isaaclab_arena.cli.main import main
from isaaclab_arena.config.expansion.suites import Robustness
from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.gym.worker.model_changes import ModelChanges
from isaaclab_arena.environments.variations.senses import offered_variations
from isaaclab_arena.errors import ConfigError, EnvironmentBuildError
from isaaclab_arena.evaluation.validation import resolve_jobs, robustness_arms
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.interfaces.specs import CAMERAS, pictures_of
from tests.end_to_end.launching import evaluated, job
from tests.environments.gym.gym_mujoco import SCENE, PushedEnvironment
from tests.environments.gym.gym_running import IN_WORKERS
from tests.environments.variations.test_senses import build
from tests.environments.variations.varying import catalogue_of, conditions_of, fixed
from tests.outsiders.opengl import opengl_variables

PUSHED = "gym:tests.environments.gym.gym_mujoco:Fake/Pushed-v0"
UNSEEN = "gym:tests.environments.gym.gym_mujoco:Fake/Unseen-v0"
NUM_STEPS = 4

NOTHING: dict[str, Any] = {
    "world.mass": 1.0,
    "world.gravity": 1.0,
    "contact.friction": 1.0,
    "light.intensity": 1.0,
    "light.color": (1.0, 1.0, 1.0),
    "front.position": (0.0, 0.0, 0.0),
    "front.rotation": (0.0, 0.0, 0.0),
    "robot.color": (1.0, 1.0, 1.0),
    "background.color": (1.0, 1.0, 1.0),
    "box.mass": 0.1,
    "box.color": (1.0, 1.0, 1.0),
    "robot.joint_shift": (0.0, 0.0),
}
"""All that varies in it, with the values that change nothing."""
ALL_ON = {f"{key}.enabled": True for key in NOTHING}
PICTURES_ONLY = [key for key in NOTHING if key.startswith(("light", "front")) or key.endswith("color")]

Shown = list[tuple[bytes, ...]]


def played(env: Environment, *starts: Conditions) -> list[Shown]:
    """Return the observed bytes of each step of episodes side by side, by env slot."""
    action = torch.full((env.num_envs, *env.action_spec.shape), 0.2)
    seen = [env.reset(torch.arange(len(starts)), starts)]
    seen += [env.step(action).observation for _ in range(NUM_STEPS)]
    return [
        [
            tuple(
                (pictures_of(value) if group == CAMERAS else value)[slot].numpy().tobytes()
                for group, terms in each.items()
                for value in terms.values()
            )
            for each in seen
        ]
        for slot in range(len(starts))
    ]


def episodes(env: Any, *indices: int, **changes: Any) -> list[Conditions]:
    return [{**conditions_of(env, index), **changes} for index in indices]


def test_what_may_vary_has_the_names_of_the_model_and_the_values_that_change_nothing():
    inside = [each for each in catalogue_of(PUSHED) if not each.between]
    assert {each.key: each.nominal for each in inside} == {
        key: value if isinstance(value, tuple) else (value,) for key, value in NOTHING.items()
    }
    assert not [each for each in catalogue_of("gym:CartPole-v1") if not each.between]


@pytest.mark.parametrize("key", NOTHING)
@pytest.mark.parametrize("fresh", [False, True], ids=["one model", "a model for each reset"])
def test_a_change_shows_from_the_first_observation_on_and_is_gone_in_the_next_episode(key, fresh):
    plain, varied = (build(PUSHED, each, make_kwargs={"fresh": fresh}) for each in ({}, {f"{key}.enabled": True}))
    nothing = {key: NOTHING[key]}
    [before], [expected] = played(plain, *episodes(plain, 1)), played(plain, *episodes(plain, 2))
    [now] = played(varied, *episodes(varied, 1))
    # An episode whose value changes nothing is the plain one, bit for bit.
    assert played(varied, *episodes(varied, 2, **nothing)) == [expected]
    assert played(varied, *episodes(varied, 1)) == [now]
    numbers, pictures = ([a[at] != b[at] for a, b in zip(now, before, strict=True)] for at in (0, 1))
    if key in PICTURES_ONLY:
        assert (any(numbers), all(pictures)) == (False, True)
    else:
        assert numbers[-1]
        assert (numbers[0], pictures[0]) == ((True, True) if key == "robot.joint_shift" else (False, False))
    for env in (plain, varied):
        env.close()


def test_an_episode_is_the_same_in_any_env_slot_and_in_workers():
    def all_played(num_envs: int, **options: Any) -> list[Shown]:
        env = build(PUSHED, ALL_ON, num_envs=num_envs, **options)
        starts = episodes(env, 0, 1, 2, 3)
        found = [played(env, *starts[at : at + num_envs]) for at in range(0, 4, num_envs)]
        env.close()
        return [each for together in found for each in together]

    alone = all_played(1)
    assert all_played(2) == alone
    assert all_played(4, **IN_WORKERS, envs_per_worker=2) == alone


def test_a_thing_is_as_heavy_as_if_it_had_been_compiled_so():
    env = PushedEnvironment()
    env.reset(seed=0)
    ModelChanges(env).apply({"box.mass": 0.4})
    expected = mujoco.MjModel.from_xml_string(SCENE.format(mass=0.4))
    for name in ("body_mass", "body_inertia", "body_invweight0", "dof_invweight0"):
        assert np.allclose(getattr(env.model, name), getattr(expected, name), rtol=1e-6), name
    box = env.model.body("box").id
    assert np.isclose(env.model.body_subtreemass[box], expected.body_subtreemass[box])


def test_a_joint_is_shifted_up_to_its_limit():
    env = build(PUSHED, fixed("robot.joint_shift", [0.1, -0.1]))
    assert env.reset(torch.arange(1), episodes(env, 0))["policy"]["place"][0, :2].tolist() == pytest.approx(
        [0.1, -0.02]
    )
    env.close()


def test_ants_in_half_the_gravity_are_elsewhere_after_some_steps():
    plain, light = build("gym:Ant-v5"), build("gym:Ant-v5", fixed("world.gravity", 0.5))
    [before], [now] = played(plain, *episodes(plain, 0)), played(light, *episodes(light, 0))
    assert (now[0] == before[0], now[-1] == before[-1]) == (True, False)
    assert played(light, *episodes(light, 0, **{"world.gravity": 1.0})) == [before]
    for env in (plain, light):
        env.close()


def read(environment: str, **fields: Any) -> Any:
    job = {"name": "a", "policy_type": "zero_action", "num_episodes": 1}
    job |= {"arena_env_args": {"environment": environment, "enable_cameras": True}}
    return read_jobs({"jobs": [{**job, **fields}]}, source="jobs.yaml").jobs[0]


def test_robustness_has_the_axes_that_fit_the_model():
    arms = robustness_arms(read(PUSHED), Robustness(axes=None, levels=(5,)))
    settings = {arm.labels["axis"]: {key.partition(".sampler")[0] for key in arm.variations} for arm in arms}
    assert {"box.mass"} < settings["object_mass"]
    assert {"contact.friction"} < settings["object_friction"]
    assert {"light.intensity", "light.color"} < settings["light"]
    assert {"front.position", "front.rotation"} < settings["camera_pose"]
    assert {"robot.joint_shift"} < settings["robot_start"]
    assert not {"object_position", "object_size", "table_height"} & {*settings}


def test_no_environment_is_made_for_a_job_that_varies_only_what_lies_around_it(monkeypatch):
    builder = ENVIRONMENTS.get(PUSHED)
    monkeypatch.setattr(type(builder), "variations", None)
    offered_variations(builder, builder.config_class(), {"action": {"noise": {"enabled": True}}})
    with pytest.raises(TypeError):
        offered_variations(builder, builder.config_class(), {"box": {"mass.enabled": True}})


def test_what_a_model_lacks_is_refused_before_the_start():
    with pytest.raises(ConfigError, match=r"no variation 'bax.mass'; did you mean 'box.mass'"):
        resolve_jobs([read(PUSHED, variations={"bax.mass.enabled": True})])
    # One has no model, and the other no way to observe what a change of it shows.
    for name in ("gym:CartPole-v1", UNSEEN):
        with pytest.raises(ConfigError, match=r"no variation 'world.gravity'"):
            resolve_jobs([read(name, variations={"world.gravity.enabled": True})])


REFUSED = {
    "observed otherwise": (PUSHED, "box.mass", {"make_kwargs": {"observes": "otherwise"}}, "observes its start"),
    "no pictures": ("gym:Ant-v5", "light.intensity", {}, "'light.intensity' changes pictures"),
}


@pytest.mark.parametrize(("name", "key", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_a_change_that_would_not_be_seen_is_refused(name, key, options, message):
    with pytest.raises(EnvironmentBuildError, match=message):
        build(name, {f"{key}.enabled": True}, **options)


@pytest.mark.usefixtures("quick_python")
def test_a_run_is_verified_and_its_conditions_are_played_again(tmp_path):
    where = {"environment": PUSHED, "num_envs": 2}
    varied = job(PUSHED, "zero_action", num_episodes=3, num_envs=2, name="varied", variations=ALL_ON)
    run = evaluated(tmp_path / "run", varied)
    assert main(["verify", str(run), "--nproc", "1"]) == 0
    assert main(["merge", str(run), "--save_conditions", str(tmp_path / "saved.json")]) == 0
    again = {"name": "again", "policy_type": "zero_action", "arena_env_args": where}
    resolved = read_jobs({"jobs": [{**again, "conditions": str(tmp_path / "saved.json")}]}, source="jobs.yaml").jobs
    assert {each.key for each in resolve_jobs(resolved)[0].variations} == {*NOTHING}


BENCHMARKS = {
    "robosuite:Lift": ("ROBOSUITE_PYTHON", "cube_main", "agentview"),
    "libero:libero_spatial/0": ("LIBERO_PYTHON", "akita_black_bowl_1_main", "agentview"),
    "metaworld:pick-place-v3": ("METAWORLD_PYTHON", "obj", None),
}


@pytest.mark.benchmark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_model_of_a_benchmark_changes_for_one_episode(name):
    variable, thing, camera = BENCHMARKS[name]
    if not os.environ.get(variable):
        pytest.skip(f"{variable} names no interpreter: make test-benchmarks makes it")
    how = {"python": os.environ[variable], "environment_variables": opengl_variables()}
    how |= {"enable_cameras": camera is not None}
    plain = build(name, **how)
    [before], [expected] = played(plain, *episodes(plain, 0)), played(plain, *episodes(plain, 1))
    plain.close()
    keys = [f"{thing}.mass", "world.gravity", *([f"{camera}.position"] if camera else [])]
    varied = build(name, {f"{key}.enabled": True for key in keys}, **how)
    builder = ENVIRONMENTS.get(name)
    offered = offered_variations(builder, builder.config_class(**how))
    nominal = {each.key: each.nominal for each in offered}
    nothing = {key: nominal[key] if len(nominal[key]) > 1 else nominal[key][0] for key in keys}
    [now] = played(varied, *episodes(varied, 0))
    assert now[-1] != before[-1]
    assert camera is None or now[0] != before[0]
    assert played(varied, *episodes(varied, 1, **nothing)) == [expected]
    assert played(varied, *episodes(varied, 0)) == [now]
    varied.close()

"""A closed loop: which env slots are asked for when, what the model is told, and what comes of its answers."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.evaluation.batching import on_fixed_batch
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.queues import FixedShare
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.interfaces.policy import Continuation, PolicyBase
from isaaclab_arena.storage.commits import read_commits
from isaaclab_arena.storage.ledger import JobReport, Reproducible
from isaaclab_arena.testing.environment_conformance import DrawnOnDemand
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from isaaclab_arena_gr00t.config import ClosedloopPolicyArgs, Gr00tClosedloopPolicyArgs, Modality
from isaaclab_arena_gr00t.policy import gr00t_closedloop_policy
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy, policy_device
from tests.evaluation.jobs import coin_job, settings
from tests.fakes import CoinBuilder, CoinConfig
from tests.fakes_environment import ActionLog, episodes
from tests.gr00t.fakes import (
    ACTION,
    DIMENSIONS,
    GROUPS,
    HORIZON,
    MODALITIES,
    CountingPolicy,
    FakeModality,
    LimbEnvironment,
    LimbPolicy,
    RandomModel,
    write_policy_yaml,
)
from tests.gr00t.panda_checkpoint import POLICY, save_small_checkpoint, write_panda_yaml
from tests.machine import show_gpus
from tests.policy.playing import actions_of, job_of, start

CHUNK = 4


def made(
    directory: Path, policy_class: type[LimbPolicy] = LimbPolicy, yaml: Any = None, groups: Any = GROUPS, **args: Any
) -> Any:
    path = write_policy_yaml(directory, groups, **(yaml or {}))
    return policy_class(ClosedloopPolicyArgs(policy_config_yaml_path=path, **args))


def started(env: LimbEnvironment, policy: PolicyBase, env_ids: list[int], *, first: int = 0) -> Observation:
    """Start episodes in env slots, numbered from ``first``."""
    conditions = [env.draw_conditions(each.conditions_generator()) for each in episodes(first + len(env_ids))[first:]]
    observation = env.reset(torch.tensor(env_ids), conditions)
    slots = enumerate(zip(env_ids, conditions, strict=True), first)
    policy.start_episodes(env, [start(env_id, index, env.instruction(each)) for index, (env_id, each) in slots])
    return observation


def played(
    directory: Path,
    num_envs: int,
    *,
    batch: int | None = None,
    policy_class: type[LimbPolicy] = LimbPolicy,
    **args: Any,
) -> dict[int, torch.Tensor]:
    """Play episodes and return their actions."""
    policy = on_fixed_batch(made(directory, policy_class, **args), batch)
    return actions_of(policy, LimbEnvironment(num_envs), episodes(12))


def test_the_model_is_told_what_the_environment_shows_in_groups_and_pictures_of_its_own(tmp_path):
    env, policy = LimbEnvironment(3), made(tmp_path)
    observation = started(env, policy, [0, 1, 2])
    policy.get_action(env, observation)
    [query] = policy.queries
    expected = [env.instruction(env.draw_conditions(each.conditions_generator())) for each in episodes(3)]
    assert query.words == expected
    assert len(set(expected)) > 1
    hip, knee, elbow, wrist = observation["policy"]["robot_joint_pos"].T
    left, right = observation["policy"]["fingers"].T
    for group, joints in (("arm", (wrist, elbow)), ("leg", (knee, hip)), ("hand", (right, left))):
        told = query.observation["state"][group]
        assert told.dtype == np.float32
        np.testing.assert_array_equal(told, torch.stack(joints, dim=1)[:, None].numpy())
    for key, camera in (("ego", "front"), ("aside", "side")):
        told = query.observation["video"][key]
        assert (told.shape, told.dtype) == ((3, 1, 4, 4, 3), np.uint8)
        # 6 x 8 pixels fit into 4 x 4 as 3 x 4, and these pictures are of one grey each.
        np.testing.assert_array_equal(told[:, 0, 0], observation["camera_obs"][camera][:, 0, :4].numpy())


def test_only_env_slots_that_need_a_chunk_are_asked_for(tmp_path):
    env, policy = LimbEnvironment(4), made(tmp_path)
    observation = started(env, policy, [0, 1, 3])
    asked = []
    for step in range(9):
        if step == 2:
            observation = started(env, policy, [1], first=7)
        policy.get_action(env, observation)
        asked.append([query.batch_size for query in policy.queries])
        policy.queries.clear()
    assert asked == [[3], [], [1], [], [2], [], [1], [], [2]]


def test_the_job_has_the_first_word_then_the_episode_then_the_yaml_file(tmp_path):
    silent = {"language_instruction": "stand still"}
    policy = made(tmp_path, yaml=silent)
    rollout(LimbEnvironment(2), policy, episodes(2), [], language_instruction="wave")
    assert {word for query in policy.queries for word in query.words} == {"wave"}
    env, policy = LimbEnvironment(2), made(tmp_path, yaml=silent)
    env.task_description = ""
    rollout(env, policy, episodes(2), [])
    assert {word for query in policy.queries for word in query.words} == {"stand still"}
    assert policy.set_task_description(None) == "stand still"
    assert policy.set_task_description("jump") == "jump"


def test_an_env_slot_that_nobody_told_anything_is_an_error(tmp_path):
    env, policy = LimbEnvironment(1), made(tmp_path)
    with pytest.raises(PolicyError, match="language_instruction"):
        policy.get_action(env, env._observe())


def test_the_seeds_of_an_episodes_queries_are_those_of_its_policy_stream(tmp_path):
    """In order, whatever env slot it runs in: stream 1 of the episode, 63 bits each."""
    env, policy = LimbEnvironment(4), made(tmp_path)
    observation = started(env, policy, [2, 0])
    for _ in range(2 * CHUNK):
        policy.get_action(env, observation)
    streams = [np.random.default_rng(np.random.SeedSequence(7, spawn_key=(1, index))) for index in (1, 0)]
    expected = [[int(stream.integers(2**63)) for stream in streams] for _ in range(2)]
    assert [query.noise_seeds for query in policy.queries] == expected


def test_temporal_ensembling_asks_in_every_step_and_begins_anew_with_every_episode(tmp_path):
    env, policy = LimbEnvironment(2), made(tmp_path, CountingPolicy, temporal_ensemble_coeff=0.0)
    observation = started(env, policy, [0, 1])
    first, second = policy.get_action(env, observation), policy.get_action(env, observation)
    assert first[0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    # The mean of step 1 of query 0 and of step 0 of query 1.
    assert second[0].tolist() == [55.0, 56.0, 57.0, 58.0, 59.0]
    observation = started(env, policy, [0], first=3)
    assert policy.get_action(env, observation)[:, 0].tolist() == pytest.approx([200.0, (20.0 + 110.0 + 200.0) / 3])
    assert [query.batch_size for query in policy.queries] == [2, 2, 2]


def test_a_loop_that_starts_no_episodes_by_name_plays_in_all_env_slots(tmp_path):
    env, policy = LimbEnvironment(2), made(tmp_path, CountingPolicy)
    policy.set_task_description("move")
    policy.reset()
    env.reset(torch.tensor([0, 1]), [env.draw_conditions(each.conditions_generator()) for each in episodes(2)])
    policy.get_action(env, env._observe())
    policy.reset(torch.tensor([1]))
    assert policy.get_action(env, env._observe())[:, 0].tolist() == [10.0, 100.0]
    again = made(tmp_path, CountingPolicy)
    again.set_task_description("move")
    again.get_action(env, env._observe())
    assert again.queries[0].noise_seeds == policy.queries[0].noise_seeds
    assert len(set(again.queries[0].noise_seeds)) == 2


class RememberingPolicy(LimbPolicy):
    """Has a model that looks back: at pictures of 5 steps ago, and at the state of the last three steps."""

    modalities: Mapping[str, Modality] = {
        **MODALITIES,
        "video": FakeModality(delta_indices=[-5, 0], modality_keys=["ego", "aside"]),
        "state": FakeModality(delta_indices=[-2, -1, 0], modality_keys=["arm", "leg", "hand"]),
    }


def test_a_model_that_looks_back_is_shown_each_env_slots_own_steps_and_before_the_first_the_first(tmp_path):
    env, policy = LimbEnvironment(3), made(tmp_path, RememberingPolicy)
    # What each env slot's episode has shown so far, as a queue would hold it.
    seen: list[list[Observation]] = [[], [], []]

    def begin(env_ids: list[int], first: int) -> Observation:
        for env_id in env_ids:
            seen[env_id].clear()
        return started(env, policy, env_ids, first=first)

    observation, num_asked = begin([0, 1, 2], 0), 0
    for step in range(14):
        # Env slots 1 and 2 begin anew while slot 0 goes on, slot 2 in the middle of its chunk.
        if step in (6, 9):
            observation = begin([1] if step == 6 else [2], step)
        asked = (policy._player.needs_chunk() if policy._player else torch.ones(3)).nonzero().flatten().tolist()
        for env_id in range(3):
            seen[env_id].append(observation)
        action = policy.get_action(env, observation)
        if asked:
            told = policy.queries[-1].observation
            num_asked += len(asked)
            for place, env_id in enumerate(asked):
                steps = [seen[env_id][max(0, len(seen[env_id]) - 1 + back)] for back in (-5, 0)]
                shown = np.stack([each["camera_obs"]["front"][env_id, 0, :4].numpy() for each in steps])
                np.testing.assert_array_equal(told["video"]["ego"][place][:, 0], shown)
                steps = [seen[env_id][max(0, len(seen[env_id]) - 1 + back)] for back in (-2, -1, 0)]
                shown = np.stack([each["policy"]["robot_joint_pos"][env_id, [3, 2]].numpy() for each in steps])
                np.testing.assert_array_equal(told["state"]["arm"][place], shown)
        observation = env.step(action).observation
    assert num_asked == 4 + 4 + 5


WRONG_ARMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    r"\(1, 6, 2\)": lambda arm: arm[:-1],
    "not finite": lambda arm: arm * np.nan,
    r"1e\+300": lambda arm: arm + np.float64(1e300),
    "<U9": lambda arm: arm.astype("U9"),
}


@pytest.mark.parametrize(("says", "spoilt"), [*WRONG_ARMS.items(), ("no action 'arm'", None)])
def test_an_answer_that_does_not_fit_is_refused(tmp_path, says, spoilt):
    class WrongPolicy(LimbPolicy):
        def answer(self, observation: dict[str, Any], noise_seeds: list[int]) -> dict[str, np.ndarray]:
            answer = super().answer(observation, noise_seeds)
            arm = answer.pop("arm")
            return answer if spoilt is None else {**answer, "arm": spoilt(arm)}

    with pytest.raises(PolicyError, match=says):
        rollout(LimbEnvironment(2), made(tmp_path, WrongPolicy), episodes(2), [])


class BriefPolicy(LimbPolicy):
    """A stranger's model, which states no sizes and answers with the steps that are played, then one of no numbers."""

    modalities, sizes = MODALITIES, None

    def answer(self, observation: dict[str, Any], noise_seeds: list[int]) -> dict[str, np.ndarray]:
        brief = {key: values[:, : CHUNK + 1].copy() for key, values in super().answer(observation, noise_seeds).items()}
        for values in brief.values():
            values[:, CHUNK] = np.nan
        return brief


@pytest.mark.parametrize("args", [{}, {"temporal_ensemble_coeff": 0.1}], ids=["played out", "averaged"])
def test_steps_of_an_answer_that_are_never_played_may_be_missing_or_no_numbers(tmp_path, args):
    for num_envs in (1, 3):
        brief, whole = (played(tmp_path, num_envs, policy_class=each, **args) for each in (BriefPolicy, LimbPolicy))
        assert brief.keys() == whole.keys()
        assert all(torch.equal(brief[index], whole[index]) for index in brief)
    env, policy = LimbEnvironment(1), made(tmp_path, BriefPolicy)
    policy.check_environment(env)
    # An answer that may be late, or that others share, has to have all of its steps.
    with pytest.raises(PolicyError, match=f"shape .*at least {HORIZON} steps"):
        policy.chunks(env, started(env, policy, [0]), [0])


class TacitPolicy(LimbPolicy):
    """Does not say which sizes it takes, as NVIDIA's; a wrong one fails in the network."""

    sizes = None

    def answer(self, observation: dict[str, Any], noise_seeds: list[int]) -> dict[str, np.ndarray]:
        assert observation["state"]["hand"].shape[2] == 2, "hand has the wrong size"
        return super().answer(observation, noise_seeds)


def test_a_model_that_tells_no_sizes_is_tried_out_before_the_first_step(tmp_path):
    policy = made(tmp_path, TacitPolicy)
    policy.check_environment(LimbEnvironment(2))
    assert [query.batch_size for query in policy.queries] == [1]
    groups = {**GROUPS, "state": {**GROUPS["state"], "hand": ["right_finger"]}}
    policy = made(tmp_path, TacitPolicy, groups=groups)
    with pytest.raises(ConfigError, match="hand has"):
        policy.check_environment(LimbEnvironment(2))


@pytest.mark.parametrize(("num_envs", "batch"), [(1, None), (3, 4)])
@pytest.mark.parametrize(
    ("policy_class", "args", "share"),
    [
        (LimbPolicy, {}, 0.35),
        (LimbPolicy, {"temporal_ensemble_coeff": 0.1}, 1.0),
        # Of four steps it is shown one and the one after it.
        (RememberingPolicy, {}, 0.65),
    ],
)
def test_the_pictures_that_it_announces_are_enough(tmp_path, policy_class, args, share, num_envs, batch):
    class Actions(ActionLog):
        sees_pictures = False

    told = []
    environments = LimbEnvironment(num_envs), DrawnOnDemand(LimbEnvironment(num_envs))
    for environment in environments:
        log, policy = Actions(), made(tmp_path, policy_class, rows_per_query=4, **args)
        rollout(environment, on_fixed_batch(policy, batch), episodes(6), [log])
        told.append((log.actions, policy.queries))
    (expected, queries), (found, others) = told
    assert all(torch.equal(found[index], expected[index]) for index in expected)
    for query, other in zip(queries, others, strict=True):
        for name, video in query.observation["video"].items():
            np.testing.assert_array_equal(video, other.observation["video"][name])
    # One picture at the start of each episode and one after each step, by two cameras.
    always = sum(len(actions) + 1 for actions in expected.values()) * 2
    assert environments[1].pictures_drawn <= share * always + 6 * 2


class ContinuingPolicy(LimbPolicy):
    """Keeps what its model is given to go on from."""

    def __init__(self, config: ClosedloopPolicyArgs) -> None:
        super().__init__(config)
        self.given: list[Mapping[str, Any]] = []

    def chunk_traits(self):
        return dataclasses.replace(super().chunk_traits(), can_continue=True)

    def _continued_query(self, observation, noise_seeds, going_on):
        self.given.append(going_on)
        return self.query(observation, noise_seeds)


def test_actions_to_go_on_from_come_to_the_model_by_its_groups_with_every_call_filled_up(tmp_path):
    env, policy = LimbEnvironment(3), made(tmp_path, ContinuingPolicy, rows_per_query=2)
    observation = started(env, policy, [0, 1, 2])
    actions = torch.arange(3.0 * HORIZON * len(ACTION)).reshape(3, HORIZON, len(ACTION))
    going_on = Continuation(actions=actions, weights=torch.ones(3, HORIZON))
    chunks = policy.chunks(env, observation, [0, 1, 2], going_on)
    assert chunks.shape == (3, policy.chunk_traits().predicted, len(ACTION))
    wiring = policy._inputs_of(env).wiring
    for given, slots in zip(policy.given, ([0, 1], [2, 2]), strict=True):
        assert all(
            np.array_equal(given["actions"][group], actions[slots][..., list(places)])
            for group, places in wiring.action.items()
        )
        assert given["weights"].shape == (2, HORIZON)


def test_predictions_that_are_averaged_cannot_be_late(tmp_path):
    policy = made(tmp_path, temporal_ensemble_coeff=0.1)
    with pytest.raises(ConfigError, match="temporal_ensemble_coeff"):
        policy.chunk_traits()


# The policy whose model is in this process: its device, its checkpoint, and what is refused before simulation.


@pytest.fixture
def machine(monkeypatch):
    """Set how many GPUs this process seems to have, and LOCAL_RANK."""

    def arrange(gpus: int, local_rank: str | None) -> None:
        show_gpus(monkeypatch, gpus)
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        if local_rank is not None:
            monkeypatch.setenv("LOCAL_RANK", local_rank)

    return arrange


EVERYTHING = {"policy_device_id": 3, "policy_device": "cuda:1", "yaml": "cpu"}
# LOCAL_RANK, number of GPUs, what is given, and the device or what the refusal says.
DEVICES: list[tuple[str | None, int, dict[str, Any], str]] = [
    # LOCAL_RANK comes before everything but the CPU.
    ("2", 4, EVERYTHING, "cuda:2"),
    ("2", 4, {"policy_device": "cpu", "yaml": "cuda"}, "cpu"),
    ("2", 1, EVERYTHING, "cuda:0"),
    ("2", 0, EVERYTHING, "cpu"),
    ("2", 2, {}, "LOCAL_RANK is 2"),
    ("two", 4, EVERYTHING, "LOCAL_RANK='two'"),
    # Then the id, the device of the job, that of the YAML file, and what there is.
    (None, 4, EVERYTHING, "cuda:3"),
    (None, 4, {"policy_device": "cuda:1", "yaml": "cpu"}, "cuda:1"),
    (None, 4, {"yaml": "cuda:2"}, "cuda:2"),
    (None, 4, {"yaml": "cuda"}, "cuda:0"),
    (None, 4, {}, "cuda:0"),
    (None, 0, {}, "cpu"),
    # A GPU that there is not.
    (None, 2, {"policy_device_id": 2}, "policy_device_id: 'cuda:2'"),
    (None, 0, {"policy_device": "cuda"}, "policy_device: 'cuda'"),
    (None, 2, {"yaml": "cuda:2"}, "policy_device: 'cuda:2'"),
    (None, 2, {"policy_device_id": -1}, "policy_device_id: -1"),
    (None, 2, {"policy_device": "gpu"}, "'gpu' is not a device"),
]


@pytest.mark.parametrize(("local_rank", "gpus", "given", "expected"), DEVICES)
def test_the_device_of_the_model_is_the_first_that_is_given(machine, local_rank, gpus, given, expected):
    machine(gpus, local_rank)
    options = {key: value for key, value in given.items() if key != "yaml"}
    args = Gr00tClosedloopPolicyArgs(policy_config_yaml_path="p.yaml", **options)
    if expected.startswith(("cpu", "cuda:")):
        assert policy_device(args, given.get("yaml")) == torch.device(expected)
    else:
        with pytest.raises(ConfigError) as refused:
            policy_device(args, given.get("yaml"))
        assert expected in str(refused.value)


def job(yaml: str, policy_type: str = POLICY, options: dict[str, Any] | None = None, **changes: Any) -> JobConfig:
    return job_of(policy_type, {"policy_config_yaml_path": yaml, **(options or {})}, **changes)


def checkpoint(directory: Path, *names: str) -> None:
    directory.mkdir()
    for name in names:
        # Weights without a tensor: the size of the header, and the header.
        (directory / name).write_bytes(b"\x02" + bytes(7) + b"{}" if name.endswith(".safetensors") else b"{}")


class FakeModel:
    """Stands for the model package's policy, and counts how often it was to be compiled."""

    def __init__(self, **_: Any) -> None:
        self.num_compiled = 0

    def compile(self) -> None:
        self.num_compiled += 1


def with_model(model: type, directory: Path, monkeypatch, **options: Any) -> Gr00tClosedloopPolicy:
    monkeypatch.setitem(sys.modules, "gr00t.policy.gr00t_policy", SimpleNamespace(Gr00tPolicy=model))
    if not (directory / "checkpoint").exists():
        checkpoint(directory / "checkpoint", "config.json", "model.safetensors")
    yaml = write_panda_yaml(directory / "p.yaml", policy_device="cpu")
    return Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(policy_config_yaml_path=yaml, **options))


@pytest.mark.parametrize("asked", [False, True])
def test_the_model_is_compiled_once_if_the_job_asks_for_it(tmp_path, monkeypatch, asked):
    policy = with_model(FakeModel, tmp_path, monkeypatch, compile_model=asked)
    sharing = policy.with_own_memory()
    assert sharing is not None
    assert sharing.policy is policy.policy
    assert policy.policy.num_compiled == asked


def test_a_compiled_model_is_asked_for_as_many_env_slots_each_time(tmp_path, monkeypatch):
    policy = with_model(FakeModel, tmp_path, monkeypatch, compile_model=True)
    policy.device = torch.device("cuda:0")
    assert policy.slots_per_call(24) == 24
    assert with_model(FakeModel, tmp_path, monkeypatch, compile_model=True, rows_per_query=8).slots_per_call(24) == 8


def test_a_model_package_that_cannot_be_compiled_is_named(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="compile_model"):
        with_model(SimpleNamespace, tmp_path, monkeypatch, compile_model=True)


def test_without_a_model_package_it_is_said_how_to_get_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "gr00t.data.embodiment_tags", None)
    with pytest.raises(ConfigError, match="submodules/Isaac-GR00T"):
        gr00t_closedloop_policy.embodiment_tag("GR1")


LATER = Enum("LATER", {"LIBERO_PANDA": "libero_sim", "SIMPLER_ENV_WIDOWX": "simpler_env_widowx"})
"""Tags of GR00T N1.7's package."""


@pytest.mark.parametrize(
    ("written", "name", "later"),
    [
        ("gr1", "GR1", False),
        # GR00T N1.7 calls the same robots otherwise.
        ("libero_sim", "LIBERO_PANDA", False),
        ("Unitree_G1_full_body_with_waist_height_nav_cmd", "UNITREE_G1", False),
        ("libero_panda", "LIBERO_PANDA", True),
        ("OXE_WIDOWX", "SIMPLER_ENV_WIDOWX", True),
    ],
)
def test_a_robot_is_known_by_what_any_release_calls_it(monkeypatch, written, name, later):
    if later:
        monkeypatch.setitem(sys.modules, "gr00t.data.embodiment_tags", SimpleNamespace(EmbodimentTag=LATER))
    assert gr00t_closedloop_policy.embodiment_tag(written).name == name


class TestConformance(PolicyConformance):
    policy_class = Gr00tClosedloopPolicy

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def checkpoint(cls, tmp_path_factory):
        directory = tmp_path_factory.mktemp("conformance")
        # It looks back.
        steps = {"video": [-3, 0], "state": [-3, 0], "action": list(range(HORIZON)), "language": [0]}
        shown = {name: (steps[name], each.modality_keys) for name, each in MODALITIES.items()}
        limits = {
            name: {key: [[-1.0] * size, [1.0] * size] for key, size in sizes.items()}
            for name, sizes in DIMENSIONS.items()
        }
        save_small_checkpoint(directory / "checkpoint", shown, limits)
        yaml_path = write_policy_yaml(directory, model_path="checkpoint", policy_device="cpu")
        cls.options = {"policy_config_yaml_path": yaml_path}

    def make_environment(self, num_envs: int) -> LimbEnvironment:
        return LimbEnvironment(num_envs)


# A model package that ignores what it is told about noise promises the plan, whatever it says of itself.


class Honouring(RandomModel):
    """Says that it honours seeds, and does."""

    def __init__(self) -> None:
        super().__init__("noise_seeds")


class Lying(Honouring):
    """Says that it honours seeds, and draws from torch's generator."""

    def seeds(self, batch_size: int, options: Any) -> list[int]:
        return torch.randint(2**31, (batch_size,)).tolist()


class Ignoring(RandomModel):
    """Documents its options as unused, as NVIDIA's does."""

    def seeds(self, batch_size: int, options: Any) -> list[int]:
        assert options is None
        return torch.randint(2**31, (batch_size,)).tolist()


class LimbBuilder(CoinBuilder):
    def build(self, config: CoinConfig, *, num_envs: int, device: torch.device, num_threads: int) -> Any:
        return LimbEnvironment(num_envs)


def reported(directory: Path, package: type[RandomModel]) -> tuple[JobReport, dict[int, Any]]:
    """Return the report of a job with three env slots, and the checksums of its episodes' arrays."""
    yaml = write_policy_yaml(directory.parent, model_path="owner/name", policy_device="cpu")

    class Policy(Gr00tClosedloopPolicy):
        @classmethod
        def from_dict(cls, config_dict: Any) -> Any:
            return cls(Gr00tClosedloopPolicyArgs(policy_config_yaml_path=yaml))

        def load_policy(self) -> Any:
            return package()

    job = coin_job("limb", LimbBuilder(), policy_class=Policy, num_envs=3, num_episodes=8)
    report = JobRunner(settings(directory, no_dataset=False)).run(FixedShare(job=job, share=((0, 8),)))
    assert report.error is None
    return report, {line.episode_index: line.checksum for line in read_commits(directory / "limb", "limb").lines}


@pytest.mark.parametrize(("package", "because"), [(Ignoring, "noise_seeds"), (Lying, "its neighbours")])
def test_a_package_that_ignores_it_promises_the_plan_and_says_why(tmp_path, package, because):
    report, first = reported(tmp_path / "one", package)
    assert report.reproducible is Reproducible.PLAN
    assert because in (report.plan_because or "")
    # Its noise still follows from the episodes that share a query.
    torch.rand(100)
    assert reported(tmp_path / "two", package)[1] == first
    assert len(set(first.values())) == 8


def test_torchs_generators_are_put_back_after_each_query(tmp_path):
    yaml = write_policy_yaml(tmp_path, model_path="owner/name", policy_device="cpu")
    policy = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(policy_config_yaml_path=yaml), model=Ignoring())
    shown = {
        "video": {key: np.zeros((2, 1, 4, 4, 3), np.uint8) for key in ("ego", "aside")},
        "state": {key: np.zeros((2, 1, 2), np.float32) for key in ("arm", "leg", "hand")},
        "language": {"annotation.human.task_description": [["move"]] * 2},
    }
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, again, other = (policy.query(shown, seeds)["arm"].tolist() for seeds in ([1, 2], [1, 2], [2, 1]))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first == again != other

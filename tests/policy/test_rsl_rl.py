"""Policies trained with rsl_rl."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.policy.action_chunking import FrameHistory
from isaaclab_arena.policy.rsl_rl import RslRlPolicy, RslRlPolicyCfg, network_inputs
from tests.fakes import Notebook
from tests.fakes_environment import ScriptedEnvironment, episodes
from tests.models.test_rsl_rl_checkpoint import MJLAB
from tests.models.trainings import trained
from tests.policy.checkpoints import expected_mean, write_checkpoint, write_torchscript
from tests.policy.playing import actions_of, job_of
from tests.pretend_gpu import GPU

# A trained checkpoint acts as it learned to, in env slots that start and finish at different times.


def policy_of(path: Path, **options: Any) -> RslRlPolicy:
    return RslRlPolicy.from_dict({"checkpoint_path": str(path), **options})


def play(policy: PolicyBase, num_envs: int, number: int = 12) -> dict[int, torch.Tensor]:
    return actions_of(policy, ScriptedEnvironment(num_envs, endings=("timeout",)), episodes(number))


def refused_options(path: Path | str, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        RslRlPolicy.check_options(RslRlPolicyCfg(checkpoint_path=str(path), **options))
    return str(caught.value)


def refused_environment(policy: RslRlPolicy, environment: ScriptedEnvironment | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        policy.check_environment(environment or ScriptedEnvironment(2))
    return str(caught.value)


class Wide(ScriptedEnvironment):
    """Observes more than its position."""

    def __init__(self, num_envs: int = 2) -> None:
        super().__init__(num_envs)
        three, one = ArraySpec(shape=(3,)), ArraySpec(shape=(1,))
        self.observation_spec = {"policy": {"position": three, "clock": one}, "goal": {"place": three}}


SEEN = {
    "policy": {"position": torch.tensor([[1.0, 2, 3], [4, 5, 6]]), "clock": torch.tensor([[7.0], [8]])},
    "goal": {"place": torch.tensor([[-1.0, -2, -3], [-4, -5, -6]])},
}


def test_every_action_is_the_networks_mean_for_what_was_seen(tmp_path):
    checkpoint = write_checkpoint(tmp_path)
    notebook = Notebook()
    rollout(ScriptedEnvironment(4, endings=("timeout",)), policy_of(checkpoint), episodes(9), [notebook])
    assert len(notebook.transitions) > 10
    for transition in notebook.transitions:
        expected = expected_mean(checkpoint, transition.observation["policy"]["position"])
        torch.testing.assert_close(transition.action, expected)


def test_the_options_find_the_files_wherever_they_are(tmp_path):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    expected = play(policy_of(write_checkpoint(run)), 2)[0]
    other = write_checkpoint(run, name="model_30.pt", seed=6)
    assert torch.equal(play(policy_of(run, checkpoint=1), 2)[0], expected)
    assert not torch.equal(play(policy_of(run), 2)[0], expected)
    other.unlink()
    (run / "params").rename(elsewhere)
    assert {"checkpoint_path", "agent_cfg_path"} <= set(re.findall(r"\w+", refused_options(run)))
    assert torch.equal(play(policy_of(run, agent_cfg_path=str(elsewhere / "agent.yaml")), 2)[0], expected)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"observation_terms": {"policy": ["clock", "position"]}}, ["policy clock", "policy position"]),
        ({}, ["policy position", "policy clock"]),
        ({"obs_groups": {"actor": ["goal", "policy"]}}, ["goal place", "policy position", "policy clock"]),
    ],
)
def test_groups_and_terms_are_shown_in_the_order_of_the_training(tmp_path, settings, parts):
    wide = Wide()
    given = torch.cat([SEEN[group][term] for group, term in map(str.split, parts)], dim=1)
    checkpoint = write_checkpoint(tmp_path, num_inputs=given.shape[1], **settings)
    policy = policy_of(checkpoint)
    policy.check_environment(wide)
    torch.testing.assert_close(policy.get_action(wide, SEEN), expected_mean(checkpoint, given))
    policy_of(write_checkpoint(tmp_path / "a"), observation_terms={"policy": ["position"]}).check_environment(wide)
    policy_of(write_checkpoint(tmp_path / "b"), observation_groups=["goal"]).check_environment(wide)


def test_another_order_than_the_file_says_is_doubted(tmp_path):
    wide = Wide()
    wide.action_spec = dataclasses.replace(wide.action_spec, names=("x", "y", "z"))
    policy = policy_of(write_checkpoint(tmp_path, num_inputs=4))
    network = policy._trained.network
    network.stated_terms, network.stated_actions = ("position", "clock"), ("x", "y", "z")
    assert policy.connections(wide).doubts(wide) == []
    network.stated_terms, network.stated_actions = ("clock", "position"), ("y", "x", "z")
    terms, actions = policy.connections(wide).doubts(wide)
    assert "clock, position" in terms
    assert "y, x, z" in actions


def test_the_single_group_of_mjlab_stands_for_the_policys(tmp_path):
    checkpoint = write_checkpoint(tmp_path, obs_groups={"actor": ["actor"], "critic": ["critic"]})
    policy_of(checkpoint).check_environment(ScriptedEnvironment(2))
    both = write_checkpoint(tmp_path / "both", obs_groups={"actor": ["actor", "history"]})
    message = refused_environment(policy_of(both))
    assert all(word in message for word in ("'actor'", "'history'", "observation_groups"))


def test_a_directory_of_mjlab_is_evaluated_as_it_lies_there(tmp_path):
    """Its layout and configuration, with tensors that rsl_rl made."""
    training = trained(tmp_path / "2026-01-31_12-00-00", num_observations=3, num_actions=3, obs_normalization=True)
    directory = training.directory
    (directory / "params" / "agent.yaml").write_text(MJLAB)
    (directory / "params" / "env.yaml").write_text("sim: !!python/object:mjlab.sim.SimulationCfg {timestep: 0.005}\n")
    saved = torch.load(training.checkpoint, weights_only=True)
    torch.save({**saved, "infos": {"env_state": {"common_step_counter": 48}}}, directory / "model_50.pt")
    policy = policy_of(directory)
    policy.check_environment(ScriptedEnvironment(5))
    observation = training.observation(5)
    seen = {"policy": {"position": observation}}
    expected = training.reference()(observation)
    assert torch.equal(policy.get_action(ScriptedEnvironment(5), seen), expected)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"num_inputs": 48}, ["48", "'policy' with 4 numbers (position 3, clock 1)"]),
        ({"num_inputs": 4, "num_actions": 12}, ["12 actions", "takes 3"]),
        ({"observation_terms": {"policy": ["position", "command", "phase"]}}, ["'command'", "'phase'", "has position"]),
    ],
)
def test_sizes_and_terms_that_do_not_fit_are_named(tmp_path, settings, told):
    message = refused_environment(policy_of(write_checkpoint(tmp_path, **settings)), Wide())
    assert all(words in message for words in told)


@pytest.mark.parametrize("in_file", [True, False])
def test_numbers_are_clipped_and_scaled_as_the_training_did(tmp_path, in_file):
    how = {"action_scaling": "within_bounds", "clip_actions": 0.5}
    checkpoint = write_checkpoint(tmp_path, **(how if in_file else {"action_scaling": "as_is", "clip_actions": 0.1}))
    environment = ScriptedEnvironment(6)
    observation = {"policy": {"position": torch.linspace(-3, 3, 18).reshape(6, 3)}}
    action = policy_of(checkpoint, **({} if in_file else how)).get_action(environment, observation)
    output = expected_mean(checkpoint, observation["policy"]["position"]).clamp(-0.5, 0.5)
    assert (output.abs() == 0.5).any()
    torch.testing.assert_close(action, 0.5 + 1.5 * output)


def test_noise_is_drawn_from_the_episodes_own_stream(tmp_path):
    """The standard deviation is 0.3."""
    checkpoint = write_checkpoint(tmp_path)
    mean, drawn = (play(policy_of(checkpoint, stochastic=is_drawn), 3, 4) for is_drawn in (False, True))
    for episode in episodes(4):
        index = episode.episode_index
        noise = torch.from_numpy(episode.policy_generator().standard_normal(3, "float32"))
        torch.testing.assert_close(drawn[index][0], mean[index][0] + 0.3 * noise)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_exported_network_acts_without_a_configuration_and_is_scaled_as_its_training_says(tmp_path):
    policy = policy_of(write_torchscript(tmp_path / "policy.pt", 3, 3))
    policy.check_environment(ScriptedEnvironment(2))
    assert len(play(policy, 4)) == 12
    assert "on 4 numbers" in refused_environment(policy, Wide())
    assert "gives 2 actions" in refused_environment(policy_of(write_torchscript(tmp_path / "b.pt", 3, 2)))
    torch.jit.save(torch.jit.script(WithFlatMemory()), str(tmp_path / "flat.pt"))
    assert "on 3 numbers" in refused_environment(policy_of(tmp_path / "flat.pt"))
    write_checkpoint(tmp_path, action_scaling="within_bounds")
    policy = policy_of(write_torchscript(tmp_path / "exported" / "policy.pt", 3, 3))
    action = policy.get_action(ScriptedEnvironment(2), {"policy": {"position": torch.tensor([[0.0] * 3, [9.0] * 3])}})
    assert action.tolist() == [[0.5] * 3, [2.0] * 3]


class WithFlatMemory(torch.nn.Linear):
    """A program whose buffer has the name of rsl_rl's memory, and another shape."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("hidden_state", torch.zeros(1, 8))


@pytest.mark.parametrize(
    ("path", "options", "told"),
    [
        ("nowhere.pt", {}, "checkpoint_path: 'nowhere.pt'"),
        ("run", {"checkpoint": 7}, "checkpoint: there is no model_7.pt"),
        ("run", {"agent_cfg_path": "none.yaml"}, "agent_cfg_path: none.yaml: "),
        ("run", {"action_scaling": "wild"}, "action_scaling: no such scaling 'wild'"),
        ("policy.pt", {"stochastic": True}, "stochastic: "),
        ("cnn", {}, "checkpoint_path: "),
        ("run", {"device": "cuda:99"}, "device: "),
        ("run", {"device": "cpu", "policy_device": "cuda"}, "device: "),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_runs(tmp_path, monkeypatch, path, options, told):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for name in ("run", "cnn"):
        write_checkpoint(tmp_path / name)
    (tmp_path / "cnn" / "params" / "agent.yaml").write_text("actor: {class_name: CNNModel}")
    write_torchscript(tmp_path / "policy.pt", 3, 3)
    assert refused_options(path if path == "nowhere.pt" else tmp_path / path, **options).startswith(told)
    checkpoint = str(tmp_path / "run")
    RslRlPolicy.check_options(RslRlPolicyCfg(checkpoint_path=checkpoint, device="cpu", policy_device="cpu"))


def test_a_job_file_spells_the_options_in_plain_json_and_may_forbid_programs(tmp_path):
    def resolved(may_import: bool = True, **options: Any) -> Any:
        return resolve_jobs([job_of("rsl_rl", options)], may_import=may_import)[0]

    checkpoint = str(write_checkpoint(tmp_path, num_inputs=26, num_actions=8))
    job = resolved(False, checkpoint_path=checkpoint, action_scaling="within_bounds", clip_actions=1)
    assert isinstance(job.build_policy(), RslRlPolicy)
    for key, told in {"checkpoint_path": "no.pt", "action_scaling": "wild"}.items():
        with pytest.raises(ConfigError, match=rf"policy_config_dict\.{key}"):
            resolved(True, **{"checkpoint_path": checkpoint, key: told})
    with pytest.raises(ConfigError, match=r"policy_config_dict\.checkpoint_path: .*--no_import"):
        resolved(False, checkpoint_path=str(write_torchscript(tmp_path / "policy.pt", 3, 3)))


def test_a_group_without_terms_stands_beside_the_others_on_a_gpu_too(gpu):
    inputs = network_inputs({"policy": {"place": ArraySpec(shape=(2,))}, "goal": {}}, ["policy", "goal"], {})
    seen = inputs.flat({"policy": {"place": torch.ones(3, 2, device=GPU)}, "goal": {}}, 3, GPU)
    assert (seen.device, seen.shape) == (GPU, (3, inputs.size))


# What is kept of the steps before, and how much of it.


def frame(step: int, num_envs: int) -> dict[str, torch.Tensor]:
    """Return a frame whose numbers say the step and the env slot: ``100 * env_id + step``."""
    return {"a": (100 * torch.arange(num_envs) + step)[:, None].expand(-1, 2)}


def test_what_was_returned_does_not_change_and_no_more_is_kept_than_the_earliest_step_needs():
    history = FrameHistory((-15, 0), 4)
    history.push(frame(0, 4), range(4))
    returned = history.frames([0])["a"]
    for step in range(1, 40):
        history.push(frame(step, 4), range(4))
    assert returned[0, :, 0].tolist() == [0, 0]
    assert [kept.shape for kept in history._kept.values()] == [(4, 16, 2)]

"""Policies trained with rsl_rl."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.batching import on_fixed_batch
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.policy.action_chunking import FrameHistory
from isaaclab_arena.policy.catalog import resolve_policy_class
from isaaclab_arena.policy.rsl_rl import RslRlPolicy, RslRlPolicyCfg, network_inputs
from tests.fakes import Notebook
from tests.fakes_environment import ActionLog, ScriptedEnvironment, episodes
from tests.models.test_rsl_rl_checkpoint import MJLAB
from tests.models.trainings import trained
from tests.policy.checkpoints import expected_mean, write_checkpoint, write_torchscript
from tests.pretend_gpu import GPU

# A trained checkpoint acts as it learned to, in env slots that start and finish at different times.


def policy_of(path: Path, **options: Any) -> RslRlPolicy:
    return RslRlPolicy.from_dict({"checkpoint_path": str(path), **options})


def play(policy: PolicyBase, num_envs: int, number: int = 12) -> dict[int, torch.Tensor]:
    log = ActionLog()
    rollout(ScriptedEnvironment(num_envs, endings=("timeout",)), policy, episodes(number), [log])
    return log.actions


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

    def see(self, seed: int = 0) -> dict[str, dict[str, torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        sizes = {"policy": {"position": 3, "clock": 1}, "goal": {"place": 3}}
        return {
            group: {name: torch.randn(self.num_envs, size, generator=generator) for name, size in terms.items()}
            for group, terms in sizes.items()
        }


def test_it_is_registered_under_its_name():
    assert resolve_policy_class("rsl_rl") is RslRlPolicy
    assert RslRlPolicy.traits.reproducible
    assert not RslRlPolicy.traits.batch_invariant


def test_every_action_is_the_networks_mean_for_what_was_seen(tmp_path):
    checkpoint = write_checkpoint(tmp_path)
    notebook = Notebook()
    rollout(ScriptedEnvironment(4, endings=("timeout",)), policy_of(checkpoint), episodes(9), [notebook])
    assert len(notebook.transitions) > 10
    for transition in notebook.transitions:
        expected = expected_mean(checkpoint, transition.observation["policy"]["position"])
        torch.testing.assert_close(transition.action, expected)


@pytest.mark.parametrize("wrong", ["directory", "name", "agent"])
def test_the_options_find_the_files_wherever_they_are(tmp_path, wrong):
    run = tmp_path / "run"
    checkpoint = write_checkpoint(run)
    write_checkpoint(run, name="model_30.pt", seed=6)
    expected = play(policy_of(checkpoint), 2)
    if wrong == "directory":
        found = play(policy_of(run, checkpoint=1), 2)
        assert not torch.equal(play(policy_of(run), 2)[0], expected[0])
    elif wrong == "name":
        best = checkpoint.rename(run / "model_best.pt")
        found = play(policy_of(run), 2)
        assert best.is_file()
    else:
        (run / "params").rename(tmp_path / "elsewhere")
        assert "checkpoint_path" in refused_options(checkpoint)
        assert "agent_cfg_path" in refused_options(checkpoint)
        found = play(policy_of(checkpoint, agent_cfg_path=str(tmp_path / "elsewhere" / "agent.yaml")), 2)
    assert all(torch.equal(found[index], expected[index]) for index in expected)


def test_terms_are_shown_in_the_order_of_the_training(tmp_path):
    wide = Wide()
    seen = wide.see()
    reordered = write_checkpoint(tmp_path / "a", num_inputs=4, observation_terms={"policy": ["clock", "position"]})
    given = torch.cat([seen["policy"]["clock"], seen["policy"]["position"]], dim=1)
    torch.testing.assert_close(policy_of(reordered).get_action(wide, seen), expected_mean(reordered, given))
    plain = write_checkpoint(tmp_path / "b", num_inputs=4)
    given = torch.cat([seen["policy"]["position"], seen["policy"]["clock"]], dim=1)
    torch.testing.assert_close(policy_of(plain).get_action(wide, seen), expected_mean(plain, given))
    few = policy_of(write_checkpoint(tmp_path / "c"), observation_terms={"policy": ["position"]})
    few.check_environment(wide)


def test_one_line_says_what_the_network_is_shown(tmp_path):
    wide = Wide()
    terms = policy_of(
        write_checkpoint(tmp_path / "a", num_inputs=4), observation_terms={"policy": ["clock", "position"]}
    )
    assert str(terms.connections(wide)) == "input of 4 numbers <- clock + position; action -> action"
    groups = RslRlPolicyCfg(
        checkpoint_path=str(write_torchscript(tmp_path / "policy.pt", 7, 3)), observation_groups=("goal", "policy")
    )
    said = str(RslRlPolicy.check_fit(groups, wide))
    assert said == "input of 7 numbers <- goal.place + position + clock; action -> action"


def test_another_order_than_the_file_says_is_doubted(tmp_path):
    wide = Wide()
    wide.action_spec = dataclasses.replace(wide.action_spec, names=("x", "y", "z"))
    policy = policy_of(write_checkpoint(tmp_path, num_inputs=4))
    network = policy._trained.network
    network.stated_terms, network.stated_actions = ("position", "clock"), ("x", "y", "z")
    assert policy.connections(wide).doubts(wide) == []
    network.stated_terms, network.stated_actions = ("clock", "position"), ("y", "x", "z")
    terms, actions = policy.connections(wide).doubts(wide)
    assert "takes clock, position in this order, and is shown position, clock" in terms
    assert "in the order y, x, z, the environment takes x, y, z" in actions


def test_groups_are_shown_one_behind_the_other(tmp_path):
    wide = Wide()
    seen = wide.see()
    checkpoint = write_checkpoint(tmp_path, num_inputs=7, obs_groups={"actor": ["goal", "policy"]})
    given = torch.cat([seen["goal"]["place"], seen["policy"]["position"], seen["policy"]["clock"]], dim=1)
    policy = policy_of(checkpoint)
    policy.check_environment(wide)
    torch.testing.assert_close(policy.get_action(wide, seen), expected_mean(checkpoint, given))
    goal_alone = policy_of(write_checkpoint(tmp_path / "goal"), observation_groups=["goal"])
    goal_alone.check_environment(wide)


def test_the_single_group_of_mjlab_stands_for_the_policys(tmp_path):
    checkpoint = write_checkpoint(tmp_path, obs_groups={"actor": ["actor"], "critic": ["critic"]})
    policy_of(checkpoint).check_environment(ScriptedEnvironment(2))
    both = write_checkpoint(tmp_path / "both", obs_groups={"actor": ["actor", "history"]})
    message = refused_environment(policy_of(both))
    assert "observation group 'actor', this environment has policy" in message
    assert "observation group 'history'" in message
    assert "observation_groups" in message


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


def test_a_term_that_is_not_there_is_named(tmp_path):
    checkpoint = write_checkpoint(tmp_path, observation_terms={"policy": ["position", "command", "phase"]})
    message = refused_environment(policy_of(checkpoint))
    assert (
        f"{checkpoint}: the network was trained on 'command', which group 'policy' of this environment lacks" in message
    )
    assert "'phase'" in message
    assert "it has position" in message


def test_sizes_that_do_not_fit_are_named_with_their_terms(tmp_path):
    more = refused_environment(policy_of(write_checkpoint(tmp_path / "a", num_inputs=48)), Wide())
    shown = "this environment would show it group 'policy' with 4 numbers (position 3, clock 1)"
    assert more.endswith(f"the network takes 48 numbers, {shown}")
    fewer = refused_environment(policy_of(write_checkpoint(tmp_path / "b", num_actions=12)))
    assert fewer.endswith("the network gives 12 actions, the environment takes 3")


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


def test_a_recurrent_network_remembers_each_env_slot_from_the_start_of_its_episode(tmp_path):
    """An episode that shares its batch with others that start and end is played as if it were alone."""
    policy = policy_of(write_checkpoint(tmp_path, recurrent=True))
    alone, together = play(policy, 1), play(policy, 5)
    assert len(alone) == len(together) == 12
    for index, actions in alone.items():
        torch.testing.assert_close(together[index], actions, rtol=0, atol=1e-5)
    environment = ScriptedEnvironment(1)
    same = {"policy": {"position": torch.ones(1, 3)}}
    first, second = policy.get_action(environment, same), policy.get_action(environment, same)
    assert not torch.allclose(first, second)
    policy.reset(torch.tensor([0]))
    assert torch.equal(policy.get_action(environment, same), first)


@pytest.mark.parametrize(("recurrent", "stochastic"), list(itertools.product([False, True], repeat=2)))
def test_on_a_batch_of_one_size_an_episode_has_the_same_bits_for_any_num_envs(tmp_path, recurrent, stochastic):
    policy = policy_of(write_checkpoint(tmp_path, recurrent=recurrent), stochastic=stochastic)
    few, many = (play(on_fixed_batch(policy, 16), num_envs) for num_envs in (2, 7))
    assert all(torch.equal(few[index], many[index]) for index in few)


def test_drawn_actions_follow_from_the_episodes_own_stream(tmp_path):
    checkpoint = write_checkpoint(tmp_path)
    mean, drawn = play(policy_of(checkpoint), 3), play(policy_of(checkpoint, stochastic=True), 3)
    again = play(policy_of(checkpoint, stochastic=True), 3)
    assert all(torch.equal(drawn[index], again[index]) for index in drawn)
    first = torch.stack([drawn[index][0] - mean[index][0] for index in drawn])
    assert 0.15 < float(first.std()) < 0.45
    generator = episodes(1)[0].policy_generator()
    noise = torch.from_numpy(generator.standard_normal(3, "float32"))
    torch.testing.assert_close(drawn[0][0], mean[0][0] + 0.3 * noise)


def test_one_policy_serves_environments_one_after_the_other(tmp_path):
    policy = policy_of(write_checkpoint(tmp_path, num_inputs=4))
    for environment in (Wide(4), Wide(2)):
        policy.reset()
        policy.check_environment(environment)
        assert policy.get_action(environment, environment.see()).shape == (environment.num_envs, 3)
    policy.close()
    policy.close()


def test_a_second_policy_with_the_same_network_remembers_its_own_env_slots(tmp_path):
    checkpoint = write_checkpoint(tmp_path, recurrent=True)
    policy = policy_of(checkpoint)
    checkpoint.unlink()
    environment, same = ScriptedEnvironment(1), {"policy": {"position": torch.ones(1, 3)}}
    first = policy.get_action(environment, same)
    other = policy.with_own_memory()
    assert torch.equal(other.get_action(environment, same), first)
    assert not torch.equal(policy.get_action(environment, same), first)


def test_an_exported_network_acts_without_a_configuration(tmp_path):
    policy = policy_of(write_torchscript(tmp_path / "policy.pt", 3, 3))
    policy.check_environment(ScriptedEnvironment(2))
    assert len(play(policy, 4)) == 12
    assert "cannot be asked about 4 numbers" in refused_environment(policy, Wide())
    assert "gives 2 actions" in refused_environment(policy_of(write_torchscript(tmp_path / "b.pt", 3, 2)))


class WithFlatMemory(torch.nn.Linear):
    """A program whose buffer has the name of rsl_rl's memory, and another shape."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("hidden_state", torch.zeros(1, 8))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_exported_network_with_an_unknown_memory_is_refused(tmp_path):
    torch.jit.save(torch.jit.script(WithFlatMemory()), str(tmp_path / "policy.pt"))
    assert "cannot be asked about 3 numbers" in refused_environment(policy_of(tmp_path / "policy.pt"))


def test_an_exported_network_is_scaled_as_its_training_says(tmp_path):
    write_checkpoint(tmp_path, action_scaling="within_bounds")
    policy = policy_of(write_torchscript(tmp_path / "exported" / "policy.pt", 3, 3))
    action = policy.get_action(ScriptedEnvironment(2), {"policy": {"position": torch.tensor([[0.0] * 3, [9.0] * 3])}})
    assert action.tolist() == [[0.5] * 3, [2.0] * 3]


def test_options_that_cannot_work_are_refused_before_anything_runs(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "run")
    assert refused_options("nowhere.pt").startswith("checkpoint_path: 'nowhere.pt' does not exist")
    assert refused_options(tmp_path).startswith("checkpoint_path: ")
    assert refused_options(tmp_path / "run", checkpoint=7).startswith("checkpoint: there is no model_7.pt")
    assert refused_options(checkpoint, agent_cfg_path="none.yaml").startswith("agent_cfg_path: none.yaml: ")
    assert refused_options(checkpoint, clip_actions=-1.0) == "clip_actions: must be above 0, got -1"
    assert refused_options(checkpoint, action_scaling="wild").startswith("action_scaling: no such scaling 'wild'")
    exported = write_torchscript(tmp_path / "policy.pt", 3, 3)
    assert refused_options(exported, stochastic=True).startswith("stochastic: ")
    (tmp_path / "run" / "params" / "agent.yaml").write_text("actor: {class_name: CNNModel}")
    assert f"checkpoint_path: {checkpoint}: is a network of the class 'CNNModel'" in refused_options(checkpoint)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that must not be there")
def test_arenas_name_of_the_device_means_the_same(tmp_path, monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    checkpoint = write_checkpoint(tmp_path)
    RslRlPolicy.check_options(RslRlPolicyCfg(checkpoint_path=str(checkpoint), device="cpu", policy_device="cpu"))
    assert refused_options(checkpoint, device="cuda:0").startswith("device: ")
    assert "give one of them" in refused_options(checkpoint, device="cpu", policy_device="cuda")


def job(**options: Any) -> JobConfig:
    return JobConfig(
        index=0,
        name="trained",
        environment="reach",
        policy_type="rsl_rl",
        policy_config_dict=options,
        num_episodes=1,
    )


def test_a_job_file_spells_the_options_in_plain_json(tmp_path):
    checkpoint = write_checkpoint(tmp_path, num_inputs=26, num_actions=8)
    (resolved,) = resolve_jobs([job(checkpoint_path=str(checkpoint), action_scaling="within_bounds", clip_actions=1)])
    assert isinstance(resolved.build_policy(), RslRlPolicy)
    with pytest.raises(ConfigError, match=r"policy_config_dict\.checkpoint_path: 'no\.pt' does not exist"):
        resolve_jobs([job(checkpoint_path="no.pt")])
    with pytest.raises(ConfigError, match=r"policy_config_dict\.action_scaling"):
        resolve_jobs([job(checkpoint_path=str(checkpoint), action_scaling="wild")])


def test_torchscript_is_a_program_and_not_loaded_with_no_import(tmp_path):
    program = write_torchscript(tmp_path / "policy.pt", 3, 3)
    with pytest.raises(ConfigError, match=r"policy_config_dict\.checkpoint_path: .* is a program; .*--no_import"):
        resolve_jobs([job(checkpoint_path=str(program))], may_import=False)
    resolve_jobs([job(checkpoint_path=str(write_checkpoint(tmp_path, num_inputs=26, num_actions=8)))], may_import=False)


def test_a_group_without_terms_stands_beside_the_others_on_a_gpu_too(gpu):
    inputs = network_inputs({"policy": {"place": ArraySpec(shape=(2,))}, "goal": {}}, ["policy", "goal"], {})
    seen = inputs.flat({"policy": {"place": torch.ones(3, 2, device=GPU)}, "goal": {}}, 3, GPU)
    assert seen.device == GPU
    assert seen.shape == (3, inputs.size)


def test_a_group_that_the_network_was_shown_twice_counts_twice():
    place = ArraySpec(shape=(2,))
    inputs = network_inputs({"policy": {"place": place}, "goal": {"at": place}}, ["policy", "goal", "policy"], {})
    observation = {"policy": {"place": torch.ones(1, 2)}, "goal": {"at": torch.zeros(1, 2)}}
    seen = inputs.flat(observation, 1, torch.device("cpu"))
    assert seen.tolist() == [[1, 1, 0, 0, 1, 1]]
    assert inputs.size == 6


# What is kept of the steps before, and how much of it.


def frame(step: int, num_envs: int) -> dict[str, torch.Tensor]:
    """Return a frame whose numbers say the step and the env slot: ``100 * env_id + step``."""
    return {"a": (100 * torch.arange(num_envs) + step)[:, None].expand(-1, 2)}


@pytest.mark.parametrize("steps", [(0,), (-3, 0), (-2, -1, 0), (-4, -2), (0, -1, -1)])
def test_each_env_slot_sees_its_own_steps_and_before_the_first_the_first(steps):
    history, begun = FrameHistory(steps, 3), [0, 0, 0]
    for now in range(12):
        for env_id, begins_at in ((1, (5, 6)), (2, (9,))):
            if now in begins_at:
                history.restart(torch.tensor([env_id]))
                begun[env_id] = now
        history.push(frame(now, 3), range(3))
        expected = [[100 * env_id + max(begun[env_id], now + step) for step in steps] for env_id in (2, 0, 1, 2)]
        assert history.frames([2, 0, 1, 2])["a"][..., 0].tolist() == expected


def test_no_more_is_kept_than_the_earliest_step_needs():
    history = FrameHistory((-15, 0), 4)
    for step in range(100):
        history.push(frame(step, 4), range(4))
    assert [kept.shape for kept in history._kept.values()] == [(4, 16, 2)]


def test_what_was_returned_does_not_change_when_the_next_frame_comes():
    history = FrameHistory((-1, 0), 1)
    history.push(frame(0, 1), [0])
    returned = history.frames([0])["a"]
    history.push(frame(1, 1), [0])
    assert returned[0, :, 0].tolist() == [0, 0]

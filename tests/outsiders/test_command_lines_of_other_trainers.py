"""Lines that users of mjlab, Isaac Lab and rsl_rl's examples type from memory, at the door of this trainer."""

import pytest
import torch
import yaml

from isaaclab_arena.training.train import main
from tests.training.rsl_rl_checkpoints import PLAIN, old_checkpoint


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--video --video_length 200", "--video_length: evaluations are filmed, each episode whole"),
        ("--wandb-run-path me/mine/1", "--wandb-run-path: nothing is fetched from W&B"),
        ("--env.sim.mujoco.timestep 0.01", "--env.sim.mujoco.timestep: is a part of mjlab's and Isaac Lab's envir"),
        ("env.episode_length_s=3", "env.episode_length_s: is a part of mjlab's and Isaac Lab's environments"),
        ("--livestream 2", "--livestream: is an option of Isaac Sim's launcher, and there is none here"),
        ("--rl_device cuda:0", "--rl_device: simulation and learning share a device; use --device"),
        ("--agent.max-iterations", "--agent.max-iterations: needs a value"),
        ("--agent.resume=maybe", "--agent.resume: is True or False, got 'maybe'"),
        ("--load_run x", "--load_run: names a run to continue; add --resume"),
        ("--gamme 3", "--gamme: unknown option"),
        ("--max_iteration 2", "--max_iteration: unknown option; did you mean '--max_iterations'?"),
        ("--save-interval 2", "--save-interval: unknown option; it is set by agent.save_interval=..."),
        ("--nonsense 2 tensorboard", "--nonsense: unknown option; --help lists all"),
        ("--agent.max-iteration 2", "agent.algorithm.max_iteration: PPO has no such option"),
    ],
)
def test_what_means_nothing_here_is_refused_with_a_reason(line, told, capsys, tmp_path):
    assert main(["cartpole", *line.split(), "--log_root", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert told in printed
    assert "one task" not in printed


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Mjlab-Velocity-Flat-Unitree-Go1", "velocity_go1"),
        ("Mjlab-Velocity-Rough-Unitree-G1", "walk_humanoid"),
        ("Mjlab-Tracking-Flat-Unitree-G1-No-State-Estimation", "track_motion"),
        ("Mjlab-Cartpole-Swingup", "cartpole env.start=hanging"),
        ("Mjlab-Lift-Cube-Yam", "push_cube"),
        ("Isaac-Cartpole-v0", "cartpole"),
        ("Isaac-Velocity-Flat-Anymal-D-v0", "velocity_go1"),
        ("Isaac-Humanoid-Direct-v0", "walk_humanoid"),
        ("Isaac-Reach-Franka-v0", "reach"),
        ("Isaac-Quadcopter-Direct-v0", "none here is like it; those here are cartpole"),
    ],
)
def test_a_task_of_theirs_leads_to_the_nearest_one(name, nearest, capsys):
    assert main(["--task", name]) == 2
    owner = "mjlab" if name.startswith("Mjlab") else "Isaac Lab"
    assert f"TASK: '{name}' is a task of {owner}" in (printed := capsys.readouterr().err)
    assert nearest in printed


def test_a_line_of_mjlab_trains_from_a_checkpoint_of_isaac_lab(tmp_path, capsys):
    path, *_ = old_checkpoint(tmp_path / "model_1499.pt")
    words = [*PLAIN, "evaluation.interval=0", "checkpoints.export=false", "--agent.num-steps-per-env", "8"]
    line = "cartpole --env.scene.num-envs 4 --agent.max-iterations 1 --agent.logger none --torchrunx-log-dir="
    command = [*line.split(), "--log-root", str(tmp_path), "--load-checkpoint", str(path), *words]
    assert main(command) == 0
    assert f"training begins with the actor and the critic and the optimiser of {path}" in capsys.readouterr().err
    (run,) = (tmp_path / "cartpole").glob("20*")
    settings = yaml.safe_load((run / "params" / "train.yaml").read_text())
    assert settings["began_with"].startswith("training begins with the actor")
    assert settings["devices"] == settings["simulation_devices"] == ["cpu"]
    assert settings["command_lines"] == [f"isaaclab_arena.training.train {' '.join(command)}"]
    before = torch.load(run / "model_0.pt", weights_only=True)["actor_state_dict"]["mlp.0.weight"]
    assert torch.equal(before, torch.load(path, weights_only=True)["model_state_dict"]["actor.0.weight"])
    for _ in range(2):
        assert main(["--resume", str(run), "--max-iterations", "2"]) == 0
    again = yaml.safe_load((run / "params" / "train.yaml").read_text())
    assert again["began_with"] == settings["began_with"]
    assert "all 2 iterations are done; --max_iterations says how many in all" in capsys.readouterr().err

"""Lines that users of mjlab, Isaac Lab and rsl_rl's examples type from memory, at the door of this trainer."""

import pytest

from isaaclab_arena.training.train import main


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
    ],
)
def test_what_means_nothing_here_is_refused_with_a_reason(line, told, capsys):
    assert main(["cartpole", *line.split()]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--gamme 3", "--gamme: unknown option"),
        ("--max_iteration 2", "--max_iteration: unknown option; did you mean '--max_iterations'?"),
        ("--save-interval 2", "--save-interval: unknown option; it is set by agent.save_interval=..."),
        ("--nonsense 2 tensorboard", "--nonsense: unknown option; --help lists all"),
        ("--agent.max-iteration 2", "agent.algorithm.max_iteration: PPO has no such option"),
    ],
)
def test_an_option_that_nobody_knows_is_named_alone(line, told, capsys, tmp_path):
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
    ],
)
def test_a_task_of_theirs_leads_to_the_nearest_one(name, nearest, capsys):
    assert main(["--task", name]) == 2
    owner = "mjlab" if name.startswith("Mjlab") else "Isaac Lab"
    assert (
        f"TASK: '{name}' is a task of {owner}; the nearest here is {nearest}, with a robot" in capsys.readouterr().err
    )


def test_a_task_like_none_here_is_said_to_be_so(capsys):
    assert main(["Isaac-Quadcopter-Direct-v0"]) == 2
    assert "is a task of Isaac Lab, and none here is like it; those here are cartpole" in capsys.readouterr().err

"""Lines that users of mjlab, Isaac Lab and rsl_rl's examples type from memory, at the door of this trainer."""

import pytest

from isaaclab_arena.training.train import main


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--video --video_length 200", "--video_length: evaluations are filmed, each episode whole"),
        ("--wandb-run-path me/mine/1", "--wandb-run-path: nothing is fetched from W&B"),
        ("--env.sim.mujoco.timestep 0.01", "env.sim: "),
        ("env.episode_length_s=3", "env.episode_length_s: "),
        ("--rl_device cuda:0", "--rl_device: simulation and learning share a device; use --device"),
        ("--agent.max-iterations", "--agent.max-iterations: needs a value"),
        ("--agent.resume=maybe", "--agent.resume: is True or False, got 'maybe'"),
        ("--load_run x", "--load_run: says which run to go on with; add --resume"),
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
        ("--livestream 2", "--livestream: unknown option; --help lists all"),
        ("--nonsense 2 tensorboard", "--nonsense: unknown option; --help lists all"),
        ("--agent.max-iteration 2", "agent.algorithm.max_iteration: PPO has no such option"),
    ],
)
def test_an_option_that_nobody_knows_is_named_alone(line, told, capsys, tmp_path):
    assert main(["cartpole", *line.split(), "--log_root", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert told in printed
    assert "one task" not in printed


@pytest.mark.parametrize("name", ["Mjlab-Velocity-Flat-Unitree-Go1", "Isaac-Quadcopter-Direct-v0"])
def test_a_task_of_theirs_is_refused_with_the_tasks_that_there_are(name, capsys):
    assert main(["--task", name]) == 2
    printed = capsys.readouterr().err
    assert name in printed
    assert "velocity_go1" in printed

"""A line of one trainer begins with a checkpoint of another."""

import torch
import yaml

from isaaclab_arena.training.train import main
from tests.training.rsl_rl_checkpoints import PLAIN, old_checkpoint


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
    assert main(["--resume", str(run), "--max-iterations", "2"]) == 0
    again = yaml.safe_load((run / "params" / "train.yaml").read_text())
    assert again["began_with"] == settings["began_with"]
    assert main(["--resume", str(run), "--max-iterations", "2"]) == 0
    assert "all 2 iterations are done; --max_iterations says how many in all" in capsys.readouterr().err

"""Learning on several ranks gives what one process would learn from all samples."""

import pytest
import torch

from isaaclab_arena.distributed.context import DistributedContext
from tests.end_to_end.launching import command, patience_s, run
from tests.training.samples import NUM_ENVS, algorithm, show


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_hold_the_same_bits_and_learn_what_one_process_would_from_all_samples(ranks, tmp_path):
    finished = run(
        command(tmp_path, ranks=ranks, module=["-m", "tests.training.training_rank"]), timeout_s=patience_s(120)
    )
    assert finished.returncode == 0, finished.stderr
    assert "12 checks held" in finished.stdout
    alone = algorithm(NUM_ENVS * ranks, DistributedContext())
    untrained = alone.save()["actor_state_dict"]["mlp.0.weight"].clone()
    show(alone, list(range(ranks)))
    alone.update()
    together = torch.load(tmp_path / "update.pt", weights_only=True)
    for network in ("actor_state_dict", "critic_state_dict"):
        for name, value in alone.save()[network].items():
            torch.testing.assert_close(together[network][name], value, rtol=1e-5, atol=1e-6, msg=f"{network}.{name}")
    assert (untrained - together["actor_state_dict"]["mlp.0.weight"]).abs().max() > 1e-4, "nothing was learned"

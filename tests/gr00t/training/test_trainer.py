"""The loop that fine-tunes a model."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.storage.episodes import RecordedSteps
from isaaclab_arena_gr00t.training.trainer import (
    AUGMENTATION,
    NOISE,
    DivergedError,
    TrainingSettings,
    batch_numbers,
    learning_rate_at,
    step_generator,
)
from tests.end_to_end.launching import ROOT, command, patience_s, run
from tests.gr00t.training.demonstrations import SETTINGS, recording, small_trainer, write_config, write_recordings
from tests.gr00t.training.training_rank import NUM_STEPS, fingerprint


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    path = write_recordings(tmp_path_factory.mktemp("lift"), *map(recording, range(6)))
    write_config(path / "policy.yaml")
    return path


def trainer(directory: Path, **changes):
    return small_trainer(directory, DistributedContext(), RecordedSteps(), dataclasses.replace(SETTINGS, **changes))


def test_a_model_learns_what_is_shown(directory):
    learner = trainer(directory, learning_rate=5e-3, max_steps=60, noise_draws=4)
    losses = [learner.step() for _ in range(60)]
    assert sum(losses[-6:]) < sum(losses[:6]) / 2


def test_training_that_is_taken_up_again_gives_the_bits_of_an_undisturbed_one(directory, tmp_path):
    undisturbed, interrupted, resumed = trainer(directory), trainer(directory), trainer(directory)
    for _ in range(4):
        undisturbed.step()
    for _ in range(2):
        interrupted.step()
    torch.save(interrupted.state(), tmp_path / "state.pt")
    resumed.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    for _ in range(2):
        resumed.step()
    assert fingerprint(resumed) == fingerprint(undisturbed)


# Takes seconds: the only test with two processes that train together.
def test_ranks_are_the_same_bits_after_every_step(directory):
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'submodules' / 'Isaac-GR00T'}"}
    module = ["-m", "tests.gr00t.training.training_rank"]
    finished = run(command(directory, ranks=2, module=module), extra=path, timeout_s=patience_s(120))
    assert finished.returncode == 0, finished.stderr
    assert f"alike for {NUM_STEPS} steps" in finished.stdout


def test_the_average_follows_the_weights(directory):
    learner = trainer(directory, learning_rate=2e-3)
    for _ in range(3):
        learner.step()
    weights, average = learner.model.state_dict(), learner.average.state_dict()
    moved = [name for name in weights if not torch.equal(weights[name], average[name])]
    assert len(moved) > len(weights) / 2


def test_a_loss_that_is_nan_ends_the_training(directory):
    learner = trainer(directory)
    with torch.no_grad():
        next(learner.model.parameters()).fill_(torch.nan)
    with pytest.raises(DivergedError, match="at step 0"):
        learner.step()


def test_the_learning_rate_rises_and_falls():
    settings = TrainingSettings(max_steps=100, warmup_steps=10, learning_rate=1.0)
    rates = [learning_rate_at(step, settings) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[10] == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(0.01)


def numbers(step: int, *, rank: int = 0, world_size: int = 1, batch_size: int = 4, seed: int = 0) -> np.ndarray:
    return batch_numbers(step, rank=rank, world_size=world_size, batch_size=batch_size, num_samples=10, seed=seed)


def test_every_sample_is_seen_once_in_each_pass():
    stream = np.concatenate([numbers(step) for step in range(5)])
    assert sorted(stream[:10]) == sorted(stream[10:]) == list(range(10))
    assert stream[:10].tolist() != stream[10:].tolist()
    assert numbers(0, seed=1).tolist() != numbers(0).tolist()


def test_two_ranks_see_together_what_one_process_with_twice_the_batch_sees():
    for step in range(7):
        ranks = [numbers(step, rank=rank, world_size=2) for rank in range(2)]
        np.testing.assert_array_equal(np.concatenate(ranks), numbers(step, batch_size=8))


@pytest.mark.parametrize("purpose", [NOISE, AUGMENTATION])
def test_every_rank_and_step_has_a_stream_of_its_own(purpose):
    drawn = {
        float(torch.rand(1, generator=step_generator(purpose, step, rank=rank, seed=seed)))
        for step in range(3)
        for rank in range(3)
        for seed in range(2)
    }
    assert len(drawn) == 18
    assert float(torch.rand(1, generator=step_generator(purpose, 2, rank=1, seed=0))) in drawn

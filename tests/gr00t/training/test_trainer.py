"""The loop that fine-tunes a model."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.errors import ArenaError, ConfigError
from isaaclab_arena.storage.episodes import RecordedSteps
from isaaclab_arena_gr00t.observations import Wiring
from isaaclab_arena_gr00t.training.trainer import (
    AUGMENTATION,
    NOISE,
    Demonstration,
    DemonstrationSteps,
    DivergedError,
    TrainingSettings,
    batch_numbers,
    find_demonstrations,
    learning_rate_at,
    split,
    step_generator,
)
from tests.end_to_end.launching import ROOT, command, patience_s, run
from tests.gr00t.data.recordings import record
from tests.gr00t.training.demonstrations import SETTINGS, SIZE, recording, small_trainer, write_config, write_recordings
from tests.gr00t.training.training_rank import NUM_STEPS
from tests.growth import in_time
from tests.outsiders.lerobot_datasets import damaged_recording


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


# Takes seconds: the only test with two processes that train together.
def test_ranks_are_the_same_bits_after_every_step(directory):
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'submodules' / 'Isaac-GR00T'}"}
    module = ["-m", "tests.gr00t.training.training_rank"]
    finished = run(command(directory, ranks=2, module=module), extra=path, timeout_s=patience_s(120))
    assert finished.returncode == 0, finished.stderr
    assert f"alike for {NUM_STEPS} steps" in finished.stdout


def test_the_average_follows_the_weights(directory):
    learner = trainer(directory, learning_rate=2e-3)
    begun = {name: value.clone() for name, value in learner.average.named_parameters()}
    learner.step()
    weights, average = dict(learner.model.named_parameters()), dict(learner.average.named_parameters())
    moved = [name for name in weights if not torch.equal(weights[name], begun[name])]
    assert len(moved) > len(weights) / 2
    # After one step the decay is 2 / 11, whatever is asked for.
    for name in moved:
        assert torch.allclose(average[name], torch.lerp(begun[name], weights[name], 9 / 11), atol=1e-7)


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


# What is learned from recordings.


WIRING = Wiring(
    cameras={"head": "robot_head_cam_rgb"},
    image_size=(SIZE, SIZE),
    state_terms=("gripper_pos", "robot_joint_pos"),
    state={"arm": tuple(range(2, 9)), "gripper": (0,)},
    action={"gripper": (7,), "arm": tuple(range(7))},
    language_keys=("task",),
)


@pytest.fixture
def lift(tmp_path):
    return write_recordings(tmp_path / "lift", *map(recording, range(3)), recording(3, success=False))


def steps_of(directory, horizon: int = 4) -> DemonstrationSteps:
    found = find_demonstrations(sorted(directory.glob("*.h5")))
    return DemonstrationSteps(found, WIRING, horizon=horizon, steps=RecordedSteps())


def test_only_what_succeeded_is_learned_unless_told_otherwise(lift):
    files = sorted(lift.glob("*.h5"))
    assert [each.episode_index for each in find_demonstrations(files)] == [0, 1, 2]
    assert [each.episode_index for each in find_demonstrations(files, only_successes=False)] == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="1 did not"):
        find_demonstrations(files[3:])


def test_every_control_step_is_one_sample_in_order(lift):
    data = steps_of(lift)
    assert len(data) == 6 + 7 + 8
    assert data.states()["arm"].shape == (21, 7)
    np.testing.assert_array_equal(data.actions()["arm"][6:13], recording(1).arrays["actions"][:, :7])
    batch = data.batch([0, 5, 6, 20])
    second = recording(1).arrays
    np.testing.assert_array_equal(batch.observation["state"]["arm"][2, 0], second["obs/robot_joint_pos"][0])
    np.testing.assert_array_equal(batch.observation["video"]["head"][2, 0], second["camera_obs/robot_head_cam_rgb"][0])
    assert batch.observation["language"]["task"] == [
        [recording(i).attributes["language_instruction"]] for i in (0, 0, 1, 2)
    ]


def test_an_action_chunk_holds_what_followed_and_marks_what_lies_behind_the_end(lift):
    batch = steps_of(lift).batch([0, 4])
    actions = recording(0).arrays["actions"]
    np.testing.assert_array_equal(batch.action["arm"][0], actions[0:4, :7])
    np.testing.assert_array_equal(batch.action["arm"][1], actions[[4, 5, 5, 5], :7])
    np.testing.assert_array_equal(batch.action["gripper"][0], actions[0:4, 7:])
    assert batch.is_padding.tolist() == [[False] * 4, [False, False, True, True]]


@pytest.mark.parametrize(("share", "numbers"), [(0.0, (0, 0)), (0.01, (1, 1)), (0.5, (5, 1)), (0.99, (9, 1))])
def test_every_job_gives_its_share_for_validation_and_keeps_something_to_learn(tmp_path, share, numbers):
    demonstrations = [
        Demonstration(file=tmp_path, episode_index=index, num_steps=5, instruction="", job=job)
        for job, count in (("lift", 10), ("reach", 2))
        for index in range(count)
    ]
    chosen, held_out = split(demonstrations, share=share, seed=1)
    assert sorted(chosen + held_out) == list(range(12))
    assert (sum(index < 10 for index in held_out), sum(index >= 10 for index in held_out)) == numbers
    assert split(demonstrations, share=share, seed=1) == (chosen, held_out)


def check_damaged_recording(original: Path, directory: Path, seed: int) -> None:
    """Change an attribute or an array of a recording, and give it to what learns."""
    recording = damaged_recording(original, directory, seed)
    try:
        with in_time(60):
            find_demonstrations([recording])
    except ArenaError:
        return
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "seeds", [range(12), *(pytest.param(range(first, first + 400), marks=pytest.mark.slow) for first in (1000, 2000))]
)
def test_whatever_a_recording_says_of_itself_it_is_learned_or_refused(tmp_path, seeds):
    original = record(tmp_path / "lift", "lift", [3, 4])
    for seed in seeds:
        check_damaged_recording(original, tmp_path, seed)

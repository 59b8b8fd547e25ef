"""Checkpoints of a training, and their evaluation."""

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.checkpoints import BEST_FILE, model_path
from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.distributed.ranks import PeerStoppedError, Ranks
from isaaclab_arena.errors import ArenaError, ConfigError, DiskUnusableError, StorageError
from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.training.checkpoints import (
    Score,
    best_score,
    keep_best,
    newest_readable,
    packed,
    read_learned,
    read_rank_state,
    read_together,
    score_of,
    state_path,
    write_checkpoint,
)
from isaaclab_arena.training.config import default_document, merged, read_training, task_document
from isaaclab_arena.training.learner import environment_job
from isaaclab_arena.training.training_loop import ClosedLoopEvaluation, EvaluatedJob
from isaaclab_arena.training.training_run import evaluation_jobs
from tests.distributed.threads import ranks_in_threads
from tests.policy.checkpoints import write_checkpoint as closed_write_checkpoint
from tests.training.learning import small_config


def write(directory, iterations: int, *, ranks: int = 1, **more):
    states = [packed({"torch_rng": torch.full((3,), rank, dtype=torch.uint8)}) for rank in range(ranks)]
    learned = {"actor_state_dict": {"weight": torch.ones(1)}, "iter": iterations, "infos": {}}
    return write_checkpoint(directory, learned, states, iterations=iterations, kept=2, **more)


def test_the_newest_checkpoints_stay_and_those_that_were_evaluated_as_policies(tmp_path):
    for iterations in (0, 50, 100, 150):
        write(tmp_path, iterations, stays={50}.__contains__)
    kept = {f"model_{number}.pt" for number in (50, 100, 150)} | {"state_100.pt", "state_150.pt"}
    assert {path.name for path in tmp_path.iterdir()} == kept
    assert newest_readable(tmp_path)[0] == 150
    assert read_learned(model_path(tmp_path, 100))["iter"] == 100


def test_where_the_newest_checkpoint_is_torn_the_one_before_is_taken(tmp_path):
    for iterations in (50, 100):
        write(tmp_path, iterations)
    model_path(tmp_path, 100).write_bytes(b"PK torn")
    assert newest_readable(tmp_path)[0] == 50
    model_path(tmp_path, 50).write_bytes(b"")
    with pytest.raises(StorageError, match="2"):
        newest_readable(tmp_path)


def test_a_state_of_another_number_of_ranks_or_a_damaged_one_is_none(tmp_path):
    write(tmp_path, 7, ranks=2)
    assert read_rank_state(tmp_path, iterations=7, rank=0, world_size=3) is None
    for content in ([1, 2], {"7": torch.zeros(3)}):
        torch.save(content, state_path(tmp_path, 7))
        assert read_rank_state(tmp_path, iterations=7, rank=0, world_size=1) is None
    for spoil in (lambda path: path.write_bytes(b"torn"), Path.unlink):
        spoil(state_path(tmp_path, 7))
        assert read_rank_state(tmp_path, iterations=7, rank=0, world_size=2) is None


def taken_up(*directories: Path) -> list[Any]:
    """Result of a joint checkpoint read, by rank; each rank sees the run in its own directory."""

    def read(ranks: Ranks, directory: Path) -> tuple[dict[str, Any], dict[str, Any] | None] | ArenaError:
        try:
            return read_together(directory, ranks)
        except ArenaError as error:
            ranks.give_up(str(error))
            return error

    with ThreadPoolExecutor() as threads:
        return list(threads.map(read, ranks_in_threads(len(directories)), directories))


@pytest.fixture
def views(tmp_path) -> list[Path]:
    """Two directories that hold one run of two ranks, as the two ranks see it."""
    for rank in range(2):
        for iterations in (50, 100):
            write(tmp_path / str(rank), iterations, ranks=2)
    return [tmp_path / "0", tmp_path / "1"]


def test_all_ranks_go_on_from_one_checkpoint_each_with_its_own_state(views):
    found = taken_up(*views)
    assert [(learned["iter"], state["torch_rng"].tolist()) for learned, state in found] == [
        (100, [0, 0, 0]),
        (100, [1, 1, 1]),
    ]
    for view in views:
        torch.save({"0": torch.frombuffer(bytearray(packed({})), dtype=torch.uint8), "1": 7}, state_path(view, 100))
    found = [(learned["iter"], state) for learned, state in taken_up(*views)]
    assert found == [(100, None), (100, None)], "where one state is damaged all begin new episodes"
    model_path(views[0], 100).write_bytes(b"PK torn")
    assert [learned["iter"] for learned, _ in taken_up(views[0], views[0])] == [50, 50]


@pytest.mark.parametrize("name", ["model_100.pt", "state_100.pt"])
def test_a_file_that_one_rank_cannot_read_ends_the_training_and_no_older_one_is_taken(views, name):
    (views[1] / name).write_bytes(b"PK torn")
    for error in taken_up(*views):
        assert isinstance(error, ConfigError)
        assert f"{name} (rank 0: " in str(error)
    (views[1] / name).unlink()
    assert "rank 1: absent" in str(taken_up(*views)[1])
    # Following it fails in the system, as reading a disk may.
    (views[1] / name).symlink_to("n" * 300)
    first, second = taken_up(*views)
    assert (type(first), type(second)) == (PeerStoppedError, StorageError)
    assert str(views[1] / name) in str(second)
    first, second = taken_up(*reversed(views))
    assert (type(first), type(second)) == (StorageError, PeerStoppedError)


def test_a_full_disk_leaves_the_checkpoint_before_and_is_named(tmp_path, monkeypatch):
    def torn(descriptor: int, content: memoryview) -> int:
        raise OSError(28, "No space left on device")

    write(tmp_path, 50)
    monkeypatch.setattr(os, "write", torn)
    with pytest.raises(DiskUnusableError, match=r"state_100\.pt"):
        write(tmp_path, 100)
    assert {path.name for path in tmp_path.iterdir()} == {"model_50.pt", "state_50.pt"}


def test_a_file_with_code_in_it_is_not_loaded(tmp_path):
    path = tmp_path / "model_1.pt"
    torch.save({"actor_state_dict": {}, "iter": 1, "infos": pickle.PickleBuffer}, path)
    with pytest.raises(ConfigError, match="could run code"):
        read_learned(path)
    torch.save({"weights": torch.zeros(1)}, path)
    with pytest.raises(ConfigError, match="no actor_state_dict"):
        read_learned(path)
    path.write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(ConfigError, match=r"model_1\.pt"):
        read_learned(path)


def score(success_rate: float, merit: float, iterations: int = 1, evaluation: str = "jobs") -> Score:
    return Score(success_rate=success_rate, merit=merit, iterations=iterations, evaluation=evaluation)


def scored(*jobs: tuple[float | None, float | None, float | None]) -> Score | None:
    """Score of jobs with a success rate, a return and a length."""
    names = ("success_rate", "mean_return", "mean_length")
    evaluated = [EvaluatedJob(episodes=10, **dict(zip(names, each, strict=True))) for each in jobs]
    return score_of(evaluated, 1, evaluation="jobs")


@pytest.mark.parametrize(
    ("better", "other"),
    [
        (scored((1.0, 9.5, 10.0)), scored((1.0, 10.6, 12.8))),
        (scored((0.9, 1.0, 100)), scored((0.8, 50.0, 100))),
        (scored((None, 90.0, 100.0)), scored((None, 50.0, 50.0))),
        (score(0.9, 1.5), score(0.9, 1.0)),
    ],
    ids=["the quicker", "success before rewards", "rewards without success", "the better paid"],
)
def test_of_two_checkpoints_the_better_one_is_kept(tmp_path, better, other):
    model_path(tmp_path, 1).touch()
    assert [keep_best(tmp_path, each) for each in (other, better, better)] == [True, True, False]


def test_jobs_count_alike_and_one_without_episodes_or_success_says_so():
    assert scored((1.0, 10.0, 10.0), (0.0, 5.0, 10.0)) == score(0.5, 0.75)
    assert scored((1.0, 10.0, 10.0), (None, 90.0, 9.0)) == score(1.0, 1.0)
    assert scored((None, 90.0, 100.0)) == score(-1, 90.0)
    assert scored((None, None, None)) is None


def test_the_best_checkpoint_outlives_newer_ones_but_not_those_of_other_jobs(tmp_path, caplog):
    for iterations in (50, 100):
        model_path(tmp_path, iterations).write_text(str(iterations))
    assert keep_best(tmp_path, score(0.9, 1.0, 50))
    model_path(tmp_path, 50).unlink()
    assert not keep_best(tmp_path, score(0.8, 9.0, 100))
    assert (tmp_path / BEST_FILE).read_text() == "50"
    assert best_score(tmp_path) == score(0.9, 1.0, 50)
    assert keep_best(tmp_path, score(0.2, 1.0, 100, "hard"))
    assert (tmp_path / BEST_FILE).read_text() == "100"
    assert "other jobs" in caplog.text


@pytest.mark.parametrize("content", ["{", "[]", '{"success_rate": 1.0}'])
def test_a_damaged_score_is_as_good_as_none(tmp_path, caplog, content):
    (tmp_path / "model_best.json").write_text(content)
    assert best_score(tmp_path) is None
    assert "model_best.json" in caplog.text


# The evaluation of a checkpoint that training writes again is one of what is there now, and of nothing else.


STEP = 200
JOB = {
    "name": "pole",
    "arena_env_args": {"environment": "cartpole", "num_envs": 2},
    "policy_type": "rsl_rl",
    "policy_config_dict": {"checkpoint_path": "given by the training", "action_scaling": "within_bounds"},
    "num_episodes": 3,
}


def weights(directory: Path, seed: int) -> Path:
    """Write the checkpoint of iteration 200, over the one that is there, and return it."""
    return closed_write_checkpoint(directory, num_inputs=5, num_actions=1, name=f"model_{STEP}.pt", seed=seed)


def evaluated(directory: Path, checkpoint: Path) -> list[tuple[float, int]]:
    """Evaluate a checkpoint as a training in a directory does; return each episode's return, and its attempt."""
    evaluation = ClosedLoopEvaluation(
        read_jobs({"jobs": [JOB]}, source="jobs.json"),
        checkpoint_option="checkpoint_path",
        policy_type="rsl_rl",
        output_directory=directory,
        ranks=ranks_in_threads(1)[0],
        device="cpu",
    )
    assert evaluation.run(checkpoint, STEP) == 0
    assert (evaluation.results(STEP)["pole"].episodes, evaluation.is_complete(STEP)) == (3, True)
    episodes = merge_results(evaluation.directory(STEP)).episodes
    return list(zip(episodes["return"].tolist(), episodes["attempt"].tolist(), strict=True))


def test_a_checkpoint_that_is_written_again_with_other_numbers_is_evaluated_anew(tmp_path):
    checkpoint = weights(tmp_path / "training", seed=5)
    first = evaluated(checkpoint.parent, checkpoint)
    assert evaluated(checkpoint.parent, weights(checkpoint.parent, seed=5)) == first
    weights(checkpoint.parent, seed=6)
    second = evaluated(checkpoint.parent, checkpoint)
    assert [score for score, _ in second] == [score for score, _ in evaluated(tmp_path / "other", checkpoint)]
    assert not {score for score, _ in first} & {score for score, _ in second}
    assert {attempt for _, attempt in second} == {2}
    directory = checkpoint.parent / "evaluations" / f"step-{STEP}"
    assert json.loads((directory / "results.json").read_text())["jobs"][0]["rerun"] == 1
    aside = directory / "pole" / "set_aside" / "attempt_1" / "episode_results_rank0.jsonl"
    assert len(aside.read_text().splitlines()) == 3


def test_evaluation_meets_episodes_that_training_does_not_and_motions_from_their_beginning():
    config = small_config("evaluation.num_episodes=7", "evaluation.num_envs=3")
    (job,) = evaluation_jobs(config).jobs
    assert (job.num_episodes, job.num_envs, job.seed, config.agent.seed) == (7, 3, 10_000, 42)
    config = read_training(merged(default_document(), task_document("track_motion")), task="track_motion", source="")
    (job,) = evaluation_jobs(config).jobs
    assert job.environment_args["start"] == "beginning"
    assert environment_job(config).environment_config.start == "anywhere"


def test_a_mistake_is_told_in_words_of_the_training():
    for word, told in (("env.strat=hanging", r"^env\.strat: .* 'start'"), ("environment=cartpol", r"^environment: ")):
        with pytest.raises(ConfigError, match=told):
            environment_job(small_config(word))

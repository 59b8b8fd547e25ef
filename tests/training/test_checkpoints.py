"""Checkpoints of a training, and their evaluation."""

import json
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.checkpoints import BEST_FILE, model_path, numbered_checkpoints
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


def learned(iterations: int) -> dict:
    return {"actor_state_dict": {"weight": torch.tensor([float(iterations)])}, "iter": iterations, "infos": {}}


def write(directory, iterations: int, *, kept: int = 2, ranks: int = 1):
    states = [packed({"torch_rng": torch.full((3,), rank, dtype=torch.uint8)}) for rank in range(ranks)]
    return write_checkpoint(directory, learned(iterations), states, iterations=iterations, kept=kept)


def test_the_newest_checkpoints_stay_with_what_belongs_to_them(tmp_path):
    for iterations in (0, 50, 100):
        write(tmp_path, iterations)
    assert {path.name for path in tmp_path.iterdir()} == {"model_50.pt", "state_50.pt", "model_100.pt", "state_100.pt"}
    assert read_learned(model_path(tmp_path, 100))["iter"] == 100


def test_a_checkpoint_that_was_evaluated_stays_as_a_policy(tmp_path):
    for iterations in (0, 50, 100, 150):
        states = [packed({"torch_rng": torch.zeros(3, dtype=torch.uint8)})]
        write_checkpoint(tmp_path, learned(iterations), states, iterations=iterations, kept=1, stays={50}.__contains__)
    assert list(numbered_checkpoints(tmp_path)) == [50, 150]
    assert sorted(path.name for path in tmp_path.glob("state_*")) == ["state_150.pt"]
    assert newest_readable(tmp_path)[0] == 150


def test_where_the_newest_checkpoint_is_torn_the_one_before_is_taken(tmp_path):
    for iterations in (50, 100):
        write(tmp_path, iterations)
    model_path(tmp_path, 100).write_bytes(b"PK torn")
    assert newest_readable(tmp_path)[0] == 50
    model_path(tmp_path, 50).write_bytes(b"")
    with pytest.raises(StorageError, match="none of the 2"):
        newest_readable(tmp_path)


def test_a_state_of_another_number_of_ranks_or_a_damaged_one_is_none(tmp_path):
    write(tmp_path, 7, ranks=2)
    assert read_rank_state(tmp_path, iterations=7, rank=0, world_size=3) is None
    for content in ([1, 2], {"7": torch.zeros(3)}):
        torch.save(content, state_path(tmp_path, 7))
        assert read_rank_state(tmp_path, iterations=7, rank=0, world_size=1) is None
    state_path(tmp_path, 7).write_bytes(b"torn")
    assert read_rank_state(tmp_path, iterations=7, rank=0, world_size=1) is None
    state_path(tmp_path, 7).unlink()
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
    assert [learned["iter"] for learned, _ in found] == [100, 100]
    assert [rank_state["torch_rng"].tolist() for _, rank_state in found] == [[0, 0, 0], [1, 1, 1]]
    for view in views:
        torch.save({"0": torch.frombuffer(bytearray(packed({})), dtype=torch.uint8), "1": 7}, state_path(view, 100))
    found = [(learned["iter"], state) for learned, state in taken_up(*views)]
    assert found == [(100, None), (100, None)], "where one state is damaged all begin new episodes"
    model_path(views[0], 100).write_bytes(b"PK torn")
    assert [learned["iter"] for learned, _ in taken_up(views[0], views[0])] == [50, 50]


@pytest.mark.parametrize("name", ["model_100.pt", "state_100.pt"])
def test_a_rank_that_finds_another_content_ends_the_training_on_all_ranks(views, name):
    (views[1] / name).write_bytes(b"PK torn")
    for error in taken_up(*views):
        assert isinstance(error, ConfigError)
        assert f"{name} (rank 0: " in str(error)
    (views[1] / name).unlink()
    assert "rank 1: absent" in str(taken_up(*views)[1])


@pytest.mark.parametrize("name", ["model_100.pt", "state_100.pt"])
def test_a_file_that_one_rank_cannot_read_ends_the_training_and_no_older_one_is_taken(views, name):
    # Following it fails in the system, as reading a disk may.
    (views[1] / name).unlink()
    (views[1] / name).symlink_to("n" * 300)
    first, second = taken_up(*views)
    assert isinstance(first, PeerStoppedError)
    assert isinstance(second, StorageError)
    assert str(views[1] / name) in str(second)
    first, second = taken_up(*reversed(views))
    assert (type(first), type(second)) == (StorageError, PeerStoppedError)


def test_a_full_disk_leaves_the_checkpoint_before_and_is_named(tmp_path, monkeypatch):
    write(tmp_path, 50)
    write_a_part = os.write

    def torn(descriptor: int, content: memoryview) -> int:
        write_a_part(descriptor, content[:9])
        raise OSError(28, "No space left on device")

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
    with pytest.raises(ConfigError, match="no actor_state_dict and no iter"):
        read_learned(path)
    for content in (b"", b"PK\x03\x04 torn"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"model_1\.pt"):
            read_learned(path)


def job(success_rate: float | None, mean_return: float | None, mean_length: float | None) -> EvaluatedJob:
    return EvaluatedJob(episodes=10, success_rate=success_rate, mean_return=mean_return, mean_length=mean_length)


def score(success_rate: float, merit: float, iterations: int, evaluation: str = "jobs") -> Score:
    return Score(success_rate=success_rate, merit=merit, iterations=iterations, evaluation=evaluation)


LONG = score_of([job(None, 90.0, 100.0)], 1, evaluation="jobs")


@pytest.mark.parametrize(
    ("score", "other"),
    [
        (score_of([job(1.0, 9.5, 10.0)], 1, evaluation="jobs"), score_of([job(1.0, 10.6, 12.8)], 1, evaluation="jobs")),
        (score_of([job(0.9, 1.0, 100)], 1, evaluation="jobs"), score_of([job(0.8, 50.0, 100)], 1, evaluation="jobs")),
        (LONG, score_of([job(None, 50.0, 50.0)], 1, evaluation="jobs")),
        (score(0.9, 1.5, 1), score(0.9, 1.0, 1)),
    ],
    ids=["the quicker", "success before rewards", "rewards without success", "the better paid"],
)
def test_of_two_checkpoints_the_better_one_is_kept(tmp_path, score, other):
    model_path(tmp_path, 1).touch()
    assert keep_best(tmp_path, other)
    assert keep_best(tmp_path, score)
    assert not keep_best(tmp_path, score)


def test_jobs_count_alike_and_one_without_episodes_or_success_says_so():
    score = score_of([job(1.0, 10.0, 10.0), job(0.0, 5.0, 10.0)], 3, evaluation="jobs")
    assert score is not None
    assert (score.success_rate, score.merit, score.iterations) == (0.5, pytest.approx(0.75), 3)
    assert score == score_of([job(1.0, 10.0, 10.0), job(0.0, 5.0, 10.0), job(None, 90.0, 9.0)], 3, evaluation="jobs")
    assert score_of([job(None, None, None)], 1, evaluation="jobs") is None
    assert LONG is not None
    assert LONG.success_rate == -1


def test_the_best_checkpoint_outlives_newer_ones(tmp_path):
    model_path(tmp_path, 50).write_text("the fiftieth")
    assert keep_best(tmp_path, score(0.9, 1.0, 50))
    model_path(tmp_path, 50).unlink()
    assert not keep_best(tmp_path, score(0.8, 9.0, 100))
    assert (tmp_path / BEST_FILE).read_text() == "the fiftieth"
    assert best_score(tmp_path) == score(0.9, 1.0, 50)


def test_scores_of_unlike_evaluations_are_not_compared(tmp_path, caplog):
    model_path(tmp_path, 50).write_text("easy jobs")
    model_path(tmp_path, 100).write_text("hard jobs")
    assert keep_best(tmp_path, score(0.9, 1.0, 50, "easy"))
    assert keep_best(tmp_path, score(0.2, 1.0, 100, "hard"))
    assert (tmp_path / BEST_FILE).read_text() == "hard jobs"
    assert "other jobs" in caplog.text


@pytest.mark.parametrize("content", ["{", "[]", '{"success_rate": 1.0}'])
def test_a_damaged_score_is_as_good_as_none(tmp_path, caplog, content):
    (tmp_path / "model_best.json").write_text(content)
    assert best_score(tmp_path) is None
    assert "model_best.json" in caplog.text


# The evaluation of a checkpoint that training writes again is one of what is there now, and of nothing else.


STEP = 200
JOBS = {
    "jobs": [
        {
            "name": "pole",
            "arena_env_args": {"environment": "cartpole", "num_envs": 2},
            "policy_type": "rsl_rl",
            "policy_config_dict": {"checkpoint_path": "given by the training", "action_scaling": "within_bounds"},
            "num_episodes": 3,
        }
    ]
}


def weights(directory: Path, seed: int) -> Path:
    """Write the checkpoint of iteration 200, over the one that is there, and return it."""
    return closed_write_checkpoint(directory, num_inputs=5, num_actions=1, name=f"model_{STEP}.pt", seed=seed)


def evaluated(directory: Path, checkpoint: Path) -> list[tuple[float, int]]:
    """Evaluate a checkpoint as a training in a directory does; return each episode's return, and its attempt."""
    evaluation = ClosedLoopEvaluation(
        read_jobs(JOBS, source="jobs.json"),
        checkpoint_option="checkpoint_path",
        policy_type="rsl_rl",
        output_directory=directory,
        ranks=ranks_in_threads(1)[0],
        device="cpu",
    )
    assert evaluation.run(checkpoint, STEP) == 0
    assert evaluation.results(STEP)["pole"].episodes == 3
    assert evaluation.is_complete(STEP)
    episodes = merge_results(evaluation.directory(STEP)).episodes
    return list(zip(episodes["return"].tolist(), episodes["attempt"].tolist(), strict=True))


def cut_off(directory: Path) -> None:
    """Leave of an evaluation what there is when its processes are killed after one of its three episodes."""
    directory = directory / "evaluations" / f"step-{STEP}"
    record = directory / "pole" / "episode_results_rank0.jsonl"
    record.write_text("".join(record.read_text().splitlines(keepends=True)[:1]))
    (directory / "pole" / "job_report_rank0.json").unlink()
    for path in directory.iterdir():
        if path.suffix in {".csv", ".parquet"} or path.name == "results.json":
            path.unlink()


@pytest.fixture
def written(tmp_path) -> tuple[Path, list[tuple[float, int]]]:
    """A checkpoint that was evaluated, and its episodes."""
    checkpoint = weights(tmp_path / "training", seed=5)
    return checkpoint, evaluated(checkpoint.parent, checkpoint)


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_a_checkpoint_that_is_written_again_with_other_numbers_is_evaluated_anew(tmp_path, written, is_cut_off):
    checkpoint, first = written
    if is_cut_off:
        cut_off(checkpoint.parent)
    weights(checkpoint.parent, seed=6)
    second = evaluated(checkpoint.parent, checkpoint)
    other = evaluated(tmp_path / "other", checkpoint)
    assert [score for score, _ in second] == [score for score, _ in other]
    assert not {score for score, _ in first} & {score for score, _ in second}
    assert {attempt for _, attempt in second} == {2}
    directory = checkpoint.parent / "evaluations" / f"step-{STEP}"
    assert json.loads((directory / "results.json").read_text())["jobs"][0]["rerun"] == 1
    aside = directory / "pole" / "set_aside" / "attempt_1" / "episode_results_rank0.jsonl"
    assert len(aside.read_text().splitlines()) == (1 if is_cut_off else 3)


def test_a_checkpoint_that_is_written_again_with_the_same_numbers_keeps_its_episodes(tmp_path, written):
    checkpoint, first = written
    cut_off(checkpoint.parent)
    shutil.copy(checkpoint, tmp_path / "copy.pt")
    shutil.copy(tmp_path / "copy.pt", checkpoint)
    second = evaluated(checkpoint.parent, checkpoint)
    assert [score for score, _ in second] == [score for score, _ in first]
    assert sorted(attempt for _, attempt in second) == [1, 2, 2]


def test_a_motion_is_learned_from_anywhere_and_judged_from_its_beginning():
    config = read_training(merged(default_document(), task_document("track_motion")), task="track_motion", source="")
    (job,) = evaluation_jobs(config).jobs
    assert job.environment_args["start"] == "beginning"
    assert environment_job(config).environment_config.start == "anywhere"


def test_evaluation_meets_episodes_that_training_does_not():
    config = small_config("evaluation.num_episodes=7", "evaluation.num_envs=3")
    (job,) = evaluation_jobs(config).jobs
    assert (job.num_episodes, job.num_envs, job.seed) == (7, 3, 10_000)
    assert config.agent.seed == 42


def test_a_mistake_is_told_in_words_of_the_training():
    with pytest.raises(ConfigError, match=r"^env\.strat: .* 'start'"):
        environment_job(small_config("env.strat=hanging"))
    with pytest.raises(ConfigError, match=r"^environment: .* 'cartpol'"):
        environment_job(small_config("environment=cartpol"))

"""The evaluation of a checkpoint that training writes again is one of what is there now, and of nothing else."""

import json
import shutil
from pathlib import Path

import pytest

from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.training.training_loop import ClosedLoopEvaluation
from tests.distributed.threads import ranks_in_threads
from tests.policy.checkpoints import write_checkpoint

STEP = 200
JOBS = {
    "jobs": [
        {
            "name": "reach",
            "arena_env_args": {"environment": "reach", "num_envs": 2},
            "policy_type": "rsl_rl",
            "policy_config_dict": {"checkpoint_path": "given by the training", "action_scaling": "within_bounds"},
            "num_episodes": 3,
        }
    ]
}


def weights(directory: Path, seed: int) -> Path:
    """Write the checkpoint of iteration 200, over the one that is there, and return it."""
    return write_checkpoint(directory, num_inputs=26, num_actions=8, name=f"model_{STEP}.pt", seed=seed)


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
    found = evaluation.run(checkpoint, STEP)
    assert (found.exit_code, found.jobs["reach"].episodes) == (0, 3)
    assert evaluation.is_complete(STEP)
    episodes = merge_results(evaluation.directory(STEP)).episodes
    return list(zip(episodes["return"].tolist(), episodes["attempt"].tolist(), strict=True))


def cut_off(directory: Path) -> None:
    """Leave of an evaluation what there is when its processes are killed after one of its three episodes."""
    directory = directory / "evaluations" / f"step-{STEP}"
    record = directory / "reach" / "episode_results_rank0.jsonl"
    record.write_text("".join(record.read_text().splitlines(keepends=True)[:1]))
    (directory / "reach" / "job_report_rank0.json").unlink()
    for path in directory.iterdir():
        if path.suffix in {".csv", ".parquet"} or path.name == "results.json":
            path.unlink()


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_a_checkpoint_that_is_written_again_with_other_numbers_is_evaluated_anew(tmp_path, is_cut_off):
    first = evaluated(tmp_path / "training", weights(tmp_path / "training", seed=5))
    if is_cut_off:
        cut_off(tmp_path / "training")
    second = evaluated(tmp_path / "training", weights(tmp_path / "training", seed=6))
    other = evaluated(tmp_path / "other", tmp_path / "training" / f"model_{STEP}.pt")
    assert [score for score, _ in second] == [score for score, _ in other]
    assert not {score for score, _ in first} & {score for score, _ in second}
    assert {attempt for _, attempt in second} == {2}
    directory = tmp_path / "training" / "evaluations" / f"step-{STEP}"
    [job] = json.loads((directory / "results.json").read_text())["jobs"]
    assert job["rerun"] == 1
    aside = directory / "reach" / "set_aside" / "attempt_1" / "episode_results_rank0.jsonl"
    assert len(aside.read_text().splitlines()) == (1 if is_cut_off else 3)


def test_a_checkpoint_that_is_written_again_with_the_same_numbers_keeps_its_episodes(tmp_path):
    checkpoint = weights(tmp_path / "training", seed=5)
    first = evaluated(tmp_path / "training", checkpoint)
    cut_off(tmp_path / "training")
    shutil.copy(checkpoint, tmp_path / "copy.pt")
    shutil.copy(tmp_path / "copy.pt", checkpoint)
    second = evaluated(tmp_path / "training", checkpoint)
    assert [score for score, _ in second] == [score for score, _ in first]
    assert sorted(attempt for _, attempt in second) == [1, 2, 2]

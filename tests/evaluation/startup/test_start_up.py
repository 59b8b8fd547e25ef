from concurrent.futures import ThreadPoolExecutor

import pytest

from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.eval_runner import asked_for
from isaaclab_arena.evaluation.planning import RunRequest
from isaaclab_arena.evaluation.start_up import agree_on_contents, agree_on_versions, start_run
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.disk import clear_unbegun, holds_no_run
from tests.distributed.threads import ranks_in_threads
from tests.end_to_end.launching import write_jobs

JOB = {"name": "c", "arena_env_args": {"environment": "cartpole"}, "policy_type": "zero_action"}


def agree(*versions: dict[str, str]) -> None:
    with ThreadPoolExecutor() as threads:
        for verdict in threads.map(agree_on_versions, ranks_in_threads(len(versions)), versions):
            assert verdict is None


def test_ranks_with_the_same_packages_agree():
    agree({"mujoco": "4.0.0", "torch": "2.13.0"}, {"torch": "2.13.0", "mujoco": "4.0.0"})


@pytest.mark.parametrize("other", [{"mujoco": "4.0.1"}, {}])
def test_a_rank_with_another_version_is_named(other):
    with pytest.raises(ConfigError, match=r"do not agree on the version of mujoco \(rank 0: 4\.0\.0, rank 1: "):
        agree({"mujoco": "4.0.0"}, other)


def refusal_of(requests: list[RunRequest]) -> str:
    def refusal(request: RunRequest, ranks: Ranks) -> str:
        with pytest.raises(ConfigError) as refused:
            start_run(request, ranks)
        return str(refused.value)

    with ThreadPoolExecutor() as threads:
        told = set(threads.map(refusal, requests, ranks_in_threads(2)))
    assert len(told) == 1
    return told.pop()


OPTIONS = (("--assignment", "split"), ("--no_dataset",), ("--policy_device", "cpu"), ("--max_equal_errors", "5"))


@pytest.mark.parametrize("option", OPTIONS)
def test_ranks_that_act_on_other_options_are_refused_before_the_run_has_a_directory(option, tmp_path):
    write_jobs(tmp_path / "jobs.json", [JOB])
    typed = ["--eval_jobs_config", str(tmp_path / "jobs.json"), "--output_dir", str(tmp_path / "out"), "--num_steps=1"]
    requests = [asked_for([*typed, *more], may_import=True) for more in ((), option)]
    assert refusal_of(requests).startswith(f"the ranks do not agree on {option[0]} (rank 0: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("limit", ["timeout_s", "episode_timeout_s"])
def test_ranks_that_end_a_job_or_an_episode_after_other_times_are_refused(limit, tmp_path):
    requests = []
    for number, limits in enumerate(({}, {limit: 60.0})):
        write_jobs(tmp_path / f"jobs{number}.json", [JOB | limits])
        typed = ["--eval_jobs_config", str(tmp_path / f"jobs{number}.json"), "--output_dir", str(tmp_path / "out")]
        requests.append(asked_for([*typed, "--num_steps=1"], may_import=True))
    assert refusal_of(requests).startswith("the ranks do not agree on time limits of jobs (rank 0: ")


def agree_on(*contents: dict[str, Contents]) -> None:
    with ThreadPoolExecutor() as threads:
        list(threads.map(agree_on_contents, ranks_in_threads(len(contents)), contents))


def test_machines_with_the_same_files_agree_and_ranks_that_did_not_look_are_not_asked():
    held = {"lift": Contents(policy={"checkpoint_path model_300.pt": "1" * 64}, checkpoint="here/model_300.pt")}
    elsewhere = {"lift": Contents(policy={"checkpoint_path model_300.pt": "1" * 64}, checkpoint="there/model_300.pt")}
    agree_on(held, {}, elsewhere)
    agree_on({}, {})


def test_a_machine_with_another_checkpoint_is_named_with_what_differs():
    held = {"lift": Contents(policy={"checkpoint_path model_300.pt": "1" * 64})}
    other = {"lift": Contents(policy={"checkpoint_path model_300.pt": "2" * 64})}
    with pytest.raises(ConfigError) as refused:
        agree_on(held, {}, other)
    (problem,) = map(str, refused.value.problems)
    assert problem.startswith("rank 2 is on a node with other files than rank 0: job 'lift': checkpoint_path")
    assert "was 111111111111, is now 222222222222 here" in problem


def test_a_directory_in_which_ranks_only_looked_for_each_other_is_empty(tmp_path):
    (tmp_path / ".seen_by_all.4711.tmp").touch()
    assert holds_no_run(tmp_path)
    clear_unbegun(tmp_path)
    assert list(tmp_path.iterdir()) == []

"""A run from its options to its end."""

import shlex
import shutil
from pathlib import Path
from typing import ClassVar

import pandas as pd
import pytest

from isaaclab_arena.cli.main import main as command
from isaaclab_arena.distributed.context import RUN_DIRECTORY_FILE, DistributedContext
from isaaclab_arena.errors import PolicyLostError
from isaaclab_arena.evaluation.eval_runner import main
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.run import how_to_go_on
from isaaclab_arena.storage.episodes import list_episodes
from tests.end_to_end.launching import write_jobs
from tests.evaluation.jobs import coin_job, execute, request_of
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment, ShrugPolicy

CONTEXT = DistributedContext.from_environment(device="cpu", visible_gpus=0)


class MendedBuilder(CoinBuilder):
    """Builds what the configuration asks for; once it is mended, without what makes it diverge."""

    is_mended = False

    def build(self, config, *, num_envs, device, num_threads):
        return CoinEnvironment(CoinConfig() if self.is_mended else config, num_envs)


def run(job: Job | tuple[Job, ...], output_directory, **options) -> int:
    jobs = job if isinstance(job, tuple) else (job,)
    return execute(request_of(*jobs, output_dir=str(output_directory), **options), CONTEXT)


def table(output_directory) -> dict:
    (job,) = pd.read_csv(output_directory / "results.csv").dropna(axis="columns").to_dict("records")
    return job


def came_out(output_directory) -> list[dict]:
    episodes = pd.read_csv(output_directory / "episodes.csv")
    return episodes.filter(["outcome", "length", "return", "checksum"]).to_dict("records")


@pytest.mark.parametrize("assignment", ["round_robin", pytest.param("dynamic", marks=pytest.mark.slow)])
def test_a_job_whose_recordings_vanish_while_it_runs_fails_and_a_resume_runs_those_episodes_again(tmp_path, assignment):
    class Losing(ShrugPolicy):
        """Removes, once, what has been recorded so far, as a clean-up script may."""

        has_lost: ClassVar[set[str]] = set()

        def get_action(self, env, observation):
            recorded = list((tmp_path / "coins" / "episodes").glob("*.h5"))
            if len(recorded) > 2 and not self.has_lost:
                self.has_lost.update(path.name for path in recorded)
                shutil.rmtree(tmp_path / "coins" / "episodes")
            return super().get_action(env, observation)

    job = coin_job(policy_class=Losing)
    assert run(job, tmp_path, assignment=assignment) == 1
    failed = table(tmp_path)
    number = len(Losing.has_lost)
    assert failed["status"] == "failed"
    assert f"recordings of {number} episodes" in failed["error"]
    assert run(job, tmp_path, assignment=assignment, resume="") == 0
    assert table(tmp_path)["status"] == "completed"
    assert list_episodes(tmp_path / "coins" / "dataset_coins.hdf5") == list(range(10))


def test_errors_stay_as_they_are_until_they_are_asked_to_run_again(tmp_path, capsys):
    breaking = CoinConfig(diverge_every=3)
    mended = coin_job(environment=breaking, builder=MendedBuilder())
    assert run(mended, tmp_path) == 0
    before = table(tmp_path)
    assert before["errors"] > 0

    mended.builder.is_mended = True  # pyright: ignore[reportAttributeAccessIssue]  it is the one made above
    assert run(mended, tmp_path, resume="") == 0
    assert table(tmp_path) == before

    capsys.readouterr()
    assert run(mended, tmp_path, resume="", retry_errors=True) == 0
    after = table(tmp_path)
    assert (after["errors"], after["retried"], after["episodes"]) == (0, before["errors"], before["episodes"])
    assert f"{before['errors']} episodes count that ended in an error" in capsys.readouterr().out

    undisturbed = tmp_path / "undisturbed"
    assert run(coin_job(environment=CoinConfig()), undisturbed) == 0
    assert came_out(tmp_path) == came_out(undisturbed)


@pytest.mark.parametrize("assignment", [pytest.param("split", marks=pytest.mark.slow), "dynamic"])
def test_a_job_ends_after_equal_errors_in_a_row_until_these_are_to_run_again(tmp_path, capsys, assignment):
    """Another start without that plays nothing more of it; what follows it runs as ever."""
    broken = coin_job("broken", environment=CoinConfig(diverge_every=1), builder=MendedBuilder(), num_episodes=12)
    jobs = (broken, coin_job("sound", index=1))
    assert run(jobs, tmp_path, assignment=assignment, max_equal_errors=5) == 1
    first = pd.read_csv(tmp_path / "results.csv").set_index("name").loc["broken"]
    assert (first["status"], 5 <= first["episodes"] <= 8) == ("failed", True)
    assert str(first["error"]).startswith("5 episodes in a row")
    assert "resume with --retry_errors runs them again" in capsys.readouterr().out

    assert run(jobs, tmp_path, assignment=assignment, max_equal_errors=5, resume="") == 1
    again = pd.read_csv(tmp_path / "results.csv").set_index("name")
    assert again.loc["broken", "episodes"] == first["episodes"]
    assert again.loc["sound", "status"] == "completed"

    broken.builder.is_mended = True  # pyright: ignore[reportAttributeAccessIssue]  it is the one made above
    assert run(jobs, tmp_path, assignment=assignment, resume="", retry_errors=True) == 0
    mended = pd.read_csv(tmp_path / "results.csv").set_index("name").loc["broken"]
    assert (mended["status"], mended["episodes"], mended["errors"]) == ("completed", 12, 0)


@pytest.mark.parametrize(("fail_fast", "statuses"), [(False, ["failed", "completed"]), (True, ["failed", "missing"])])
def test_a_job_of_nothing_but_errors_fails_and_may_be_the_last(tmp_path, fail_fast, statuses):
    broken = coin_job("broken", environment=CoinConfig(diverge_every=1))
    assert run((broken, coin_job("sound", index=1)), tmp_path, fail_fast=fail_fast) == 1
    jobs = pd.read_csv(tmp_path / "results.csv")
    assert list(jobs["status"]) == statuses
    assert str(jobs["error"].iloc[0]).startswith("all 10 episodes")
    # Once more, nothing is left to do, and it has failed all the same.
    assert run((broken, coin_job("sound", index=1)), tmp_path, resume="", fail_fast=fail_fast) == 1


class Served(ShrugPolicy):
    """Asks a server that dies at the 15th question, unless there is one again."""

    server_dies: ClassVar[bool] = True

    def get_action(self, env, observation):
        if self.server_dies and self.num_calls == 14:
            raise PolicyLostError("no server answers")
        return super().get_action(env, observation)


@pytest.mark.parametrize("assignment", ["round_robin", pytest.param("dynamic", marks=pytest.mark.slow)])
def test_episodes_that_lost_their_policy_are_errors_and_run_again_when_that_is_asked_for(
    tmp_path, monkeypatch, assignment
):
    served = coin_job(policy_class=Served, num_envs=2)
    assert run(served, tmp_path, assignment=assignment) == 1
    cut = table(tmp_path)
    assert (cut["status"], cut["errors"]) == ("failed", 2)
    assert cut["error"] == "PolicyLostError: no server answers"
    assert cut["episodes"] + cut["missing"] == cut["planned"]

    monkeypatch.setattr(Served, "server_dies", False)
    assert run(served, tmp_path, assignment=assignment, resume="") == 0
    rest = table(tmp_path)
    assert (rest["status"], rest["episodes"], rest["errors"], rest["missing"]) == ("completed", 10, 2, 0)

    assert run(served, tmp_path, assignment=assignment, resume="", retry_errors=True) == 0
    assert (table(tmp_path)["errors"], table(tmp_path)["retried"]) == (0, 2)
    undisturbed = tmp_path / "undisturbed"
    assert run(served, undisturbed, assignment=assignment) == 0
    assert came_out(tmp_path) == came_out(undisturbed)


RESUME = "continue with: isaaclab-arena resume 'my out'"
SAME_COMMAND = "continue with the same command and --resume 'my out'"
TORCHRUN = {"launched_by_torchrun": True, "world_size": 2, "local_world_size": 2}


@pytest.mark.parametrize(
    ("typed", "variables", "ranks", "told"),
    [
        (("eval_runner",), (), {}, RESUME),
        (("eval_runner",), ("RANK", RUN_DIRECTORY_FILE), {}, RESUME),
        (("eval_runner",), ("RANK",), TORCHRUN, RESUME),
        (("eval_runner",), ("RANK",), {**TORCHRUN, "world_size": 4}, SAME_COMMAND),
        (("eval_runner",), ("RANK",), {}, SAME_COMMAND),
        ((), (), {}, "continue with --resume 'my out'"),
    ],
    ids=["one process", "launcher of its own", "torchrun", "torchrun on nodes", "scheduler", "called from Python"],
)
def test_the_line_after_an_incomplete_run_says_what_resumes_it(typed, variables, ranks, told, monkeypatch):
    for name in variables:
        monkeypatch.setenv(name, "0")
    context = DistributedContext(**ranks)
    assert how_to_go_on(request_of(command_line=typed), Path.cwd() / "my out", context) == told


def test_what_resumes_a_run_is_no_option_and_still_tries_errors_again():
    request = request_of(command_line=("eval_runner",), retry_errors=True)
    line = how_to_go_on(request, Path.cwd() / "-out", DistributedContext())
    assert line == "continue with: isaaclab-arena resume ./-out --retry_errors"


def test_the_command_after_the_table_of_an_incomplete_run_resumes_it(tmp_path, monkeypatch, capsys):
    environment = {"arena_env_args": {"environment": "reach"}, "num_episodes": 1}
    shy = {"policy_type": "tests.fakes.ShrugPolicy", "policy_config_dict": {"raise_at": 3}}
    write_jobs(tmp_path / "my jobs.json", [{"name": "shy", **environment, **shy}])
    monkeypatch.chdir(tmp_path)
    assert main(["--eval_jobs_config", "my jobs.json", "--output_dir", "out"]) == 1
    last_line = capsys.readouterr().out.splitlines()[-1]
    told, _, line = last_line.partition(": ")
    assert told == "continue with"
    words = shlex.split(line)
    assert words[0] == "isaaclab-arena"
    for _ in range(2):
        assert command(words[1:]) == 1
        assert capsys.readouterr().out.splitlines()[-1] == last_line
    assert sorted(path.name for path in (tmp_path / "out" / "attempts").glob("attempt_*.json")) == [
        "attempt_1.json",
        "attempt_2.json",
        "attempt_3.json",
    ]

"""A run goes on with more episodes, other env slots or a mended policy where what it has stays what it is."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.planning import RunRequest
from isaaclab_arena.evaluation.run import execute
from isaaclab_arena.interfaces.policy import PolicyCfg
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena.storage.layout import SETTLED_FILE
from isaaclab_arena.storage.ledger import read_attempts, read_commits, read_plan_copy, read_run_plan
from isaaclab_arena.storage.reports import Reproducible, read_job_reports, write_job_report
from tests.evaluation.jobs import coin_job
from tests.fakes import ShrugPolicy

CONTEXT = DistributedContext.from_environment(device="cpu", visible_gpus=0)


class SurePolicy(ShrugPolicy):
    """Does the same in every env slot, whatever the others hold."""

    traits = PolicyTraits(reproducible=True, batch_invariant=True)


class NetworkPolicy(ShrugPolicy):
    """Promises that its actions follow from what it sees, which a probe on each size of batch has to show."""

    traits = PolicyTraits(reproducible=True)


@dataclass(frozen=True)
class FileCfg(PolicyCfg):
    words_path: str


class FilePolicy(SurePolicy):
    """Acts unless its file says otherwise."""

    config_class = FileCfg

    def get_action(self, env, observation):
        if "broken" in Path(self.config.words_path).read_text():  # pyright: ignore[reportAttributeAccessIssue]
            raise ValueError("the words are broken")
        options = self.config
        self.config = None  # pyright: ignore[reportAttributeAccessIssue]
        action = super().get_action(env, observation)
        self.config = options
        return action


def sure(num_episodes: int = 4, policy_class: type[ShrugPolicy] = SurePolicy, **changes) -> Job:
    return coin_job(policy_class=policy_class, num_episodes=num_episodes, **changes)


def run(output_directory: Path, *jobs: Job, typed: tuple[str, ...] = ("run",), **options) -> int:
    request = RunRequest(
        jobs=jobs,
        config_hash=f"hash of {[job.config.num_episodes for job in jobs]}",
        source_file=None,
        command_line=typed,
        options=RunOptions(output_dir=str(output_directory), **options),
    )
    return execute(request, CONTEXT)


def refused(output_directory: Path, *jobs: Job) -> str:
    with pytest.raises(ConfigError) as error:
        run(output_directory, *jobs, resume="")
    return str(error.value)


def episodes_of(output_directory: Path) -> list[dict]:
    columns = [
        "job",
        "episode_index",
        "outcome",
        "length",
        "return",
        "checksum",
        "episode_seed",
        "saturated_action_share",
    ]
    return pd.read_csv(output_directory / "episodes.csv").filter(columns).astype(object).fillna("").to_dict("records")


def missing(output_directory: Path) -> list[int]:
    return pd.read_csv(output_directory / "results.csv")["missing"].tolist()


@pytest.mark.parametrize("assignment", ["round_robin", "dynamic"])
def test_a_run_with_more_episodes_ends_as_one_that_had_them_from_the_start(tmp_path, assignment):
    assert run(tmp_path / "whole", sure(11), assignment=assignment) == 0
    assert run(tmp_path / "out", sure(4), assignment=assignment) == 0
    assert run(tmp_path / "out", sure(11), assignment=assignment, resume="", typed=("run", "more")) == 0
    assert episodes_of(tmp_path / "out") == episodes_of(tmp_path / "whole")
    attempts = {line.attempt for line in read_commits(tmp_path / "out/coins", "coins").lines[:4]}
    assert attempts == {1}, "an episode that had finished ran again"
    _, second = read_attempts(tmp_path / "out")[0]
    assert [(work.finished, work.num_episodes) for work in second.jobs] == [(((0, 4),), 11)]
    for plan in (read_run_plan(tmp_path / "out"), read_plan_copy(tmp_path / "out")):
        assert plan.jobs[0].config.num_episodes == 11
        assert plan.command_line == ("run", "more")
        assert plan.config_hash == "hash of [4]"
    assert run(tmp_path / "out", sure(11), assignment=assignment, resume="") == 0
    assert len(read_attempts(tmp_path / "out")[0]) == 2


def test_an_extension_that_is_interrupted_goes_on(tmp_path):
    assert run(tmp_path, sure(4)) == 0
    assert run(tmp_path, sure(11), resume="") == 0
    (commits,) = (path for path in (tmp_path / "coins").glob("*.jsonl") if "life1" in path.name)
    commits.write_text("".join(commits.read_text().splitlines(keepends=True)[:3]))
    next((tmp_path / "coins").glob("job_report_rank0_life1.json")).unlink()
    assert run(tmp_path, sure(11), resume="") == 0
    assert [episode["episode_index"] for episode in episodes_of(tmp_path)] == list(range(11))
    assert missing(tmp_path) == [0]


def test_a_run_may_not_shrink_nor_be_divided_otherwise(tmp_path):
    assert run(tmp_path / "whole", sure(6)) == 0
    assert "job 'coins': num_episodes: was 6 when the run began, now 4; a run may grow, and not shrink" in refused(
        tmp_path / "whole", sure(4)
    )
    assert run(tmp_path / "rebuilt", sure(6, num_rebuilds=2)) == 0
    assert "more of them would be other rebuilds" in refused(tmp_path / "rebuilt", sure(8, num_rebuilds=2))


def interrupted(output_directory: Path, *jobs: Job, keep: int = 2) -> None:
    """Leave what a run leaves that is killed when it has committed some episodes."""
    run(output_directory, *jobs, no_dataset=True)
    for job in jobs:
        directory = output_directory / job.config.name
        (commits,) = directory.glob("episode_results_*.jsonl")
        commits.write_text("".join(commits.read_text().splitlines(keepends=True)[:keep]))
        next(directory.glob("job_report_*.json")).unlink()


@pytest.mark.parametrize("policy_class", [SurePolicy, NetworkPolicy])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_job_that_is_bitwise_goes_on_with_another_number_of_env_slots(tmp_path, policy_class, num_envs):
    assert run(tmp_path / "whole", sure(9, policy_class), no_dataset=True) == 0
    interrupted(tmp_path / "out", sure(9, policy_class))
    assert run(tmp_path / "out", sure(9, policy_class, num_envs=num_envs), resume="", no_dataset=True) == 0
    assert episodes_of(tmp_path / "out") == episodes_of(tmp_path / "whole")
    assert pd.read_csv(tmp_path / "out/results.csv")["reproducible"].tolist() == ["bitwise"]
    assert read_run_plan(tmp_path / "out").jobs[0].config.num_envs == 4


def test_a_job_that_is_reproducible_as_plan_alone_says_why_it_does_not(tmp_path):
    plain = sure(9, ShrugPolicy)
    assert run(tmp_path / "whole", plain, no_dataset=True) == 0
    said = "the policy does not say that it is reproducible"
    told = refused(tmp_path / "whole", sure(9, ShrugPolicy, num_envs=2))
    assert "num_envs: was 4 when the run began, now 2, and its episodes are reproducible as plan" in told
    assert said in told
    # No report has said it, so it is known once the job is built.
    interrupted(tmp_path / "out", plain)
    assert run(tmp_path / "out", sure(9, ShrugPolicy, num_envs=2), resume="", no_dataset=True) == 1
    (error,) = pd.read_csv(tmp_path / "out/results.csv")["error"]
    assert "cannot go on with num_envs 2: its episodes were played with 4" in error
    assert said in error
    assert run(tmp_path / "out", plain, resume="", no_dataset=True) == 0


@pytest.mark.parametrize(("rank", "attempt"), [(1, 1), (0, 2)])
def test_what_one_rank_has_said_of_a_job_is_not_forgotten_for_what_another_says(tmp_path, rank, attempt):
    assert run(tmp_path, sure(9, ShrugPolicy), no_dataset=True) == 0
    (only,), _ = read_job_reports(tmp_path / "coins", "coins")
    write_job_report(tmp_path / "coins", replace(only, rank=rank, attempt=attempt, reproducible=Reproducible.BITWISE))
    assert "its episodes are reproducible as plan" in refused(tmp_path, sure(9, ShrugPolicy, num_envs=2))


def test_more_env_slots_than_a_policy_is_asked_on_are_refused(tmp_path):
    interrupted(tmp_path, sure(9, NetworkPolicy))
    assert run(tmp_path, sure(9, NetworkPolicy, num_envs=8), resume="", no_dataset=True) == 1
    (error,) = pd.read_csv(tmp_path / "results.csv")["error"]
    assert "the policy was asked on 4 rows before, and now there are 8" in error


def words(directory: Path, said: str, **changes) -> Job:
    (directory / "words.txt").write_text(said)
    job = coin_job(policy_class=FilePolicy, **changes)
    options = {"words_path": str(directory / "words.txt")}
    return replace(job, config=replace(job.config, policy_config_dict=options), policy_options=options)


def test_a_job_that_has_recorded_nothing_goes_on_with_a_mended_policy(tmp_path):
    assert run(tmp_path / "out", words(tmp_path, "broken"), sure(4, name="other", index=1)) == 1
    assert read_commits(tmp_path / "out/coins", "coins").lines == ()
    assert run(tmp_path / "out", words(tmp_path, "mended"), sure(4, name="other", index=1), resume="") == 0
    assert missing(tmp_path / "out") == [0, 0]
    assert pd.read_csv(tmp_path / "out/results.csv")["rerun"].tolist() == [0, 0]
    told = refused(tmp_path / "out", words(tmp_path, "other words"), sure(4, name="other", index=1))
    assert "evaluates something else than when its episodes ran (job 'coins')" in told


def test_a_job_that_has_recorded_nothing_may_have_another_policy_and_other_env_slots(tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    assert run(tmp_path / "out", words(tmp_path, "broken", num_envs=6)) == 1
    (tmp_path / "out/coins" / SETTLED_FILE).write_text('{"policy_batch": 8, "schema_version": 1}')
    assert run(tmp_path / "out", coin_job(policy_class=NetworkPolicy, num_envs=2), resume="") == 0
    entry = read_run_plan(tmp_path / "out").jobs[0]
    assert (entry.config.policy_type, entry.config.num_envs, entry.config.policy_config_dict) == (
        "NetworkPolicy",
        2,
        {},
    )
    assert pd.read_csv(tmp_path / "out/results.csv")["policy"].tolist() == ["NetworkPolicy"]
    assert '"policy_batch": 2' in (tmp_path / "out/coins" / SETTLED_FILE).read_text()
    told = refused(tmp_path / "out", coin_job(policy_class=SurePolicy, num_envs=2))
    assert 'policy_type: was "NetworkPolicy" when the run began, now "SurePolicy"' in told

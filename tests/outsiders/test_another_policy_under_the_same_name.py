"""A checkpoint or a class that is another one when a run goes on: its episodes never count with the first one's."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import h5py
import pandas as pd
import pytest

from isaaclab_arena import ConfigError, PolicyLostError
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.plan.planning import RunRequest
from isaaclab_arena.evaluation.run import execute
from isaaclab_arena.policies import resolve_policy_class
from isaaclab_arena.results import merge_results
from isaaclab_arena.storage.contents import UNKNOWN
from isaaclab_arena.storage.recovery import set_aside
from isaaclab_arena.storage.run.attempts import read_attempts
from isaaclab_arena.storage.run.run_plan import read_run_plan
from tests.evaluation.jobs import coin_job
from tests.fakes import ShrugCfg, ShrugPolicy

CONTEXT = DistributedContext.from_environment(device="cpu", visible_gpus=0)
EPISODES = 8


@dataclasses.dataclass(frozen=True)
class WeighedCfg(ShrugCfg):
    """Options of `Weighed`."""

    checkpoint_path: str = ""


class Weighed(ShrugPolicy):
    """Has a checkpoint, and its network breaks down after some questions, if it is told to."""

    config_class: ClassVar[type | None] = WeighedCfg
    breaks_after: ClassVar[int | None] = None

    def get_action(self, env, observation):
        if self.num_calls == self.breaks_after:
            raise PolicyLostError("it broke down")
        return super().get_action(env, observation)


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    path = tmp_path / "model_300.pt"
    path.write_bytes(b"the first weights")
    return path


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


def job(checkpoint: Path, name: str = "coins", **config: Any) -> Job:
    made = coin_job(name, policy_class=Weighed, num_envs=2, num_episodes=EPISODES, **config)
    return dataclasses.replace(made, policy_options={"checkpoint_path": str(checkpoint)})


def run(out: Path, *jobs: Job, **options: Any) -> int:
    request = RunRequest(
        jobs=jobs,
        config_hash="abc",
        source_file=None,
        command_line=(),
        options=RunOptions(output_dir=str(out), **{"no_dataset": True, **options}),
    )
    return execute(request, CONTEXT)


def run_half(monkeypatch, out: Path, *jobs: Job, **options: Any) -> int:
    """Run until the policy breaks down; return how many episodes have finished, beside those that are errors."""
    with monkeypatch.context() as patched:
        patched.setattr(Weighed, "breaks_after", 30)
        assert run(out, *jobs, **options) == 1
    return sum(outcome != "error" for outcome in merge_results(out).episodes["outcome"].tolist())


def jobs_of(out: Path) -> list[dict[str, Any]]:
    return pd.read_parquet(out / "results.parquet").to_dict("records")


def attempts_of_episodes(out: Path) -> list[int]:
    return merge_results(out).episodes["attempt"].tolist()


def refusal(out: Path, *jobs: Job, **options: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        run(out, *jobs, resume="", **options)
    return "\n".join(map(str, refused.value.problems))


def test_a_checkpoint_that_is_another_one_when_a_run_goes_on_is_refused_with_both_hashes_and_the_ways_out(
    monkeypatch, out, checkpoint
):
    assert run_half(monkeypatch, out, job(checkpoint)) > 0
    before = read_run_plan(out).jobs[0].contents
    checkpoint.write_bytes(b"other weights")
    told = refusal(out, job(checkpoint))
    assert before is not None
    assert f"was {before.policy['checkpoint_path model_300.pt'][:12]}, is now " in told
    assert "job 'coins': checkpoint_path model_300.pt" in told
    assert "another directory" in told
    assert "--resume --rerun coins" in told


def test_a_complete_run_does_not_pass_for_one_of_another_checkpoint(out, checkpoint):
    run(out, job(checkpoint))
    checkpoint.write_bytes(b"other weights")
    assert "checkpoint_path" in refusal(out, job(checkpoint))


def test_the_same_checkpoint_that_was_only_touched_or_copied_goes_on(monkeypatch, out, checkpoint):
    run_half(monkeypatch, out, job(checkpoint))
    content = checkpoint.read_bytes()
    checkpoint.unlink()
    checkpoint.write_bytes(content)
    assert run(out, job(checkpoint), resume="") == 0
    assert set(attempts_of_episodes(out)) == {1, 2}
    assert [job["rerun"] for job in jobs_of(out)] == [0]


def test_a_job_that_runs_anew_counts_none_of_its_old_episodes_and_loses_none(monkeypatch, out, checkpoint):
    finished = run_half(monkeypatch, out, job(checkpoint), job(checkpoint, "others", index=1), no_dataset=False)
    assert finished > 0
    checkpoint.write_bytes(b"other weights")
    jobs = job(checkpoint), job(checkpoint, "others", index=1)
    told = refusal(out, *jobs, rerun=("coins",), no_dataset=False)
    assert "job 'others'" in told
    assert "job 'coins'" not in told
    (out / "coins" / "settled.json").write_text("what the first network was measured to need")
    assert run(out, *jobs, resume="", rerun=("coins", "others"), no_dataset=False) == 0
    assert attempts_of_episodes(out) == [2] * 2 * EPISODES
    first, _ = jobs_of(out)
    assert (first["rerun"], first["retried"], first["episodes"], first["status"]) == (1, 0, EPISODES, "completed")
    aside = [path.name for path in (out / "coins" / "set_aside" / "attempt_1").iterdir()]
    assert {"episode_results_rank0.jsonl", "settled.json"} <= {*aside}
    assert any(name.endswith(".h5") for name in aside)


def test_the_same_command_may_be_given_again_and_goes_on_with_what_it_has_begun(monkeypatch, out, checkpoint):
    run_half(monkeypatch, out, job(checkpoint))
    checkpoint.write_bytes(b"other weights")
    anew = run_half(monkeypatch, out, job(checkpoint), resume="", rerun=("coins",))
    assert 0 < anew < EPISODES
    assert run(out, job(checkpoint), resume="", rerun=("coins",)) == 0
    assert set(attempts_of_episodes(out)) == {2, 3}
    assert jobs_of(out)[0]["rerun"] == 1
    # And without the option too: what counts now is what the newest attempt evaluated.
    assert run(out, job(checkpoint), resume="") == 0
    checkpoint.write_bytes(b"the first weights")
    assert "checkpoint_path" in refusal(out, job(checkpoint))


@pytest.mark.parametrize("moves", range(4))
def test_a_kill_while_episodes_are_set_aside_mixes_nothing(monkeypatch, out, checkpoint, moves):
    class Killed(BaseException):
        pass

    run_half(monkeypatch, out, job(checkpoint), no_dataset=False)
    first = checkpoint.read_bytes()
    checkpoint.write_bytes(b"other weights")
    real, done = Path.rename, []

    def rename(self, target):
        if len(done) == moves:
            raise Killed
        done.append(target)
        return real(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            run(out, job(checkpoint), resume="", rerun=("coins",), no_dataset=False)
    if moves % 2:
        # Half of them may go on as what they were.
        checkpoint.write_bytes(first)
        assert run(out, job(checkpoint), resume="", no_dataset=False, retry_errors=True) == 0
        assert set(attempts_of_episodes(out)) <= {1, 2}
        return
    assert "checkpoint_path" in refusal(out, job(checkpoint), no_dataset=False)
    assert run(out, job(checkpoint), resume="", rerun=("coins",), no_dataset=False) == 0
    assert attempts_of_episodes(out) == [2] * EPISODES


def test_what_runs_anew_has_to_be_a_job(out, checkpoint):
    run(out, job(checkpoint))
    assert "--rerun: there is no job 'coin'; did you mean 'coins'?" in refusal(out, job(checkpoint), rerun=("coin",))


def test_running_anew_takes_a_run_to_go_on_with(out):
    with pytest.raises(ConfigError, match=r"--rerun: needs --resume"):
        RunOptions(output_dir=str(out), rerun=("coins",)).check()


def test_a_run_that_did_not_write_down_what_it_evaluated_goes_on_and_says_so(monkeypatch, out, checkpoint, caplog):
    run_half(monkeypatch, out, job(checkpoint))
    for path in (out / "run.json", out / "attempts" / "attempt_1.json"):
        document = json.loads(path.read_text())
        for each in document["jobs"]:
            del each["contents"]
            each.pop("is_rerun", None)
        path.write_text(json.dumps(document))
    checkpoint.write_bytes(b"other weights")
    assert merge_results(out).jobs["policy_sha256"].tolist() == [UNKNOWN]
    assert run(out, job(checkpoint), resume="") == 0
    assert "cannot be checked" in caplog.text


def test_the_run_its_attempts_its_recordings_and_its_tables_say_what_was_evaluated(out, checkpoint):
    run(out, job(checkpoint), no_dataset=False)
    contents = read_run_plan(out).jobs[0].contents
    assert contents is not None
    assert len(contents.policy["checkpoint_path model_300.pt"]) == 64
    assert {"module tests.fakes", f"module {__name__}"} <= contents.policy.keys()
    assert "module tests.fakes" in contents.environment
    (attempt,) = read_attempts(out)[0]
    assert attempt.jobs[0].contents == contents
    with h5py.File(out / "coins" / "dataset_coins.hdf5") as file:
        recorded = json.loads(str(file["data/demo_0"].attrs["contents"]))
    assert recorded["policy"] == contents.policy
    (told,) = jobs_of(out)
    assert told["checkpoint"] == str(checkpoint)
    assert told["policy_sha256"] == contents.policy_sha256
    assert len(told["policy_sha256"]) == 64


POLICY = """
import torch
from isaaclab_arena.interfaces.policy import PolicyBase
from {package}.numbers_of_mine import NUMBER

class Mine(PolicyBase):
    def get_action(self, env, observation):
        return torch.full((env.num_envs, *env.action_spec.shape), NUMBER)
"""


def test_a_policy_class_whose_helper_was_edited_is_another_policy(monkeypatch, tmp_path, out):
    package = tmp_path / "directory" / "mine_of_today"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "numbers_of_mine.py").write_text("NUMBER = 0.5\n")
    (package / "unrelated.py").write_text("NUMBER = 0.5\n")
    (package / "policy.py").write_text(POLICY.format(package="mine_of_today"))
    monkeypatch.syspath_prepend(package.parent)
    policy_class = resolve_policy_class("mine_of_today.policy.Mine")
    mine = coin_job(policy_class=policy_class, num_episodes=4)
    run(out, mine)
    (package / "unrelated.py").write_text("NUMBER = 0.75\n")
    assert run(out, mine, resume="") == 0
    (package / "numbers_of_mine.py").write_text("NUMBER = 0.75\n")
    told = refusal(out, mine)
    assert "module mine_of_today.numbers_of_mine: was " in told
    assert "unrelated" not in told
    for name in [name for name in sys.modules if name.startswith("mine_of_today")]:
        del sys.modules[name]


def test_set_aside_keeps_both_of_two_files_of_one_name(tmp_path):
    for content in ("one", "two"):
        (tmp_path / "lines.jsonl").write_text(content)
        set_aside.move_aside(tmp_path / "lines.jsonl", tmp_path / "aside")
    assert sorted(path.read_text() for path in (tmp_path / "aside").iterdir()) == ["one", "two"]

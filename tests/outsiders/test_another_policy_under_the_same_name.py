"""A checkpoint or a class that is another one when a run goes on: its episodes never count with the first one's."""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import h5py
import pandas as pd
import pytest

import isaaclab_arena as arena
from isaaclab_arena import ConfigError
from isaaclab_arena.environments import ENVIRONMENTS
from isaaclab_arena.evaluation import eval_runner
from isaaclab_arena.policies import PolicyLostError
from isaaclab_arena.results import list_episodes, merge_results
from tests.end_to_end.launching import job as a_job
from tests.end_to_end.launching import write_jobs
from tests.fakes import CoinBuilder, ShrugCfg, ShrugPolicy

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


def coin_job(policy_type: str, name: str = "coins", *, num_episodes: int = EPISODES, **options: str) -> dict:
    """Return a job that tosses coins on two env slots."""
    return a_job("coins", policy_type, num_episodes, name=name, options=options)


def job(checkpoint: Path, name: str = "coins") -> dict:
    return coin_job(f"{__name__}.Weighed", name, checkpoint_path=str(checkpoint))


def run(out: Path, *jobs: dict, resume: bool = False, rerun: Sequence[str] = (), retry_errors: bool = False) -> int:
    """Run jobs with these options of the command line, and return the exit code."""
    flags = {"--resume": resume, "--retry_errors": retry_errors}
    arguments = ["--eval_jobs_config", str(write_jobs(out.with_name("jobs.json"), jobs)), "--output_dir", str(out)]
    arguments += [flag for flag, is_given in flags.items() if is_given]
    with ENVIRONMENTS.restored_afterwards():
        ENVIRONMENTS.register("coins", CoinBuilder())
        return eval_runner.main([*arguments, *(word for name in rerun for word in ("--rerun", name))])


def run_half(monkeypatch, out: Path, *jobs: dict, **options: Any) -> int:
    """Run until the policy breaks down; return how many episodes have finished, beside those that are errors."""
    with monkeypatch.context() as patched:
        patched.setattr(Weighed, "breaks_after", 30)
        assert run(out, *jobs, **options) == 1
    return sum(outcome != "error" for outcome in merge_results(out).episodes["outcome"].tolist())


def jobs_of(out: Path) -> list[dict[str, Any]]:
    return pd.read_parquet(out / "results.parquet").to_dict("records")


def contents_of(document: Path) -> dict[str, Any]:
    """Return the contents that the first job of a plan or an attempt evaluates."""
    return json.loads(document.read_text())["jobs"][0]["contents"]


def attempts_of_episodes(out: Path) -> list[int]:
    return merge_results(out).episodes["attempt"].tolist()


def refusal(out: Path, *jobs: dict, **options: Any) -> str:
    """Return the refusal of a resume from Python, and check that the command line refuses it too."""
    assert run(out, *jobs, resume=True, **options) == 2
    with ENVIRONMENTS.restored_afterwards():
        ENVIRONMENTS.register("coins", CoinBuilder())
        with pytest.raises(ConfigError) as refused:
            arena.evaluate(out.with_name("jobs.json"), output_dir=out, resume=True, **options)
    return "\n".join(map(str, refused.value.problems))


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_run_does_not_go_on_with_another_checkpoint_and_names_it_and_the_ways_out(
    monkeypatch, out, checkpoint, is_complete
):
    assert (run(out, job(checkpoint)) == 0) if is_complete else (run_half(monkeypatch, out, job(checkpoint)) > 0)
    before = contents_of(out / "run.json")
    checkpoint.write_bytes(b"other weights")
    told = refusal(out, job(checkpoint))
    assert "job 'coins': checkpoint_path model_300.pt" in told
    assert f"was {before['policy']['checkpoint_path model_300.pt'][:12]}, is now " in told
    assert "another directory" in told
    assert "--resume --rerun coins" in told


def test_the_same_checkpoint_that_was_only_touched_or_copied_goes_on(monkeypatch, out, checkpoint):
    run_half(monkeypatch, out, job(checkpoint))
    content = checkpoint.read_bytes()
    checkpoint.unlink()
    checkpoint.write_bytes(content)
    assert run(out, job(checkpoint), resume=True) == 0
    assert set(attempts_of_episodes(out)) == {1, 2}
    assert [job["rerun"] for job in jobs_of(out)] == [0]


def test_a_job_that_runs_anew_counts_none_of_its_old_episodes_and_loses_none(monkeypatch, out, checkpoint):
    finished = run_half(monkeypatch, out, job(checkpoint), job(checkpoint, "others"))
    assert finished > 0
    recorded = list_episodes(out / "coins" / "dataset_coins.hdf5")
    assert recorded
    checkpoint.write_bytes(b"other weights")
    jobs = job(checkpoint), job(checkpoint, "others")
    told = refusal(out, *jobs, rerun=("coins",))
    assert "job 'others'" in told
    assert "job 'coins'" not in told
    (out / "coins" / "settled.json").write_text("what the first network was measured to need")
    assert run(out, *jobs, resume=True, rerun=("coins", "others")) == 0
    assert attempts_of_episodes(out) == [2] * 2 * EPISODES
    first, _ = jobs_of(out)
    assert (first["rerun"], first["retried"], first["episodes"], first["status"]) == (1, 0, EPISODES, "completed")
    aside = out / "coins" / "set_aside" / "attempt_1"
    assert {"episode_results_rank0.jsonl", "settled.json"} <= {path.name for path in aside.iterdir()}
    assert list_episodes(aside / "dataset_coins.hdf5") == recorded


def test_the_same_command_may_be_given_again_and_goes_on_with_what_it_has_begun(monkeypatch, out, checkpoint):
    run_half(monkeypatch, out, job(checkpoint))
    checkpoint.write_bytes(b"other weights")
    anew = run_half(monkeypatch, out, job(checkpoint), resume=True, rerun=("coins",))
    assert 0 < anew < EPISODES
    assert run(out, job(checkpoint), resume=True, rerun=("coins",)) == 0
    assert set(attempts_of_episodes(out)) == {2, 3}
    assert jobs_of(out)[0]["rerun"] == 1
    # And without the option too: what counts now is what the newest attempt evaluated.
    assert run(out, job(checkpoint), resume=True) == 0
    checkpoint.write_bytes(b"the first weights")
    assert "checkpoint_path" in refusal(out, job(checkpoint))


class Killed(BaseException):
    """The end of a process."""


@pytest.mark.slow
@pytest.mark.parametrize("is_put_back", [False, True])
@pytest.mark.parametrize("moves", range(3))
def test_a_kill_while_episodes_are_set_aside_mixes_nothing(monkeypatch, out, checkpoint, moves, is_put_back):
    run_half(monkeypatch, out, job(checkpoint))
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
            run(out, job(checkpoint), resume=True, rerun=("coins",))
    if is_put_back:
        # Half of them may go on as what they were.
        checkpoint.write_bytes(first)
        assert run(out, job(checkpoint), resume=True, retry_errors=True) == 0
        assert set(attempts_of_episodes(out)) <= {1, 2}
        return
    # The recordings move first, then the lines; after these no episode of the first one is left to mix with.
    if moves < 2:
        assert "checkpoint_path" in refusal(out, job(checkpoint))
    assert run(out, job(checkpoint), resume=True, rerun=("coins",)) == 0
    assert attempts_of_episodes(out) == [2] * EPISODES


def test_what_runs_anew_has_to_be_a_job_of_a_run_that_goes_on(out, checkpoint, capsys):
    assert run(out, job(checkpoint), rerun=("coins",)) == 2
    assert "--rerun: needs --resume" in capsys.readouterr().err
    assert not out.exists()
    run(out, job(checkpoint))
    assert "--rerun: there is no job 'coin'; did you mean 'coins'?" in refusal(out, job(checkpoint), rerun=("coin",))


def test_a_run_that_did_not_write_down_what_it_evaluated_goes_on_and_says_so(monkeypatch, out, checkpoint, capsys):
    run_half(monkeypatch, out, job(checkpoint))
    for path in (out / "run.json", out / "attempts" / "attempt_1.json"):
        document = json.loads(path.read_text())
        for each in document["jobs"]:
            del each["contents"]
            each.pop("is_rerun", None)
        path.write_text(json.dumps(document))
    checkpoint.write_bytes(b"other weights")
    assert merge_results(out).jobs["policy_sha256"].tolist() == ["unknown"]
    assert run(out, job(checkpoint), resume=True) == 0
    assert "cannot be detected" in capsys.readouterr().err


def test_the_run_its_attempts_its_recordings_and_its_tables_say_what_was_evaluated(out, checkpoint):
    run(out, job(checkpoint))
    contents = contents_of(out / "run.json")
    policy = contents["policy"]
    assert len(policy["checkpoint_path model_300.pt"]) == 64
    assert {"module tests.fakes", f"module {__name__}"} <= policy.keys()
    assert "module tests.fakes" in contents["environment"]
    assert [path.name for path in (out / "attempts").glob("attempt_*.json")] == ["attempt_1.json"]
    assert contents_of(out / "attempts" / "attempt_1.json") == contents
    with h5py.File(out / "coins" / "dataset_coins.hdf5") as file:
        recorded = json.loads(str(file["data/demo_0"].attrs["contents"]))
    assert recorded["policy"] == policy
    (told,) = jobs_of(out)
    assert told["checkpoint"] == str(checkpoint)
    assert told["policy_sha256"] == hashlib.sha256("\n".join(sorted(policy.values())).encode()).hexdigest()


POLICY = """
import torch
from isaaclab_arena.policies import PolicyBase
from mine_of_today.numbers_of_mine import NUMBER

class Mine(PolicyBase):
    def get_action(self, env, observation):
        return torch.full((env.num_envs, *env.action_spec.shape), NUMBER)
"""


def test_a_policy_class_whose_helper_was_edited_is_another_policy(monkeypatch, tmp_path, out):
    package = tmp_path / "directory" / "mine_of_today"
    package.mkdir(parents=True)
    number = "NUMBER = 0.5\n"
    files = {"numbers_of_mine": number, "unrelated": number, "policy": POLICY, "__init__": ""}
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(package.parent)
    mine = coin_job("mine_of_today.policy.Mine", num_episodes=4)
    run(out, mine)
    (package / "unrelated.py").write_text("NUMBER = 0.75\n")
    assert run(out, mine, resume=True) == 0
    (package / "numbers_of_mine.py").write_text("NUMBER = 0.75\n")
    # The next run imports the package anew, as another process does.
    for name in [name for name in sys.modules if name.startswith("mine_of_today")]:
        monkeypatch.delitem(sys.modules, name)
    told = refusal(out, mine)
    assert "module mine_of_today.numbers_of_mine: was " in told
    assert "unrelated" not in told

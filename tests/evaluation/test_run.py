from typing import ClassVar

import pandas as pd
import pytest

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.rank_status import StatusPublisher
from isaaclab_arena.errors import PolicyLostError
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.planning import RunRequest
from isaaclab_arena.evaluation.run import execute
from isaaclab_arena.long_work import LongWork
from tests.evaluation.jobs import coin_job
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment, ShrugPolicy

CONTEXT = DistributedContext.from_environment(device="cpu", visible_gpus=0)


class MendedBuilder(CoinBuilder):
    """Builds what the configuration asks for; once it is mended, without what makes it diverge."""

    is_mended = False

    def build(self, config, *, num_envs, device, num_threads):
        return CoinEnvironment(CoinConfig() if self.is_mended else config, num_envs)


def run(job: Job, output_directory, **options) -> int:
    request = RunRequest(
        jobs=(job,),
        config_hash="abc",
        source_file=None,
        command_line=(),
        options=RunOptions(output_dir=str(output_directory), **options),
    )
    return execute(request, CONTEXT)


def table(output_directory) -> dict:
    (row,) = pd.read_csv(output_directory / "results.csv").dropna(axis="columns").to_dict("records")
    return row


def came_out(output_directory) -> list[dict]:
    episodes = pd.read_csv(output_directory / "episodes.csv")
    return episodes.filter(["outcome", "length", "return", "checksum"]).to_dict("records")


def test_a_rank_says_how_far_the_dataset_of_its_job_has_come(tmp_path, monkeypatch):
    heard: list[LongWork | None] = []
    hear = StatusPublisher.hear

    def heard_too(publisher: StatusPublisher, work: LongWork | None) -> None:
        heard.append(work)
        hear(publisher, work)

    monkeypatch.setattr(StatusPublisher, "hear", heard_too)
    assert run(coin_job(num_episodes=5), tmp_path) == 0
    assert heard == [*(LongWork("consolidating", number, 5) for number in range(6)), None]


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
    assert f"{before['errors']} episodes count that had ended in an error before" in capsys.readouterr().out

    undisturbed = tmp_path / "undisturbed"
    assert run(coin_job(environment=CoinConfig()), undisturbed) == 0
    assert came_out(tmp_path) == came_out(undisturbed)


class Served(ShrugPolicy):
    """Asks a server that dies at the 15th question, unless there is one again."""

    server_dies: ClassVar[bool] = True

    def get_action(self, env, observation):
        if self.server_dies and self.num_calls == 14:
            raise PolicyLostError("no server answers")
        return super().get_action(env, observation)


@pytest.mark.parametrize("assignment", ["round_robin", "dynamic"])
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

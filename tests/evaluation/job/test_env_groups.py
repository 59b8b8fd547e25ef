"""Jobs whose env slots are divided into groups: each has its environment, and policies share what can be shared."""

import json
from pathlib import Path

import pytest

from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena.storage.reports import JobReport, ReportedStatus, Reproducible
from tests.evaluation.jobs import coin_job as job
from tests.evaluation.jobs import settings
from tests.fakes import CoinBuilder, CoinConfig, ShrugPolicy


def played(tmp_path: Path, asked: Job, pipeline: int = 2, **options) -> tuple[JobReport, list[dict]]:
    runner = JobRunner(settings(tmp_path, pipeline=pipeline, **options))
    report = runner.run(asked)
    runner.close()
    [file] = tmp_path.glob(f"{asked.config.name}/episode_results_rank0.jsonl")
    return report, [json.loads(line) for line in file.read_text().splitlines()]


def what_came_out(lines: list[dict]) -> list[tuple]:
    names = ("episode_index", "outcome", "episode_length", "episode_return", "checksum")
    return sorted(tuple(line[name] for name in names) for line in lines)


def test_episodes_and_their_recordings_are_those_of_env_slots_that_are_not_divided(tmp_path):
    asked = job(num_envs=5, num_episodes=30)
    report, divided = played(tmp_path / "divided", asked, no_dataset=False)
    _, together = played(tmp_path / "together", asked, pipeline=1, no_dataset=False)
    assert report.status is ReportedStatus.COMPLETED
    assert what_came_out(divided) == what_came_out(together)
    assert {line["env_id"] for line in divided} == set(range(5))
    assert [path.name for path in (tmp_path / "divided" / "coins").glob("*.hdf5")] == ["dataset_coins.hdf5"]


def test_the_env_slots_of_each_group_are_an_environment_of_their_own(tmp_path):
    builder = CoinBuilder()
    played(tmp_path, job(builder=builder, num_envs=5))
    assert [environment.num_envs for environment in builder.built] == [3, 2]
    assert all(environment.closed for environment in builder.built)


def test_a_single_env_slot_is_not_divided(tmp_path):
    builder = CoinBuilder()
    played(tmp_path, job(builder=builder, num_envs=1))
    assert [environment.num_envs for environment in builder.built] == [1]


def test_rebuilds_build_every_group_anew(tmp_path):
    builder = CoinBuilder()
    _, lines = played(tmp_path, job(builder=builder, num_envs=4, num_rebuilds=3), no_dataset=False)
    assert len(builder.built) == 6
    assert sorted(line["episode_index"] for line in lines) == list(range(10))


def test_groups_are_kept_for_the_next_job_that_asks_for_the_same(tmp_path):
    builder = CoinBuilder()
    runner = JobRunner(settings(tmp_path, pipeline=2))
    runner.run(job("first", builder))
    runner.run(job("second", builder, seed=1))
    assert len(builder.built) == 2
    runner.run(job("single", builder, num_envs=1))
    assert [environment.closed for environment in builder.built] == [True, True, False]
    runner.close()


class Sharing(ShrugPolicy):
    """Has a network that is loaded once, however many env slots there are."""

    loaded = 0

    def __init__(self, config=None, *, network: object | None = None) -> None:
        super().__init__(config)
        if network is None:
            type(self).loaded += 1
        self.network = network or object()

    def with_own_memory(self) -> "Sharing":
        return Sharing(self.config, network=self.network)


def test_a_policy_that_can_share_its_network_is_loaded_once(tmp_path):
    Sharing.loaded = 0
    report, _ = played(tmp_path, job(policy_class=Sharing))
    assert report.status is ReportedStatus.COMPLETED
    assert Sharing.loaded == 1


class Counted(ShrugPolicy):
    """Is told for how many env slots it acts, and refuses to act for others."""

    traits = PolicyTraits(reproducible=True)

    def __init__(self, num_envs: int) -> None:
        super().__init__()
        self.told = num_envs

    @classmethod
    def from_dict(cls, config_dict) -> "Counted":
        return cls(config_dict["num_envs"])

    def get_action(self, env, observation):
        assert env.num_envs == self.told
        return super().get_action(env, observation)


@pytest.mark.parametrize("policy_batch", [None, 8])
def test_each_policy_is_told_the_number_of_env_slots_that_it_is_asked_for(tmp_path, policy_batch):
    asked = job(policy_class=Counted, num_envs=5)
    asked = Job(**{**vars(asked), "policy_options": {"num_envs": policy_batch or 5}})
    report, _ = played(tmp_path, asked, policy_batch=policy_batch)
    assert report.error is None
    assert report.reproducible is Reproducible.BITWISE


def test_a_group_that_fails_is_the_jobs_failure(tmp_path):
    report, _ = played(tmp_path, job(raise_at=7, environment=CoinConfig(success_rate=1.0)))
    assert report.status is ReportedStatus.FAILED
    assert report.error == "ValueError: I would rather not"


def test_control_steps_are_counted_once_for_each_running_env_slot(tmp_path):
    report, lines = played(tmp_path, job(num_envs=5, num_episodes=30))
    assert report.env_steps == sum(line["episode_length"] for line in lines)


def test_time_adds_up(tmp_path):
    report, _ = played(tmp_path, job(num_episodes=30))
    parts = report.build_s + report.simulate_s + report.policy_s + report.render_s + report.record_s + report.idle_s
    assert parts == pytest.approx(report.wall_s, abs=0.01)


def test_how_env_slots_are_divided_decides_what_comes_out_unless_batches_have_one_size():
    assert RunOptions(pipeline=2).result_settings()["pipeline"] == 2
    assert RunOptions(pipeline=2, deterministic=True).result_settings()["pipeline"] is None
    assert RunOptions().result_settings()["pipeline"] is None

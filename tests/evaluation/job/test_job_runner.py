"""A job from its start to its report."""

import asyncio
import json
import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.builds import settle_served_model
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyTraits
from isaaclab_arena.policy.catalog import function_policy_class
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy, ZeroActionPolicy
from isaaclab_arena.storage.commits import read_commits
from isaaclab_arena.storage.episodes import list_episodes
from isaaclab_arena.storage.ledger import (
    JobReport,
    ReportedStatus,
    Reproducible,
    StartUp,
    episode_files,
    read_job_reports,
)
from tests.evaluation.jobs import coin_job, settings
from tests.evaluation.jobs import coin_job as job
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment, RepeatablePolicy, ShrugPolicy, shrugging
from tests.outsiders.test_another_model_behind_the_server import OTHER, Served


def committed(output_directory: Path, name: str = "coins") -> list[dict]:
    lines = (output_directory / name / "episode_results_rank0.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_job_that_takes_too_long_fails_and_keeps_what_has_finished_and_the_next_one_runs(tmp_path):
    runner = JobRunner(settings(tmp_path))
    report = runner.run(job("long", num_episodes=1_000_000, timeout_s=2.0))
    assert report.status is ReportedStatus.FAILED
    assert str(report.error).startswith("JobTimeoutError: job 'long' ")
    assert 0 < len(committed(tmp_path, "long")) < 1_000_000
    assert runner.run(job("short", timeout_s=100.0)).status is ReportedStatus.COMPLETED


def test_an_episode_that_takes_too_long_is_an_error_that_gives_way_to_the_same_episode_of_a_later_start(tmp_path):
    for attempt, limit_s in ((1, 0.001), (2, None)):
        again = job(
            policy_class=shrugging(lambda *_: time.sleep(0.002)), num_episodes=3, episode_timeout_s=limit_s, num_envs=2
        )
        report = JobRunner(settings(tmp_path, attempt=attempt)).run(again)
        assert report.status is ReportedStatus.COMPLETED
    late = [(line["outcome"], line["termination"], line["episode_length"]) for line in committed(tmp_path)[:3]]
    assert late == [("error", "episode_timeout", 1)] * 3
    log = read_commits(tmp_path / "coins", "coins")
    assert [(line.attempt, line.outcome == Outcome.ERROR) for line in log.lines] == [(2, False)] * 3
    assert (log.retried_episodes, log.unequal_episodes) == ((0, 1, 2), ())


@pytest.mark.parametrize(
    ("step_timeout_s", "episode_timeout_s", "told"),
    [(500.0, None, "500"), (0.0, None, None), (500.0, 10.0, "70"), (500.0, 7200.0, "7260"), (0.0, 10.0, None)],
)
def test_a_job_is_watched_while_it_steps_and_leaves_no_trace_of_it(tmp_path, step_timeout_s, episode_timeout_s, told):
    seen, lines = [], tmp_path / "logs" / "rank0.watchdog.txt"
    looking = shrugging(lambda *_: seen.append(lines.read_text() if lines.exists() else None))
    watched = job("lift", policy_class=looking, episode_timeout_s=episode_timeout_s)
    JobRunner(settings(tmp_path, step_timeout_s=step_timeout_s)).run(watched)
    assert set(seen) == {told and f"job 'lift' has made no control step for {told} s:\n"}
    assert not lines.exists()


def test_only_a_policy_that_says_so_is_reproducible_bit_for_bit(tmp_path):
    """Nobody can see from outside whether a policy carries something from one episode or job to the next."""
    runner = JobRunner(settings(tmp_path))
    assert runner.run(job("shrug")).reproducible is Reproducible.PLAN
    assert runner.run(job("careful", policy_class=RepeatablePolicy)).reproducible is Reproducible.BITWISE


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"raise_at": 25}, "ValueError: I would rather not"),
        ({"action": "nan"}, "PolicyError: "),
        ({"action": "wrong_shape"}, "PolicyError: "),
        ({"environment": CoinConfig(fail_to_build=True)}, "RuntimeError: the mint is closed"),
    ],
)
def test_a_job_that_fails_is_reported_with_its_traceback_and_the_next_one_is_built_anew_and_runs(
    tmp_path, changes, error
):
    builder, runner = CoinBuilder(), JobRunner(settings(tmp_path))
    report = runner.run(job("bad", builder, **changes))
    assert report.status is ReportedStatus.FAILED
    assert str(report.error).startswith(error)
    assert report.traceback_file == "bad/traceback_rank0.txt"
    assert "Traceback (most recent call last)" in (tmp_path / report.traceback_file).read_text()
    if "environment" in changes:
        assert (report.start_up, report.reproducible, builder.built) == (StartUp(), None, [])
    if "raise_at" in changes:
        assert (len(committed(tmp_path, "bad")) > 0, report.env_steps) == (True, 24 * 4)
    before = len(builder.built)
    assert runner.run(job("good", builder)).status is ReportedStatus.COMPLETED
    assert len(builder.built) == before + 1


class MuteError(Exception):
    """An exception that cannot even say what is wrong."""

    def __str__(self):
        raise ValueError


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (SystemExit(), "SystemExit"),
        (KeyboardInterrupt("no"), "KeyboardInterrupt: no"),
        (asyncio.CancelledError("cancelled"), "CancelledError: cancelled"),
        (GeneratorExit("over"), "GeneratorExit: over"),
        (MuteError(), "MuteError: its message cannot be read"),
        (ValueError("bad \udcff"), "ValueError: bad \\udcff"),
        (ValueError("first\nsecond"), "ValueError: first"),
    ],
)
def test_whatever_a_policy_raises_fails_its_job_only(tmp_path, raised, error):
    class Quitter(ShrugPolicy):
        def get_action(self, env, observation):
            raise raised

    runner = JobRunner(settings(tmp_path))
    report = runner.run(job("bad", policy_class=Quitter))
    assert (report.status, report.error) == (ReportedStatus.FAILED, error)
    assert runner.run(job("good")).status is ReportedStatus.COMPLETED


@pytest.mark.parametrize(
    ("changes", "closed"),
    [
        ({"seed": 1}, [False]),
        ({"num_envs": 2}, [True, False]),
        ({"environment": CoinConfig(success_step=5)}, [True, False]),
    ],
)
def test_an_equal_environment_is_kept_for_the_next_job_and_another_one_takes_its_place(tmp_path, changes, closed):
    def make(config, num_envs):
        assert all(environment.closed for environment in builder.built), "memory may hold no two of them"
        return CoinEnvironment(config, num_envs)

    builder, runner = CoinBuilder(make), JobRunner(settings(tmp_path))
    runner.run(job("first", builder))
    runner.run(job("second", builder, **changes))
    assert [environment.closed for environment in builder.built] == closed
    runner.close()
    assert all(environment.closed for environment in builder.built)


@pytest.mark.parametrize("raised", [RuntimeError("never"), SystemExit(3)])
def test_policies_that_fail_to_close_are_not_held_against_each_other_or_the_next_job(tmp_path, raised, caplog):
    class Clinging(ShrugPolicy):
        def close(self):
            raise raised

    runner = JobRunner(settings(tmp_path, pipeline=2))
    runner.run(job("first", policy_class=Clinging))
    assert runner.run(job("second")).status is ReportedStatus.COMPLETED
    assert caplog.text.count("closing Clinging failed") == 2


@pytest.mark.parametrize("seed", [5, 2**32 + 5, 2**63 - 1])
def test_a_job_begins_with_torchs_numpys_and_pythons_generators_at_its_seed(tmp_path, seed):
    drawn = []

    class Gambler(ShrugPolicy):
        def get_action(self, env, observation):
            if not drawn:
                drawn.extend((torch.rand(1).item(), np.random.random(), random.random()))
            return super().get_action(env, observation)

    _ = torch.rand(1), np.random.random(), random.random()
    JobRunner(settings(tmp_path)).run(job(policy_class=Gambler, num_episodes=1, seed=seed))
    by_torch = torch.rand(1, generator=torch.Generator().manual_seed(seed)).item()
    assert drawn == [by_torch, np.random.RandomState(seed % 2**32).random(), random.Random(seed).random()]


def test_a_job_limited_by_steps_says_how_many_episodes_were_cut(tmp_path):
    report = JobRunner(settings(tmp_path)).run(job(num_steps=55))
    assert report.num_episodes is None
    assert report.cut_episodes == 4
    assert report.env_steps == 55 * 4


def test_a_job_without_a_length_takes_the_policys(tmp_path):
    short = shrugging(num_episodes=lambda self: 3)
    timed = shrugging(has_length=lambda self: True, length=lambda self: 30)
    runner = JobRunner(settings(tmp_path))
    assert runner.run(job("three", policy_class=short, num_episodes=None)).num_episodes == 3
    assert runner.run(job("thirty", policy_class=timed, num_episodes=None)).env_steps == 30 * 4
    assert "neither num_episodes nor num_steps" in str(runner.run(job("endless", num_episodes=None)).error)


def test_a_policy_with_nothing_left_to_play_is_asked_before_the_first_episode(tmp_path):
    four_only = shrugging(can_play=lambda self, episode_index: episode_index < 4)
    runner = JobRunner(settings(tmp_path))
    report = runner.run(job("five", policy_class=four_only, num_episodes=5))
    assert str(report.error).endswith("episode 4")
    assert report.env_steps == 0
    assert runner.run(job("steps", policy_class=four_only, num_steps=10_000)).status is ReportedStatus.COMPLETED
    assert len(committed(tmp_path, "steps")) == 4


def test_a_placement_seed_changes_the_conditions_and_nothing_else(tmp_path):
    runner = JobRunner(settings(tmp_path))
    runner.run(job("plain", seed=3))
    runner.run(job("placed", seed=3, placement_seed=4))
    runner.run(job("other", seed=4))
    conditions = {
        name: {line["episode_index"]: line["variations"] for line in committed(tmp_path, name)}
        for name in ("plain", "placed", "other")
    }
    assert conditions["placed"] == conditions["other"] != conditions["plain"]


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
    builder = CoinBuilder()
    asked = job(builder=builder, num_envs=5, num_episodes=15)
    report, divided = played(tmp_path / "divided", asked, no_dataset=False)
    assert [environment.num_envs for environment in builder.built] == [3, 2]
    _, together = played(tmp_path / "together", asked, pipeline=1, no_dataset=False)
    assert report.status is ReportedStatus.COMPLETED
    assert what_came_out(divided) == what_came_out(together)
    assert {line["env_id"] for line in divided} == set(range(5))
    assert report.env_steps == sum(line["episode_length"] for line in divided)
    parts = report.build_s + report.simulate_s + report.policy_s + report.render_s + report.record_s + report.idle_s
    assert parts == pytest.approx(report.wall_s, abs=0.01)
    assert [path.name for path in (tmp_path / "divided" / "coins").glob("*.hdf5")] == ["dataset_coins.hdf5"]


@pytest.mark.parametrize(("pipeline", "num_built"), [(1, 3), (2, 6)])
def test_rebuilds_share_the_episodes_out_and_build_every_group_anew(tmp_path, pipeline, num_built):
    builder = CoinBuilder()
    report, lines = played(tmp_path, job(builder=builder, num_rebuilds=3), pipeline, no_dataset=False)
    assert (len(builder.built), report.num_episodes) == (num_built, 10)
    assert sorted(line["episode_index"] for line in lines) == list(range(10))


def test_how_env_slots_are_divided_decides_what_comes_out_unless_batches_have_one_size():
    assert RunOptions(pipeline=2).result_settings()["pipeline"] == 2
    assert RunOptions(pipeline=2, deterministic=True).result_settings()["pipeline"] is None
    assert RunOptions().result_settings()["pipeline"] is None


def test_the_dataset_is_in_place_when_the_report_of_a_job_is_written(tmp_path):
    runner = JobRunner(settings(tmp_path, no_dataset=False))
    report = runner.run(job("first", num_episodes=3))
    assert read_job_reports(tmp_path / "first", "first") == ([report], [])
    assert report.status is ReportedStatus.COMPLETED
    assert list_episodes(tmp_path / "first" / "dataset_first.hdf5") == [0, 1, 2]
    assert list(episode_files(tmp_path / "first")) == []
    runner.close()


def refuse(self, env) -> None:
    raise ConfigError(Problem("there is no camera 'front'", key="pov_cam_name_sim"))


def test_a_job_whose_policy_does_not_fit_its_environment_fails_before_the_first_step(tmp_path):
    report = JobRunner(settings(tmp_path)).run(coin_job(policy_class=shrugging(check_environment=refuse)))
    assert report.status is ReportedStatus.FAILED
    assert str(report.error).startswith("ConfigError: pov_cam_name_sim")
    assert report.env_steps == 0


def test_an_object_may_promise_otherwise_than_its_class(tmp_path):
    class Told(ShrugPolicy):
        def __init__(self, config=None) -> None:
            super().__init__(config)
            self.traits = PolicyTraits(reproducible=True)

    report = JobRunner(settings(tmp_path)).run(coin_job(policy_class=Told, num_episodes=1))
    assert report.reproducible is Reproducible.BITWISE


class Speaking(CoinEnvironment):
    """Asks in each episode for a number of its own."""

    def instruction(self, conditions):
        return f"call {conditions['coin.number']}"


class ReadsTask(ShrugPolicy):
    """Reads ``task_description``, as Isaac Lab Arena's policies do."""

    start_episodes = PolicyBase.start_episodes


class Insists(ReadsTask):
    """Follows words of its own."""

    def set_task_description(self, task_description):
        return "do as I say"


class ReadsStart(ShrugPolicy):
    """Reads what an episode asks for when it begins."""

    def start_episodes(self, env, starts):
        assert all(start.language_instruction for start in starts)


replays = shrugging(num_episodes=lambda self: 4)
"""Plays four recorded episodes, whatever they ask for."""


def act(observation):
    return observation["policy"]["clock"].expand(-1, 2)


def remarks(tmp_path, policy_class, builder=None, **config) -> tuple[str, ...]:
    job = coin_job(builder=builder or CoinBuilder(Speaking), policy_class=policy_class, **config)
    report = JobRunner(settings(tmp_path)).run(job)
    assert report.error is None
    return report.remarks


@pytest.mark.parametrize("policy_class", [ReadsTask, function_policy_class(act), ShrugPolicy])
def test_a_policy_that_reads_no_episodes_words_is_named_with_what_it_missed(tmp_path, caplog, policy_class):
    [remark] = remarks(tmp_path, policy_class)
    assert all(
        told in remark for told in (f"policy '{policy_class.__qualname__}'", "'call ", "'call the coin' for all")
    )
    assert caplog.text.count(remark) == 1


@pytest.mark.parametrize("policy_class", [ReadsStart, Insists, replays, ZeroActionPolicy, RandomActionPolicy])
def test_a_policy_that_reads_them_or_follows_no_words_of_theirs_is_not(tmp_path, policy_class):
    assert remarks(tmp_path, policy_class) == ()


def test_nor_is_one_whose_episodes_all_ask_for_the_same(tmp_path):
    assert remarks(tmp_path, ReadsTask, language_instruction="toss it") == ()
    assert remarks(tmp_path / "coins", ReadsTask, builder=CoinBuilder()) == ()


class OwnEnvironment(CoinEnvironment):
    def __init__(self, config: CoinConfig, num_envs: int) -> None:
        super().__init__(config, num_envs)
        self.background = "white.png"
        self.metrics = {"distance": []}  # pyright: ignore[reportAttributeAccessIssue]

    def _own(self, path):
        raise AssertionError(f"{path} is of no concern to others")

    # Each is one of two methods that are offered together.
    try_step = restore = snapshot = _own  # pyright: ignore[reportAssignmentType]


class OwnPolicy(ShrugPolicy):
    def __init__(self, config=None) -> None:
        super().__init__(config)
        self.network = torch.nn.Linear(1, 1)
        taken = "planned look chunks chunk_traits connections slots_per_call fill_calls_up_to episode_metrics"
        for name in f"{taken} act_in_some pictures_to_see".split():
            setattr(self, name, [name])


def test_own_attributes_of_any_name_do_not_offer_anything(tmp_path):
    report = JobRunner(settings(tmp_path, pipeline=2)).run(
        coin_job(builder=CoinBuilder(OwnEnvironment), policy_class=OwnPolicy)
    )
    assert (report.status, report.error) == (ReportedStatus.COMPLETED, None)


def test_two_servers_of_one_job_must_serve_the_same(tmp_path):
    other = Served()
    other.states = OTHER  # pyright: ignore[reportAttributeAccessIssue]  of this one only
    with pytest.raises(ConfigError, match="different models"):
        settle_served_model(tmp_path, "coins", [Served(), other])

"""What episodes of a job start from, and which of them start: each once, also where rebuilds are limited by steps."""

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest

from isaaclab_arena.evaluation.job import FixedShare, Job, episode_of
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.storage.reports import JobReport, ReportedStatus
from tests.evaluation.jobs import coin_job, settings
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment, ShrugPolicy

TOSSES = (1, 0, 0, 1, 1, 1, 0, 1)
SAVED: tuple[Conditions, ...] = tuple({"coin.heads": toss, "coin.number": 1} for toss in TOSSES)


def saved(job: Job) -> Job:
    return dataclasses.replace(job, saved_conditions=SAVED)


def run(directory: Path, job: Job) -> tuple[JobReport, list[dict]]:
    report = JobRunner(settings(directory)).run(job)
    lines = (directory / job.config.name / "episode_results_rank0.jsonl").read_text().splitlines()
    return report, sorted(map(json.loads, lines), key=lambda line: line["episode_index"])


@pytest.mark.parametrize("num_envs", [1, 3, 8])
def test_saved_conditions_are_what_the_environment_is_reset_to(tmp_path, num_envs):
    """Which of them succeed follows from them alone, and from no other toss."""
    builder = CoinBuilder()
    report, lines = run(tmp_path, saved(coin_job(builder=builder, num_episodes=8, num_envs=num_envs, seed=3)))
    assert report.status is ReportedStatus.COMPLETED
    assert [line["success"] for line in lines] == [bool(toss) for toss in TOSSES]
    assert [line["variations"] for line in lines] == [dict(conditions) for conditions in SAVED]
    assert builder.built[0].num_draws == 0


def test_saved_conditions_belong_to_their_episode_also_where_some_have_finished(tmp_path):
    job = saved(coin_job(num_episodes=8, num_envs=2))
    JobRunner(settings(tmp_path)).run(job, supply=FixedShare(finished=((0, 3), (5, 6))))
    lines = (tmp_path / "coins" / "episode_results_rank0.jsonl").read_text().splitlines()
    lines = {line["episode_index"]: line["success"] for line in map(json.loads, lines)}
    assert lines == {index: bool(TOSSES[index]) for index in (3, 4, 6, 7)}


def test_an_episode_of_a_job_has_its_seeds_and_its_own_saved_conditions():
    job = saved(coin_job("a", num_episodes=8, seed=5, placement_seed=6))
    assert episode_of(job, 6) == Episode(job="a", episode_index=6, seed=5, conditions_seed=6, saved_conditions=SAVED[6])
    assert episode_of(coin_job("a", seed=5), 2) == Episode(job="a", episode_index=2, seed=5)


class Watching(ShrugPolicy):
    """Remembers which episodes were started, in all rebuilds."""

    started: list[int] = []  # noqa: RUF012  shared by the instances on purpose: every rebuild makes another

    def start_episodes(self, env, starts):
        self.started += [start.episode.episode_index for start in starts]


@pytest.mark.parametrize("num_steps", [1, 9, 10, 11, 25, 130])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_rebuilds_that_are_limited_by_steps_repeat_no_episode_and_leave_none_out(tmp_path, num_steps, num_envs):
    """An episode that a limit cut is not begun again: its conditions were used, and nobody picks what is convenient."""
    Watching.started = []
    job = coin_job(policy_class=Watching, num_steps=num_steps, num_rebuilds=3, num_envs=num_envs)
    report, lines = run(tmp_path, job)
    started = Watching.started
    assert started == list(range(len(started)))
    assert report.cut_episodes == len(started) - len(lines)
    finished = [line["episode_index"] for line in lines]
    assert max(Counter(finished).values(), default=1) == 1
    heads = [toss(index) for index in finished]
    assert [line["success"] for line in lines] == heads


def toss(index: int) -> bool:
    episode = Episode(job="coins", episode_index=index, seed=0)
    return bool(CoinEnvironment(CoinConfig(), 1).draw_conditions(episode.conditions_generator())["coin.heads"])


def test_a_job_that_is_limited_by_steps_starts_no_more_episodes_than_have_saved_conditions(tmp_path):
    Watching.started = []
    job = saved(coin_job(policy_class=Watching, num_steps=600, num_rebuilds=2, num_envs=3))
    _, lines = run(tmp_path, job)
    assert Watching.started == list(range(8))
    assert [line["success"] for line in lines] == [bool(toss) for toss in TOSSES]


def test_a_rebuild_has_its_part_of_what_a_rank_is_to_run(tmp_path):
    parts: list[list[int]] = []

    class Rebuilt(ShrugPolicy):
        """Notes the episodes of its rebuild: each has a policy of its own."""

        def __init__(self, config=None):
            super().__init__(config)
            parts.append([])

        def start_episodes(self, env, starts):
            parts[-1] += [start.episode.episode_index for start in starts]

    job = coin_job(policy_class=Rebuilt, num_episodes=10, num_rebuilds=3)
    supply = FixedShare(finished=((0, 1), (5, 6)), share=((0, 2), (4, 9)))
    assert JobRunner(settings(tmp_path)).run(job, supply=supply).status is ReportedStatus.COMPLETED
    assert parts == [[1], [4, 6], [7, 8]]

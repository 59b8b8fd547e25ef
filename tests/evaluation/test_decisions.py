"""Runs in which policies of known skill are compared, in this process."""

import io
import json
import shutil
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from isaaclab_arena.config.schema import Question, SuiteMember
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyTraits
from isaaclab_arena.results.merge import MergedResults, merge_results, records
from isaaclab_arena.results.stopping import Verdict
from isaaclab_arena.storage.commits import read_commits
from tests.evaluation.jobs import coin_job, execute, request_of
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment

CONTEXT = DistributedContext.from_environment(device="cpu", visible_gpus=0)
ASKED = Question(name="new-vs-old", jobs=("new", "old"), max_episodes=200)


class ContestEnvironment(CoinEnvironment):
    """Each episode draws how hard it is, 0 to 1. The action says how skilled the policy is: its rate of success.

    An episode that succeeds ends after 10 steps, one that fails after 100. So those that end first are successes.
    """

    def __init__(self, config: CoinConfig, num_envs: int) -> None:
        super().__init__(config, num_envs)
        self._hardness = torch.zeros(num_envs)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        return {"coin.heads": 0, "coin.number": int(generator.integers(1_000_000)), "hardness": generator.random()}

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        self._hardness[env_ids] = torch.tensor([float(str(each["hardness"])) for each in conditions])
        return super().reset(env_ids, conditions)

    def step(self, action: torch.Tensor) -> Step:
        self._heads = self._hardness < action[:, 0]
        return super().step(action)


@dataclass(frozen=True)
class SkilledCfg:
    skill: float = 0.5


class SkilledPolicy(PolicyBase[SkilledCfg]):
    """Succeeds in as many episodes as its skill says."""

    name = "skilled"
    traits = PolicyTraits(reproducible=True, batch_invariant=True)
    config_class = SkilledCfg

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return torch.full((env.num_envs, 2), self.config.skill)


def contestant(name: str, skill: float, *, index: int, builder: CoinBuilder | None = None, **config) -> Job:
    """Return a job whose true rate of success is known, of 200 episodes on 4 env slots unless told otherwise."""
    policy_class = config.pop("policy_class", SkilledPolicy)
    job = coin_job(
        name,
        builder or CoinBuilder(ContestEnvironment),
        config.pop("environment", None),
        policy_class,
        index,
        **{"num_episodes": 200, "labels": {"skill": str(skill)}, **config},
    )
    job.policy_options["skill"] = skill  # pyright: ignore[reportIndexIssue]  a dict of this job alone
    return job


def contest(
    directory: Path, jobs: Sequence[Job], questions: Sequence[Question], *, code: int = 0, **options
) -> MergedResults:
    """Run jobs that a run asks something of, and return what came out."""
    request = request_of(*jobs, questions=questions, output_dir=str(directory), no_dataset=True, **options)
    assert execute(request, CONTEXT) == code
    return merge_results(directory)


def new_and_old(new: float = 0.9, old: float = 0.6, **config) -> list[Job]:
    """Return two jobs of the same environment."""
    builder = config.pop("builder", None) or CoinBuilder(ContestEnvironment)
    return [
        contestant(name, skill, index=index, builder=builder, **config)
        for index, (name, skill) in enumerate({"new": new, "old": old}.items())
    ]


def decision(merged) -> tuple[Verdict | None, int]:
    (answer,) = merged.answers
    return answer.verdict, answer.episodes


class Counted(SkilledPolicy):
    """Counts how many of it are built."""

    built = 0

    def __init__(self, config=None):
        super().__init__(config)
        Counted.built += 1


@dataclass
class Decided:
    """A run that several tests look at, and copy before they go on with it."""

    directory: Path
    merged: MergedResults
    printed: str
    num_built: tuple[int, int]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Decided:
    directory, jobs, printed = tmp_path_factory.mktemp("decided"), new_and_old(policy_class=Counted), io.StringIO()
    with redirect_stdout(printed):
        merged = contest(directory, jobs, [ASKED])
    built = len(jobs[0].builder.built), Counted.built  # pyright: ignore[reportAttributeAccessIssue]
    return Decided(directory, merged, printed.getvalue(), built)


@pytest.fixture
def decided(run) -> MergedResults:
    return run.merged


@pytest.fixture
def resumed(run, tmp_path) -> Path:
    """A copy of the run, to go on with."""
    shutil.copytree(run.directory, tmp_path / "run")
    return tmp_path / "run"


def test_a_comparison_stops_both_jobs_when_the_answer_is_in(decided):
    verdict, episodes = decision(decided)
    assert verdict is Verdict.BETTER
    assert 7 < episodes < 60
    jobs = decided.jobs.set_index("name")
    assert jobs["episodes"].tolist() == jobs["decided_at"].tolist() == [episodes] * 2
    assert jobs["planned"].tolist() == [200, 200]
    assert jobs["status"].tolist() == ["completed", "completed"]
    assert jobs["missing"].tolist() == [0, 0]
    assert decided.complete


def test_jobs_that_take_turns_are_built_once_leave_one_file_each_and_nothing_to_do(run):
    assert run.num_built == (1, 2)
    for job, pattern in product(("new", "old"), ("job_report_*.json", "episode_results_*.jsonl")):
        assert len(list((run.directory / job).glob(pattern))) == 1
    status = json.loads((run.directory / "logs" / "rank0.status.json").read_text())
    assert status["episodes_total"] == status["episodes_done"] < 150
    assert status["jobs_done"] == status["jobs_total"] == 2


def test_the_table_shows_the_episodes_of_the_decision_and_the_rest_is_marked(decided):
    _, episodes = decision(decided)
    beyond = decided.episodes[decided.episodes["beyond_decision"]]
    assert (beyond["episode_index"] >= episodes).all()
    # A rank does not begin a round after the decision, and does not know it before the end of the round's episodes.
    assert decided.jobs["episodes_beyond"].sum() == len(beyond) <= 2 * 2 * 4
    of_decision = decided.episodes[~decided.episodes["beyond_decision"]]
    rates = of_decision.groupby("job", sort=False)["success"].mean()
    assert decided.jobs["success_rate"].tolist() == pytest.approx(rates.tolist())
    assert decided.jobs["interval_kind"].tolist() == ["anytime", "anytime"]
    assert decided.jobs["clopper_pearson_low"].isna().all()


@pytest.mark.parametrize(("num_envs", "assignment"), [(32, "split"), (7, "dynamic")])
def test_env_slots_and_assignment_change_nothing(tmp_path, decided, num_envs, assignment):
    merged = contest(tmp_path, new_and_old(num_envs=num_envs), [ASKED], assignment=assignment)
    assert decision(merged) == decision(decided)
    columns = ["name", "episodes", "successes", "success_low", "success_high", "mean_length", "decision", "decided_at"]
    assert records(merged.jobs.filter(columns)) == records(decided.jobs.filter(columns))


def test_a_decision_goes_by_the_index_and_not_by_who_is_first_to_end(tmp_path):
    """Of 64 episodes that begin together those that succeed end first, which looks like a rate of 100 %."""
    job = contestant("new", 0.5, index=0, num_envs=64)
    bar = Question(name="bar", jobs=("new",), max_episodes=200, at_least=0.75)
    merged = contest(tmp_path, [job], [bar])
    assert decision(merged)[0] is Verdict.MISSED
    committed = read_commits(tmp_path / "new", "new").lines
    first_to_end = sorted(committed, key=lambda line: line.timestamp)[:20]
    assert all(line.success for line in first_to_end)


def test_equal_policies_run_to_the_end_and_nothing_is_said(tmp_path):
    merged = contest(tmp_path, new_and_old(0.7, 0.7, num_episodes=12), [replace(ASKED, max_episodes=12)])
    assert decision(merged) == (None, 12)
    assert merged.jobs["episodes"].tolist() == [12, 12]
    assert merged.jobs["decided_at"].isna().tolist() == [True, True]
    assert merged.jobs["decision"].tolist() == ["new-vs-old: undecided"] * 2
    assert merged.complete


def test_a_job_goes_on_as_long_as_one_of_its_questions_is_open(tmp_path):
    bar = Question(name="bar", jobs=("new",), max_episodes=30, at_least=0.9)
    jobs = new_and_old(0.9, 0.3, num_episodes=30)
    merged = contest(tmp_path, jobs, [replace(ASKED, max_episodes=30), bar])
    comparison = merged.answers[0]
    assert comparison.verdict is Verdict.BETTER
    assert merged.jobs["episodes"].tolist() == [30, comparison.episodes]


def resume(directory: Path, question: Question = ASKED) -> tuple[MergedResults, list]:
    """Go on with a run, and return what came out and the environments that were built for it."""
    jobs = new_and_old(policy_class=Counted)
    merged = contest(directory, jobs, [question], resume="")
    return merged, jobs[0].builder.built  # pyright: ignore[reportAttributeAccessIssue]


def test_a_run_that_is_decided_runs_nothing_when_it_is_resumed(resumed, decided):
    again, built = resume(resumed)
    assert (again.answers, built) == (decided.answers, [])
    assert not (resumed / "attempts" / "attempt_2.json").exists()


def test_episodes_that_are_lost_run_again_and_the_decision_is_the_same(resumed, decided):
    for path in (resumed / "old").glob("episode_results_*.jsonl"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    assert decision(resume(resumed)[0]) == decision(decided)


def test_jobs_that_do_not_say_whether_they_succeed_fail_at_once(tmp_path):
    jobs = new_and_old(environment=CoinConfig(measures_success=False, failure_step=5))
    merged = contest(tmp_path, jobs, [ASKED], code=1)
    assert merged.jobs["status"].tolist() == ["failed", "failed"]
    assert all("comparisons and bars" in error for error in merged.jobs["error"])
    assert max(merged.jobs["episodes"]) < 20


def test_the_tables_say_what_was_decided_and_a_run_without_questions_has_no_such_columns(tmp_path, run):
    _, episodes = decision(run.merged)
    assert f"decided after {episodes} of 200: new is better than old (e = " in run.printed
    assert "intervals of new, old are anytime-valid" in run.printed
    assert f"{episodes}/200" in run.printed
    results = pd.read_csv(run.directory / "results.csv")
    assert list(results.columns[-4:-1]) == ["decision", "decided_at", "interval_kind"]
    (answer,) = json.loads((run.directory / "results.json").read_text())["answers"]
    assert (answer["verdict"], answer["episodes"]) == ("better", episodes)
    contest(tmp_path, new_and_old(num_episodes=4), [])
    assert not {"decision", "decided_at", "interval_kind"} & {*pd.read_csv(tmp_path / "results.csv").columns}
    assert "answers" not in json.loads((tmp_path / "results.json").read_text())


def saved_starts(*hardness: float, number: int) -> list:
    """Return two jobs whose episodes start from saved conditions in turns."""
    coin = {"coin.heads": 1, "coin.number": 1}
    conditions = tuple({**coin, "hardness": hardness[index % len(hardness)]} for index in range(number))
    jobs = new_and_old(0.9, 0.1, num_episodes=number)
    return [replace(job, saved_conditions=conditions) for job in jobs]


def test_two_saved_starts_that_are_played_again_and_again_decide_nothing(tmp_path):
    merged = contest(tmp_path, saved_starts(0.5, 0.6, number=20), [replace(ASKED, max_episodes=20)])
    [answer] = merged.answers
    assert (answer.verdict, answer.episodes, answer.repeated) == (None, 20, 18)
    assert merged.jobs["distinct_conditions"].tolist() == [2, 2]
    assert merged.jobs["success_low"].tolist()[0] < 0.2


def suites(new: Sequence[float], old: Sequence[float], **config) -> list[Job]:
    """Return the tasks of two suites, with the skill of the new and the old policy in each."""
    builder, jobs = CoinBuilder(ContestEnvironment), []
    for name, skills in {"new": new, "old": old}.items():
        for task, skill in zip("abc", skills, strict=False):
            member = SuiteMember(name=name, suite="contest", task=task)
            named = {"index": len(jobs), "builder": builder, "suite": member, "policy_class": Counted}
            jobs.append(contestant(f"{name}-{task}", skill, **named, **config))
    return jobs


def of_suites(jobs: Sequence[Job], **asked) -> Question:
    return Question(name="suites", jobs=tuple(job.config.name for job in jobs), max_episodes=100, **asked)


@pytest.mark.parametrize(("num_envs", "assignment"), [(4, "round_robin"), (7, "split"), (16, "dynamic")])
def test_suites_take_turns_and_stop_together_whatever_the_env_slots_and_the_assignment(tmp_path, num_envs, assignment):
    jobs = suites([0.9, 0.8, 1.0], [0.6, 0.8, 0.3], num_envs=num_envs, num_episodes=100)
    merged = contest(tmp_path, jobs, [of_suites(jobs, arms=("new", "old"))], assignment=assignment)
    assert decision(merged) == (Verdict.BETTER, 15)
    assert merged.jobs["episodes"].tolist() == [15] * 6
    assert "suites: new is better than old over 3 tasks" in merged.jobs["decision"].tolist()
    rows = merged.suites.to_dict("records")
    for row in rows:
        # The interval is valid although the run looked after every block, so it is wider than that of a fixed number.
        assert row["mean_low"] < row["mean_rate"] < row["mean_high"]
        assert (row["pooled_low"], row["pooled_high"]) == (row["mean_low"], row["mean_high"])
    assert merged.complete


def test_a_race_of_jobs_plays_a_fraction_of_the_episodes_and_names_the_best(tmp_path, capsys):
    builder, skills = CoinBuilder(ContestEnvironment), [0.1, 0.2, 0.3, 0.5, 0.95]
    jobs = [contestant(f"step-{at}", skill, index=at, builder=builder) for at, skill in enumerate(skills)]
    race = Question(name="race", jobs=tuple(job.config.name for job in jobs), max_episodes=200, selects_best=True)
    merged = contest(tmp_path, jobs, [race])
    (answer,) = merged.answers
    assert (answer.verdict, answer.left, len(builder.built)) == (Verdict.BEST, ("step-4",), 1)
    played = merged.jobs["episodes"].tolist()
    assert played == sorted(played)
    assert sum(played) < 200
    assert "step-4 is the best of 5" in capsys.readouterr().out
    assert set(merged.jobs["decision"]) == {"race: step-4 is the best of 5"}


def test_a_suite_plays_until_its_interval_is_narrow(tmp_path):
    jobs = suites([0.9, 0.5, 1.0], [], num_episodes=100)
    asked = of_suites(jobs, arms=("new",), half_width=0.12)
    merged = contest(tmp_path, jobs, [asked])
    (answer,), (row,) = merged.answers, merged.suites.to_dict("records")
    assert (answer.verdict, answer.episodes < 60) == (Verdict.NARROW, True)
    assert row["mean_high"] - row["mean_low"] <= 0.24
    assert merged.jobs["episodes"].tolist() == [answer.episodes] * 3

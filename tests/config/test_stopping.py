"""Rules that end a job early."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from isaaclab_arena.config.expansion.suites import SuiteTask
from isaaclab_arena.config.loading import limited, load_jobs_file
from isaaclab_arena.config.schema import Question, compared_groups
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.registry import Registry

# Tests of comparisons and bars, from the file to questions or to everything that is wrong.


COMPARISON = {"name": "new-vs-old", "jobs": ["new", "old"], "stop": {"alpha": 0.1, "max_episodes": 30}}
BAR = {"job": "new", "at_least": 0.8, "stop": {}}


def job(name: str, **changed: Any) -> dict[str, Any]:
    environment = {"environment": "reach", **changed.pop("environment", {})}
    return {"name": name, "policy_type": "zero_action", "arena_env_args": environment, "num_episodes": 50, **changed}


def document(*, jobs: Any = None, **blocks: Any) -> dict[str, Any]:
    return {"jobs": jobs or [job("new"), job("old")], **blocks}


class Pair:
    """A suite of two tasks."""

    def tasks(self, options: Mapping[str, Any]) -> list[SuiteTask]:
        del options
        return [SuiteTask(label=label, environment="reach", options={"object": label}) for label in "ab"]


SUITES = Registry("suite", {}, entry_point_group="isaaclab_arena.nobody")
SUITES.register("pair", Pair())


def suite(name: str, **changed: Any) -> dict[str, Any]:
    return {**job(name, **changed), "suite": "pair", "arena_env_args": {"num_envs": 2}}


@pytest.fixture
def refusal(load):
    def load_and_fail(content: dict[str, Any]) -> str:
        with pytest.raises(ConfigError) as refused:
            load(content, suites=SUITES)
        assert all(problem.file for problem in refused.value.problems)
        return " | ".join(f"{problem.key}: {problem.message}" for problem in refused.value.problems)

    return load_and_fail


def test_comparisons_and_bars_become_questions(load):
    margin = {"name": "no-regression", "jobs": ["new", "old"], "margin": 0.05, "stop": {}}
    assert load(document(comparisons=[COMPARISON, margin], bars=[BAR])).questions == (
        Question(name="new-vs-old", jobs=("new", "old"), max_episodes=30, alpha=0.1),
        Question(name="no-regression", jobs=("new", "old"), max_episodes=50, margin=0.05),
        Question(name="new at least 0.8", jobs=("new",), max_episodes=50, at_least=0.8),
    )


def test_suites_are_asked_about_by_their_names_and_a_pattern_enters_a_race(load):
    jobs = [suite("s-new"), suite("s-old", num_episodes=40), job("go-1"), job("go-2"), job("go-3", num_episodes=60)]
    comparisons = [
        {"name": "suites", "jobs": ["s-new", "s-old"], "stop": {"max_episodes": 40}},
        {"name": "race", "jobs": ["go-*"], "select": "best", "stop": {"max_episodes": 50}},
        {"name": "race of suites", "jobs": ["s-*"], "select": "best", "stop": {"max_episodes": 30}},
    ]
    bar = {"job": "s-new", "stop": {"half_width": 0.05}}
    both, tasks = ("s-new-a", "s-new-b", "s-old-a", "s-old-b"), ("s-new", "s-old")
    asked = load(document(jobs=jobs, comparisons=comparisons, bars=[bar]), suites=SUITES).questions
    assert asked == (
        Question(name="suites", jobs=both, arms=tasks, max_episodes=40, are_apart=True),
        Question(name="race", jobs=("go-1", "go-2", "go-3"), max_episodes=50, selects_best=True),
        Question(name="race of suites", jobs=both, arms=tasks, max_episodes=30, selects_best=True, are_apart=True),
        Question(
            name="s-new within 0.05", jobs=both[:2], arms=tasks[:1], max_episodes=50, half_width=0.05, are_apart=True
        ),
    )
    assert asked[0].sides == {"s-new": both[:2], "s-old": both[2:]}


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"seed": 1}, "'s-new-a' and 's-old-a' give no pairs: the seed of its conditions is 0 and 1"),
        (
            {"num_episodes": 40},
            "stop.max_episodes: is missing: 's-new-a' has 50 episodes and 's-old-a' has 40 episodes",
        ),
        ({"num_episodes": None, "num_steps": 9}, "job 's-old-a' has num_steps; give it num_episodes instead"),
    ],
    ids=str,
)
def test_suites_that_cannot_be_compared_are_refused_once(refusal, other, told):
    asked = {**COMPARISON, "jobs": ["s-new", "s-old"], "stop": {}}
    said = refusal(document(jobs=[suite("s-new"), suite("s-old", **other)], comparisons=[asked]))
    assert told in said
    assert "s-old-b" not in said


def test_yaml_and_experiments_of_arena_say_the_same(load, tmp_path):
    wanted = load(document(comparisons=[COMPARISON])).questions
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump(document(comparisons=[COMPARISON])))
    assert load_jobs_file(path).questions == wanted
    path.write_text(yaml.safe_dump({"runs": [job("new"), job("old")], "comparisons": [COMPARISON]}))
    assert load_jobs_file(path).questions == wanted


def test_a_job_that_a_sweep_made_may_be_named(load):
    swept = job("reach-{k}", sweep={"policy_config_dict.k": [1, 2]})
    asked = {"name": "gain", "jobs": ["reach-1", "reach-2"], "stop": {}}
    assert load(document(jobs=[swept], comparisons=[asked])).questions[0].jobs == ("reach-1", "reach-2")


def test_the_hash_of_a_file_is_that_of_before_without_questions_and_another_with_them(load):
    plain, asked = load(document()), load(document(bars=[BAR]))
    other = load(document(bars=[{**BAR, "at_least": 0.7}]))
    assert len({plain.config_hash, asked.config_hash, other.config_hash}) == 3
    assert load(document(comparisons=[], bars=None)).config_hash == plain.config_hash


def test_a_question_gives_a_length_to_jobs_that_say_none_and_may_be_limited(load):
    jobs = [job("new", num_episodes=None), job("old", environment={"backend": "mujoco"})]
    read = load(document(jobs=jobs, comparisons=[COMPARISON]))
    assert [each.num_episodes for each in read.jobs] == [30, 50]
    assert [each.max_episodes for each in limited(read, 3).questions] == [3]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"jobs": ["new", "odl"]}, "comparisons[0].jobs: there is no job 'odl'; did you mean 'old'?"),
        ({"jobs": ["new", "new"]}, "comparisons[0].jobs: compares job 'new' with itself"),
        ({"jobs": ["new", "new"], "stop": {}}, "comparisons[0].jobs: compares job 'new' with itself"),
        ({"jobs": ["new"]}, "comparisons[0].jobs: names 1, and two are compared; select: best takes more"),
        ({"jobs": ["new", "old", "third"]}, "comparisons[0].jobs: names 3, and two are compared"),
        ({"jobs": ["new"], "select": "best"}, "comparisons[0].jobs: names 1, and the best is selected of two or more"),
        ({"jobs": ["odl*"], "select": "best"}, "comparisons[0].jobs: there is no job 'odl*'"),
        ({"select": "worst"}, 'comparisons[0].select: "worst"'),
        ({"select": "best", "margin": 0.1}, "comparisons[0].margin: excludes select"),
        ({"stop": {"half_width": 0.1}}, "comparisons[0].stop.half_width: unknown key"),
        ({"jobs": ["suite", "old"]}, "'suite' and 'old' give no pairs: they have other tasks"),
        ({"jobs": ["suite-a", "old"]}, "job 'suite-a' is a task of suite 'suite'; name the suite"),
        ({"jobs": ["new", "new-vs-old"]}, "'new-vs-old' is a comparison; name the jobs themselves"),
        ({"name": "new"}, "comparisons[0].name: 'new' is the name of a job too"),
        ({"name": "a/b"}, "comparisons[0].name: 'a/b' holds a slash"),
        ({"name": "first"}, "comparisons[0].name: 'first' is taken by an earlier question"),
        ({"margin": 0}, "comparisons[0].margin: must be greater than 0.0, got 0"),
        ({"margin": 1.5}, "comparisons[0].margin: must be less than 1.0, got 1.5"),
        ({"stop": {"alpha": 0}}, "comparisons[0].stop.alpha: must be greater than 0.0, got 0"),
        ({"stop": {"alpha": 1}}, "comparisons[0].stop.alpha: must be less than 1.0, got 1"),
        ({"stop": {"max_episodes": 51}}, "stop.max_episodes: 51 is more than the 50 episodes of job 'new'"),
        ({"stop": {"max_episodes": 0}}, "stop.max_episodes: must be at least 1, got 0"),
        ({"stop": {"aplha": 0.1}}, "comparisons[0].stop.aplha: unknown key; did you mean 'alpha'?"),
        ({"stop": None}, "comparisons[0].stop"),
    ],
    ids=str,
)
def test_a_mistake_in_a_comparison_is_told_with_its_key(refusal, changed, told):
    first = {**COMPARISON, "name": "first"} if changed.get("name") == "first" else None
    told = told.replace("[0]", "[1]") if first else told
    jobs = [job("new"), job("old"), job("third"), suite("suite")]
    assert told in refusal(document(jobs=jobs, comparisons=[*filter(None, [first]), {**COMPARISON, **changed}]))


@pytest.mark.parametrize(
    ("blocks", "told"),
    [
        ({"bars": [{**BAR, "at_least": 1.2}]}, "bars[0].at_least: must be less than 1.0, got 1.2"),
        ({"bars": [{**BAR, "at_least": 0.0}]}, "bars[0].at_least: must be greater than 0.0, got 0.0"),
        ({"bars": [{**BAR, "at_least": None}]}, "bars[0].at_least: is missing; give it, or stop.half_width"),
        ({"bars": [{**BAR, "stop": {"half_width": 0.1}}]}, "bars[0].at_least: excludes stop.half_width"),
        ({"bars": [{**BAR, "stop": {"half_width": 0}}]}, "bars[0].stop.half_width: must be greater than 0.0, got 0"),
        ({"bars": [{**BAR, "stop": {"half_width": 0.5}}]}, "bars[0].stop.half_width: must be less than 0.5, got 0.5"),
        ({"bars": [{**BAR, "job": "never"}]}, "bars[0].job: there is no job 'never'"),
        ({"bars": [{**BAR, "name": "old"}]}, "bars[0].name: 'old' is the name of a job too"),
        ({"bars": [3]}, "bars[0]: 3 is not a mapping"),
        ({"comparisons": {"a": 1}}, "comparisons: "),
        ({"comparisons": "x"}, "comparisons: "),
    ],
    ids=str,
)
def test_a_mistake_in_a_bar_or_around_questions_is_told_with_its_key(refusal, blocks, told):
    assert told in refusal(document(**blocks))


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ({}, {"seed": 1}, "'new' and 'old' give no pairs: the seed of its conditions is 0 and 1"),
        ({}, {"environment": {"environment": "lift_object"}}, 'environment is "reach" and "lift_object"'),
        ({}, {"environment": {"object": "cube"}}, 'object is null and "cube"'),
        ({}, {"variations": {"x": 1}}, "variations is"),
        ({}, {"conditions": "saved.json"}, 'conditions is null and "saved.json"'),
        ({}, {"num_rebuilds": 2}, "job 'old' has num_rebuilds 2; compared jobs need 1"),
        ({}, {"num_episodes": None, "num_steps": 10}, "job 'old' has num_steps; give it num_episodes instead"),
        ({}, {"status": "completed"}, "job 'old' does not run: its status is 'completed'"),
        ({"num_episodes": None}, {}, "stop.max_episodes: is missing: job 'new' has no"),
        ({"num_episodes": 40}, {}, "'new' has 40 episodes and 'old' has 50 episodes"),
    ],
    ids=str,
)
def test_jobs_that_cannot_be_compared_are_refused(refusal, first, second, told):
    asked = {**COMPARISON, "stop": {}} if first else COMPARISON
    assert told in refusal(document(jobs=[job("new", **first), job("old", **second)], comparisons=[asked]))


def question(*jobs: str) -> Question:
    return Question(name=" ".join(jobs), jobs=jobs, max_episodes=10)


def test_jobs_that_comparisons_connect_belong_together_and_a_bar_connects_nothing():
    asked = (question("a", "b"), question("c", "d"), question("x"), question("b", "e"))
    assert compared_groups(asked) == (frozenset("abe"), frozenset("cd"))
    assert compared_groups((*asked, question("b", "c"))) == (frozenset("abcde"),)

"""Classes written for Isaac Lab Arena, in the styles of its releases, run as they are: from jobs and command lines."""

import argparse
import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
import torch

from isaaclab_arena import ConfigError
from isaaclab_arena.cli.commands.evaluate import validate
from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.evaluation.job.job_runner import JobRunner
from isaaclab_arena.evaluation.options import read_command_line
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.plan.validation import resolve_jobs
from isaaclab_arena.evaluation.policy_runner import PolicyOptions, get_policy_cls, job_block
from isaaclab_arena.policies import PolicyBase, PolicyCfg
from isaaclab_arena.policy.zero_action_policy import ZeroActionPolicy, ZeroActionPolicyCfg
from isaaclab_arena.storage.run.job_reports import ReportedStatus, Reproducible
from tests.evaluation.jobs import settings
from tests.fakes import Notebook
from tests.machine import show_gpus
from tests.outsiders import arena_policies

MODULE = arena_policies.__name__
NUM_ENVS = 2
LENGTH = 7
"""Control steps that `RecordedPolicy` has."""


def block(policy: str, options: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return a job for one of the policies, as a file would hold it."""
    return {
        "name": "cartpole",
        "arena_env_args": {"environment": "cartpole", "num_envs": NUM_ENVS},
        "policy_type": policy if policy.islower() else f"{MODULE}.{policy}",
        "policy_config_dict": options or {},
        "num_steps": 3,
        **changes,
    }


def resolved(job: dict[str, Any], **options: Any) -> Job:
    return resolve_jobs(read_jobs({"jobs": [job]}, source="jobs.json").jobs, file="jobs.json", device="cpu", **options)[
        0
    ]


def first_action(job: Job, output_directory: Path) -> float:
    """Run a job as a rank does, and return the first number of the first action that the environment was given."""
    runner, seen = JobRunner(settings(output_directory)), Notebook()
    report = runner.run(job, [seen])
    runner.close()
    assert report.status is ReportedStatus.COMPLETED, report.error
    assert len(seen.transitions) == (job.config.num_steps or LENGTH)
    return seen.transitions[0].action[0, 0].item()


STYLES = [
    ("outsider_nudge", {"push": 0.25}, 0.25),
    ("NudgePolicy", {}, 0.1),
    ("GenericPolicy", {"push": 0.5}, 0.5),
    ("RegisteredWithCfgPolicy", {"push": 0.5}, 0.5),
    ("SweepPolicy", {"reach_m": 0.25, "mirrored": True}, -0.25),
    ("SweepPolicy", {"sweep_reach_m": 0.25, "sweep_mirrored": True}, -0.25),
    ("StretchPolicy", {"push": 0.25, "stretch": 2}, 0.5),
    ("ParserPolicy", {"push": 0.25, "weights": [1, 0.5, -0.5], "mode": "fast"}, 0.25),
    ("ParserPolicy", {"push": -0.25, "gripper": False, "device": "cpu"}, 0.0),
    ("NumpyPolicy", {}, 0.125),
    ("UndeclaredPolicy", {"push": 0.25}, 0.25),
    ("UndeclaredPolicy", {}, 0.0),
    ("AnnotatedPolicy", {"push": 0.25}, 0.25),
    ("NothingToSayPolicy", {}, 0.0),
    ("KitPolicy", {"push": 0.25, "sign": -1}, -0.25),
    ("ConstantPolicy", {}, -0.25),
    ("ConstantPolicy", {"push": 0.5, "mirrored": False, "stronger": 0, "weight": [0.5, 0.25]}, 0.375),
    ("ConstantPolicy", {"stronger": 1, "mirrored": True}, -0.5),
    ("ConstantPolicy", {"on": False, "mirrored": False}, 0.0),
    ("BarePolicy", {}, 0.0),
    ("ChunkedPolicy", {}, 0.01),
]


@pytest.mark.parametrize(("policy", "options", "expected"), STYLES)
def test_a_policy_in_a_style_of_arena_runs_from_a_job(policy, options, expected, tmp_path):
    assert first_action(resolved(block(policy, options)), tmp_path) == pytest.approx(expected)


def test_validate_accepts_the_policies_of_all_styles(tmp_path, capsys):
    jobs = [block(policy, options, name=f"job_{index}") for index, (policy, options, _) in enumerate(STYLES)]
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": jobs}))
    assert validate.main([str(tmp_path / "jobs.json")]) == 0
    assert f"{len(STYLES)} jobs" in capsys.readouterr().out


def test_a_policy_that_says_its_length_in_the_old_words_needs_none_from_the_job(tmp_path):
    job = resolved(block("RecordedPolicy", num_steps=None))
    assert first_action(job, tmp_path) == 0.0


def test_chunks_are_fetched_for_env_slots_that_need_them(tmp_path):
    calls = arena_policies.ChunkedPolicy.num_calls
    first_action(resolved(block("ChunkedPolicy", num_steps=9)), tmp_path)
    assert arena_policies.ChunkedPolicy.num_calls - calls == 3


def test_a_policy_that_answers_with_arrays_is_asked_about_places_in_a_batch_like_any_other(tmp_path):
    job = resolved(block("NumpyReproduciblePolicy", arena_env_args={"environment": "cartpole", "num_envs": 3}))
    report = JobRunner(settings(tmp_path)).run(job)
    assert (report.status, report.plan_because) == (ReportedStatus.COMPLETED, None)
    assert report.reproducible is Reproducible.BITWISE
    assert report.policy_batch == 4


@pytest.mark.parametrize(
    ("gpus", "local_rank", "options", "placed"),
    [
        (0, None, {}, "cpu"),
        (0, "1", {}, "cpu"),
        (4, "2", {}, "cuda:2"),
        (4, None, {}, "cuda:0"),
        (4, "2", {"device": "cuda:3"}, "cuda:3"),
    ],
)
@pytest.mark.parametrize("policy", ["NudgePolicy", "ParserPolicy"])
def test_a_gpu_that_only_a_default_names_is_that_of_the_rank(monkeypatch, policy, gpus, local_rank, options, placed):
    show_gpus(monkeypatch, gpus)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    job = read_jobs({"jobs": [block(policy, {"push": 1, **options})]}, source="jobs.json").jobs[0]
    [found] = resolve_jobs([job])
    assert {**found.policy_options, **found.policy_placement}["device"] == placed
    assert found.policy_options.get("device") == options.get("device")


def test_a_gpu_that_a_default_names_by_number_is_left_alone_without_a_launcher(monkeypatch):
    show_gpus(monkeypatch, 4)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert resolved(block("SecondGpuPolicy")).policy_placement == {"device": "cuda:1"}


MISTAKES = [
    ("NudgePolicy", {"pusch": 0.1}, "policy_config_dict.pusch", "no such option; did you mean 'push'"),
    ("GenericPolicy", {}, "policy_config_dict.push", "is missing"),
    ("GenericPolicy", {"push": "far"}, "policy_config_dict.push", "number"),
    ("SweepPolicy", {"sweep_reach": 0.1}, "policy_config_dict.sweep_reach", "did you mean 'sweep_reach_m'"),
    ("SweepPolicy", {"sweep_reach_m": "far"}, "policy_config_dict.sweep_reach_m", "invalid float value: 'far'"),
    (
        "SweepPolicy",
        {"sweep_mirrored": "yes"},
        "policy_config_dict.sweep_mirrored",
        'must be true or false, got "yes"',
    ),
    ("ParserPolicy", {}, "policy_config_dict.push", "is missing"),
    ("ParserPolicy", {"push": 1, "speed": 2}, "policy_config_dict.speed", "no such option"),
    ("ParserPolicy", {"push": True}, "policy_config_dict.push", "invalid float value: 'True'"),
    ("ParserPolicy", {"push": [1, 2]}, "policy_config_dict.push", "must be one value, not a list"),
    ("ParserPolicy", {"push": {"x": 1}}, "policy_config_dict.push", "must be a word, a number or a list"),
    ("ParserPolicy", {"push": 1, "weights": ["heavy"]}, "policy_config_dict.weights", "invalid float value: 'heavy'"),
    ("ParserPolicy", {"push": 1, "mode": "wild"}, "policy_config_dict.mode", "invalid choice: 'wild'"),
    ("BarePolicy", {"push": 1}, "policy_config_dict.push", "takes no options"),
    ("NumpyPolicy", {"push": 1}, "policy_config_dict.push", "takes no options"),
    ("AnnotatedPolicy", {"push": "far"}, "policy_config_dict.push", "number"),
    ("InconstructiblePolicy", {}, "policy_type", "__init__ needs 'model' and 'rate', and nothing says which options"),
    ("KitPolicy", {"sign": -1, "pull": 1}, "policy_config_dict.pull", "no such option"),
    ("KitPolicy", {"sign": -1, "push": -1}, "policy_config_dict", "push with a positive number"),
    ("NothingToSayPolicy", {"push": 1}, "policy_config_dict.push", "no such option"),
    ("ConstantPolicy", {"push": 0.75}, "policy_config_dict.push", "must be 0.5 or 0.25, got 0.75"),
    ("PathPolicy", {}, "policy_type", "__init__ needs 'checkpoint', and nothing says which options"),
    ("PositionalPolicy", {}, "policy_type", "defines 'push' by its position"),
    ("BrokenParserPolicy", {}, "policy_type", "add_args_to_parser fails: ArgumentError"),
]


@pytest.mark.parametrize(("policy", "options", "key", "message"), MISTAKES)
def test_options_that_a_policy_does_not_take_are_refused_with_file_job_and_key(policy, options, key, message):
    with pytest.raises(ConfigError) as refused:
        resolved(block(policy, options))
    problem = refused.value.problems[0]
    assert (problem.file, problem.job, problem.key) == ("jobs.json", "cartpole", key)
    assert message in problem.message


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("ForgetfulPolicy", {"push": 1}, "from_args reads 'remote_host', which add_args_to_parser does not define"),
        ("InheritingPolicy", {"push": 1}, "from_args must return a InheritingPolicy, it returned a ParserPolicy"),
        ("AttributePolicy", {"push": 1}, "reads config.push, but it does not say what its config is"),
    ],
)
def test_a_policy_that_cannot_be_built_as_it_says_fails_its_job_with_a_way_out(policy, options, message, tmp_path):
    report = JobRunner(settings(tmp_path)).run(resolved(block(policy, options)))
    assert report.status is ReportedStatus.FAILED
    assert report.error is not None
    assert report.error.startswith("ConfigError: ")
    assert message in report.error


def typed(*arguments: str) -> dict[str, Any]:
    """Return the job that a command line of the policy runner amounts to."""
    options, rest = read_command_line(
        PolicyOptions, ["--num_steps", "3", "--num_envs", str(NUM_ENVS), *arguments], program="p"
    )
    return {**job_block(options, rest), "num_steps": 3}


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (["SweepPolicy", "--sweep_reach_m", "0.25", "cartpole", "--sweep_mirrored"], -0.25),
        (["SweepPolicy", "--sweep_mirrored", "cartpole", "--sweep_reach_m=0.25"], -0.25),
        (["SweepPolicy", "cartpole", "--reach_m", "0.25"], 0.25),
        (["ParserPolicy", "cartpole", "--start", "hanging", "--push", "-0.25", "--weights", "1", "-.5"], -0.125),
        (["ParserPolicy", "--push=0.25", "--no_gripper", "cartpole", "--start", "hanging"], 0.0),
        (["NudgePolicy", "cartpole", "--push", "0.5"], 0.5),
        (["NudgePolicy", "--push", "0.5", "cartpole"], 0.5),
    ],
)
def test_a_command_line_gives_a_policy_the_options_of_its_own_parser(arguments, given, tmp_path):
    policy, *rest = arguments
    job = typed("--policy_type", f"{MODULE}.{policy}", *rest)
    assert job["arena_env_args"]["environment"] == "cartpole"
    assert ("start" in job["arena_env_args"]) == ("--start" in rest)
    job["arena_env_args"]["num_envs"] = NUM_ENVS
    assert first_action(resolved(job), tmp_path) == pytest.approx(given)


def test_a_command_line_whose_option_lacks_its_word_is_refused():
    with pytest.raises(ConfigError, match="--push: expected one argument"):
        typed("--policy_type", f"{MODULE}.ParserPolicy", "cartpole", "--push")


def test_a_command_line_cannot_give_what_no_job_file_can_hold():
    with pytest.raises(ConfigError, match=r"--when: <object .*> is nothing that a job file can hold"):
        typed("--policy_type", f"{MODULE}.ConstantPolicy", "cartpole", "--at_once")


def test_every_class_gives_a_script_its_arguments_and_is_built_from_what_the_parser_reads():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    policy_class = get_policy_cls(f"{MODULE}.NudgePolicy")
    assert policy_class.add_args_to_parser(parser) is parser
    arguments = parser.parse_args(["--push", "0.75"])
    policy = policy_class.from_args(arguments)
    assert policy.config == arena_policies.NudgeCfg(push=0.75, device="cpu")
    assert isinstance(get_policy_cls("zero_action").from_args(argparse.Namespace()), ZeroActionPolicy)
    assert ZeroActionPolicy(config=ZeroActionPolicyCfg()).config == ZeroActionPolicyCfg()


@dataclasses.dataclass
class EveryKindCfg(PolicyCfg):
    path: str
    rate: float | None = None
    sizes: tuple[int, ...] = (1, 2)
    quick: bool = True
    names: list[str] = dataclasses.field(default_factory=list)


class EveryKind(PolicyBase[EveryKindCfg]):
    def get_action(self, env, observation):
        return torch.zeros(env.action_space.shape)


def test_arguments_are_read_as_the_fields_say():
    parser = EveryKind.add_args_to_parser(argparse.ArgumentParser())
    words = ["--path", "7", "--rate", "3", "--sizes", "4", "5", "--no-quick", "--names", "a", "b"]
    assert EveryKind.from_args(parser.parse_args(words)).config == EveryKindCfg("7", 3.0, [4, 5], False, ["a", "b"])  # pyright: ignore[reportArgumentType]  a list of a command line
    assert EveryKind.from_args(parser.parse_args(["--path", "x"])).config == EveryKindCfg("x")


@pytest.mark.parametrize("frozen", [True, False])
def test_options_may_be_frozen_or_not_and_derive_from_each_other(frozen):
    base = dataclasses.make_dataclass("Base", [("first", int, 1)], bases=(PolicyCfg,), frozen=frozen)
    derived = dataclasses.make_dataclass("Derived", [("second", int, 2)], bases=(base,), frozen=frozen)
    assert isinstance(derived(), PolicyCfg)
    assert dataclasses.asdict(derived(second=3)) == {"first": 1, "second": 3}


CfgT = TypeVar("CfgT")


class Middle(PolicyBase[CfgT], Generic[CfgT]):
    """A base that leaves open what the options are."""


class Below(Middle[EveryKindCfg]):
    """A class that says so through it."""


class Other(Below):
    """A class that says nothing."""

    config_class = arena_policies.NudgeCfg


class Again(Other, Middle[EveryKindCfg]):
    """A class that says something else than its base."""


class WithoutOptions(PolicyBase[None]):
    """A class that says that there are none."""


def test_the_parameter_of_a_base_says_what_the_options_are():
    classes = (Middle, Below, Other, Again, EveryKind, WithoutOptions)
    expected = [None, EveryKindCfg, arena_policies.NudgeCfg, EveryKindCfg, EveryKindCfg, None]
    assert [policy_class.config_class for policy_class in classes] == expected


def test_a_class_is_known_by_its_name_once_its_module_is_loaded_and_loading_it_again_does_no_harm():
    reloaded = importlib.reload(arena_policies)
    assert get_policy_cls("outsider_nudge") is reloaded.NudgePolicy

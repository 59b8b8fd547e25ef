"""Classes written for Isaac Lab Arena, in the styles of its releases, run as they are: from jobs and command lines."""

import argparse
import dataclasses
import importlib
import json
import re
from pathlib import Path
from typing import Any, Generic, TypeVar

import pandas as pd
import pytest
import torch

import isaaclab_arena as arena
from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation.eval_runner import main as evaluate
from isaaclab_arena.evaluation.policy_runner import get_policy_cls
from isaaclab_arena.evaluation.policy_runner import main as play
from isaaclab_arena.policies import PolicyBase, PolicyCfg
from isaaclab_arena.policy.zero_action_policy import ZeroActionPolicy, ZeroActionPolicyCfg
from isaaclab_arena.results import read_episode
from tests.end_to_end.launching import write_jobs
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


def first_action(output: Path, job: str = "cartpole") -> float:
    """Return the first number of the first action that the environment was given."""
    return read_episode(output / job / f"dataset_{job}.hdf5", 0).arrays["actions"][0, 0].item()


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


IMPOSSIBLE = [
    ("ForgetfulPolicy", {"push": 1}, "from_args reads 'remote_host', which add_args_to_parser does not define"),
    ("InheritingPolicy", {"push": 1}, "from_args must return a InheritingPolicy, it returned a ParserPolicy"),
    ("AttributePolicy", {"push": 1}, "reads config.push, but does not declare its config"),
]
"""Policies that cannot be built as they say, and what a run tells of each."""


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> Path:
    """Return the directory of a run of all policies."""
    directory = tmp_path_factory.mktemp("policies")
    two = {"num_steps": None, "num_episodes": 2}
    slots = {"environment": "cartpole", "num_envs": 3}
    jobs = [
        *(block(policy, options, name=f"style_{index}", **two) for index, (policy, options, _) in enumerate(STYLES)),
        *(block(policy, options, name=policy) for policy, options, _ in IMPOSSIBLE),
        block("RecordedPolicy", name="recorded", num_steps=None),
        block("NumpyReproduciblePolicy", name="reproducible", arena_env_args=slots),
    ]
    path = write_jobs(directory / "jobs.json", jobs)
    arguments = ["--eval_jobs_config", str(path), "--output_dir", str(directory / "out"), "--no_report"]
    assert evaluate([*arguments, "--device", "cpu"]) == 1
    return directory / "out"


def job_of(output: Path, name: str) -> dict[str, Any]:
    """Return a job's row of the table of jobs."""
    jobs = arena.load_results(output).jobs
    return jobs[jobs["name"] == name].iloc[0].to_dict()


@pytest.mark.parametrize("index", range(len(STYLES)))
def test_a_policy_in_a_style_of_arena_runs_from_a_job(output, index):
    job = job_of(output, f"style_{index}")
    assert (job["status"], job["episodes"], job["error"]) == ("completed", 2, None)
    assert first_action(output, f"style_{index}") == pytest.approx(STYLES[index][2])


def test_a_policy_that_says_its_length_in_the_old_words_needs_none_from_the_job(output):
    assert job_of(output, "recorded")["status"] == "completed"
    timing = pd.read_parquet(output / "timing.parquet").set_index("name")
    assert timing.loc["recorded", "env_steps"] == NUM_ENVS * LENGTH


def test_a_policy_that_answers_with_arrays_is_asked_about_places_in_a_batch_like_any_other(output):
    job = job_of(output, "reproducible")
    assert (job["status"], job["reproducible"], job["policy_batch"]) == ("completed", "bitwise", 4)


MISTAKES = [
    ("NudgePolicy", {"pusch": 0.1}, "policy_config_dict.pusch", "no such option; did you mean 'push'"),
    ("GenericPolicy", {}, "policy_config_dict.push", "is missing"),
    ("GenericPolicy", {"push": "far"}, "policy_config_dict.push", "number"),
    ("SweepPolicy", {"sweep_reach": 0.1}, "policy_config_dict.sweep_reach", "did you mean 'sweep_reach_m'"),
    ("SweepPolicy", {"sweep_reach_m": "far"}, "policy_config_dict.sweep_reach_m", "invalid float value: 'far'"),
    ("SweepPolicy", {"sweep_mirrored": "yes"}, "policy_config_dict.sweep_mirrored", "must be true or false"),
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
    ("InconstructiblePolicy", {}, "policy_type", "__init__ needs 'model' and 'rate', but declares no options"),
    ("KitPolicy", {"sign": -1, "pull": 1}, "policy_config_dict.pull", "no such option"),
    ("KitPolicy", {"sign": -1, "push": -1}, "policy_config_dict", "push with a positive number"),
    ("NothingToSayPolicy", {"push": 1}, "policy_config_dict.push", "no such option"),
    ("ConstantPolicy", {"push": 0.75}, "policy_config_dict.push", "must be 0.5 or 0.25, got 0.75"),
    ("PathPolicy", {}, "policy_type", "__init__ needs 'checkpoint', but declares no options"),
    ("PositionalPolicy", {}, "policy_type", "defines 'push' by its position"),
    ("BrokenParserPolicy", {}, "policy_type", "add_args_to_parser fails: ArgumentError"),
]


@pytest.mark.parametrize(("policy", "options", "key", "message"), MISTAKES)
def test_options_that_a_policy_does_not_take_are_refused_with_file_job_and_key(
    policy, options, key, message, tmp_path, capsys
):
    path = write_jobs(tmp_path / "jobs.json", [block(policy, options)])
    assert main(["validate", "--json", str(path)]) == 2
    problem = json.loads(capsys.readouterr().out)["problems"][0]
    assert (problem["file"], problem["job"], problem["key"]) == (str(path), "cartpole", key)
    assert message in problem["message"]


@pytest.mark.parametrize(("policy", "message"), [(policy, message) for policy, _, message in IMPOSSIBLE])
def test_a_policy_that_cannot_be_built_as_it_says_fails_its_job_with_a_way_out(output, policy, message):
    job = job_of(output, policy)
    assert job["status"] == "failed"
    assert job["error"].startswith("ConfigError: ")
    assert message in job["error"]


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
    run = ["--num_episodes", "1", "--num_envs", str(NUM_ENVS), "--output_dir", str(tmp_path / "out"), "--no_report"]
    assert play([*run, "--policy_type", f"{MODULE}.{policy}", *rest]) == 0
    (job,) = json.loads((tmp_path / "out" / "run.json").read_text())["jobs"]
    assert job["config"]["environment"] == "cartpole"
    assert ("start" in job["config"]["environment_args"]) == ("--start" in rest)
    assert first_action(tmp_path / "out") == pytest.approx(given)


@pytest.mark.parametrize(
    ("policy", "words", "told"),
    [
        ("ParserPolicy", "--push", "--push: expected one argument"),
        ("ConstantPolicy", "--at_once", r"--when: <object .*> cannot be stored in a job file"),
    ],
)
def test_a_command_line_that_gives_a_policy_no_option_of_a_job_is_refused(capsys, policy, words, told):
    arguments = ["--num_steps", "3", "--policy_type", f"{MODULE}.{policy}", "cartpole", words]
    assert play(arguments) == 2
    assert re.search(told, capsys.readouterr().err)


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
    """A class that says something else in its body."""

    config_class = arena_policies.NudgeCfg


class Again(Other, Middle[EveryKindCfg]):
    """A class that says something else than its base."""


def test_the_parameter_of_a_base_says_what_the_options_are():
    found = [policy_class.config_class for policy_class in (Middle, Below, Other, Again, PolicyBase[None])]
    assert found == [None, EveryKindCfg, arena_policies.NudgeCfg, EveryKindCfg, None]


def test_a_class_is_known_by_its_name_once_its_module_is_loaded_and_loading_it_again_does_no_harm():
    reloaded = importlib.reload(arena_policies)
    assert get_policy_cls("outsider_nudge") is reloaded.NudgePolicy

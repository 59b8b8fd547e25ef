"""Tests of the policy runner's command line, from its words to a job."""

import re
from dataclasses import dataclass

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.options import read_command_line
from isaaclab_arena.evaluation.policy_runner import PolicyOptions, job_block, job_request
from isaaclab_arena.interfaces.policy import PolicyCfg
from tests.fakes import ShrugPolicy


@dataclass(frozen=True)
class KillingCfg(PolicyCfg):
    remote_kill_on_exit: bool = False


class KillingPolicy(ShrugPolicy):
    """A policy of another package that has an option of that name."""

    config_class = KillingCfg


def read(*arguments: str, policy: str = "scripted"):
    options, rest = read_command_line(PolicyOptions, ["--policy_type", policy, *arguments], program="test")
    return options, rest


def job_of(*arguments: str, policy: str = "scripted"):
    options, rest = read("--num_episodes", "2", *arguments, policy=policy)
    [job] = job_request(options, job_block(options, rest)).jobs
    return job.config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--bogus", "3", "reach"), "--bogus: unknown option"),
        (("--bogus", "reach"), "--bogus: unknown option"),
        (("--num_envz=3", "--bogus", "1", "2", "reach"), "--bogus: unknown option"),
        (("--embodimnt", "panda", "reach"), "--embodimnt: unknown option; did you mean '--embodiment'?"),
        (("--recordviewport_video", "reach"), "; did you mean '--record_viewport_video'?"),
        (("reach", "--bogus", "3"), "--bogus: unknown option"),
        (("lift_object", "--object", "cub"), "--object: no object called 'cub'; did you mean 'cube'?"),
        (("lift_object", "--pick_up_object", "cub"), "--pick_up_object: no object called 'cub'"),
        (("lift_object", "--speed", "fast"), '--speed: "fast" is not a number'),
        (("--object", "lift_object"), "--object: stands right before the environment's name 'lift_object'"),
        (("--object", "cube", "lyft_object"), "one environment is needed; name one after the options; --object took"),
        (("reach", "lift_object"), "one environment is needed; got reach lift_object"),
        (("reach", "--environment", "lift_object"), "--environment: names the environment twice"),
    ],
)
def test_a_mistake_is_named_by_the_option_that_was_typed(arguments, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        job_of(*arguments)


def test_options_of_environment_and_policy_may_stand_before_the_environments_name():
    assert job_of("--object", "can", "lift_object") == job_of("lift_object", "--object", "can")
    assert job_of("--speed", "0.5", "lift_object") == job_of("lift_object", "--speed", "0.5")


def test_options_of_the_policy_may_come_from_a_file_and_the_command_line_comes_before_it(tmp_path):
    (tmp_path / "policy.yaml").write_text("speed: 0.5\n")
    config = ("--policy_config", str(tmp_path / "policy.yaml"))
    assert job_of(*config, "reach").policy_config_dict == {"speed": 0.5}
    assert job_of(*config, "reach", "--speed", "0.25").policy_config_dict == {"speed": 0.25}
    # Isaac Lab Arena's name of it, for a policy without an option of that name.
    arenas = ("reach", "--policy_config_yaml_path", str(tmp_path / "policy.yaml"))
    assert job_of(*arenas).policy_config_dict == {"speed": 0.5}
    assert job_of(*arenas, "--speed", "0.25").policy_config_dict == {"speed": 0.25}
    with pytest.raises(ConfigError, match="--policy_config_yaml_path: is the same option as --policy_config"):
        job_of(*config, *arenas)
    (tmp_path / "policy.yaml").write_text("[1]")
    with pytest.raises(ConfigError, match="--policy_config: holds no mapping of the policy's options"):
        job_of(*config, "reach")


def test_what_may_vary_is_shown_without_a_number_of_episodes():
    options, rest = read("--list_variations", "reach")
    assert job_request(options, job_block(options, rest)).jobs
    options, rest = read("reach")
    with pytest.raises(ConfigError, match="give num_episodes or num_steps"):
        job_request(options, job_block(options, rest))


def test_a_refused_flag_goes_to_the_policy_that_declares_it():
    policy = f"{__name__}.KillingPolicy"
    assert job_of("reach", "--remote_kill_on_exit", policy=policy).policy_config_dict == {"remote_kill_on_exit": True}

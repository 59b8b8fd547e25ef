"""Tests of the policy runner's command line, from its words to a job."""

import re
from dataclasses import dataclass, fields

import pytest

from documentation.command_line import groups_of, help_of
from isaaclab_arena.config.arena import FlagsWithoutEffect
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.eval_runner import EvalOptions, read_options
from isaaclab_arena.evaluation.options import ASSIGNMENTS, SPLIT, read_command_line, refuse_unknown
from isaaclab_arena.evaluation.policy_runner import PolicyOptions, job_block, job_request
from isaaclab_arena.interfaces.policy import PolicyCfg
from tests.end_to_end.launching import ROOT
from tests.fakes import ShrugPolicy

JOBS = ("--eval_jobs_config", "jobs.json")


def read(*arguments: str) -> tuple[EvalOptions, list[str]]:
    return read_command_line(EvalOptions, [*JOBS, *arguments], program="test")


@pytest.mark.parametrize(
    ("arguments", "resumed", "rest"),
    [
        # Without a directory it means the run of the same command.
        (("--resume",), "", []),
        (("--resume", "--output_dir", "out"), "", []),
        ((), None, []),
        (("--resume", "out"), "out", []),
        (("--resume", "gone/2026-01-01"), "gone/2026-01-01", []),
        (("--resume=gone",), "gone", []),
        (("--resume", "lift_object"), "", ["lift_object"]),
        (("--resume", "runs.a.policy.path=out/model"), "", ["runs.a.policy.path=out/model"]),
    ],
)
def test_resume_takes_the_directory_that_follows_and_no_other_word(tmp_path, monkeypatch, arguments, resumed, rest):
    monkeypatch.chdir(tmp_path)
    for directory in ("out", "lift_object"):
        (tmp_path / directory).mkdir()
    (tmp_path / "out" / "run.json").touch()
    options, found = read(*arguments)
    assert (options.resume, found) == (resumed, rest)


def test_a_word_after_resume_that_names_no_run_is_refused_as_that():
    options, rest = read("--resume", "outptus")
    with pytest.raises(ConfigError, match=r"--resume: .* 'outptus'"):
        refuse_unknown(rest, options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--retry_errors",), "--retry_errors: needs --resume"),
        (("--cpus_per_rank=nan",), "--cpus_per_rank: nan"),
        (("--gpus_per_rank=-inf",), "--gpus_per_rank: -inf"),
        (("--start_timeout_s=1e400",), "--start_timeout_s: inf"),
        (("--lease_s", "0"), "--lease_s: must be at least 1.0"),
        (("--policy_batch", "0"), "--policy_batch: must be at least 1"),
        (("--step_timeout_s=-1",), "--step_timeout_s: must be at least 0.0"),
        (("--assignment", "dinamic"), "--assignment: .*'dynamic'?"),
        (("--assignment", "contiguous"), ", ".join(sorted(ASSIGNMENTS))),
        (("--tracking", "tensorbord"), "--tracking: .*; did you mean"),
        (("--resume=a", "--output_dir", "b"), "--resume: names 'a', but --output_dir 'b'"),
        (("--record_trajectories", "--no_dataset"), "--record_trajectories: contradicts --no_dataset"),
        (("--output-base-dir", "a", "--video_base_dir", "b"), "--video_base_dir: .*--output_base_dir"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        read(*arguments)[0].check()


def test_split_jobs_is_another_word_for_the_assignment_that_splits():
    assert read("--split_jobs")[0].mode is SPLIT
    for name, each in ASSIGNMENTS.items():
        assert read("--assignment", name)[0].mode is each
        # A job of `policy_runner` is shared, whatever deals whole jobs.
        assert read("--split_jobs", "--assignment", name)[0].mode is (SPLIT if each.deals_whole_jobs else each)


def test_every_assignment_is_in_the_help_and_has_a_row_in_the_document(capsys):
    with pytest.raises(SystemExit):
        read("--help")
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    page = (ROOT / "docs" / "how_to" / "distributed.md").read_text().partition("| `--assignment` |")[2]
    rows = [line.split("|")[1] for line in page.partition("\n\n")[0].splitlines()[2:]]
    assert [re.findall(r"`(\w+)`", row)[0] for row in rows] == [*ASSIGNMENTS]
    for name, each in ASSIGNMENTS.items():
        assert f"{name}: {each.about}" in shown


def test_gpus_may_be_listed_as_arena_and_mjlab_users_type_them():
    for spelling in (("--gpu-ids", "0", "1"), ("--gpu_ids=0 1",), ("--gpu_ids", "0", "1")):
        options, rest = read(*spelling, "--seed", "3")
        assert (options.gpu_ids, options.seed, rest) == ("0 1", 3, [])
    options, rest = read("--gpu-ids", "0", "1", "lift_object")
    assert (options.gpu_ids, rest) == ("0 1", ["lift_object"])
    assert read("--gpu-ids", "None")[0].gpu_ids == "none"
    assert read("--gpu-ids", "")[0].gpu_ids == ""
    assert read()[0].gpu_ids is None


@pytest.mark.parametrize(("command", "options"), [("run", EvalOptions), ("policy", PolicyOptions)])
def test_the_help_is_in_groups_and_names_what_is_ignored_once_and_last(command, options):
    *groups, last = [group for group in groups_of(help_of(command)) if group.says]
    assert [group.title for group in groups] == [
        f"{heading} options" for heading in ("job", "output", "rank", "recording", "film and report", "stopping")
    ]
    assert last.title == "compatibility options"
    ignored = re.findall(r"--(\w+)", last.says)
    assert ignored == [field.name for field in fields(FlagsWithoutEffect)]
    shown = [option.name.split()[0].removeprefix("--") for group in (*groups, last) for option in group.options]
    assert sorted([*shown, *ignored]) == sorted(field.name for field in fields(options))


def test_ignored_options_are_read_wherever_they_stand_and_their_values_checked():
    options, rest = read("--headless", "--seed", "3", "--chunk_size=4", "other")
    assert (options.headless, options.chunk_size, options.seed, rest) == (True, 4, 3, ["other"])
    with pytest.raises(ConfigError, match=r"--chunk_size: must be at least 1"):
        read("--chunk_size", "0")[0].check()


def test_a_job_file_needs_no_option_and_may_stand_anywhere():
    lines = ["jobs.yaml --limit 2", "--limit 2 jobs.yaml", "--gpu_ids 0 1 jobs.yaml", "--resume jobs.yaml"]
    assert {read_options(line.split())[0].eval_jobs_config for line in lines} == {"jobs.yaml"}
    options, overrides = read_options(["runs.lift.num_rebuilds=2", "experiment.yaml", "runs.lift.seed=3"])
    assert options.eval_jobs_config == "experiment.yaml"
    assert overrides == ["runs.lift.num_rebuilds=2", "runs.lift.seed=3"]


@pytest.mark.parametrize(
    ("line", "key", "words"),
    [
        ("", "JOBS", "run jobs.json"),
        ("--jobs mine.yaml", "--jobs", "run mine.yaml"),
        ("--config=mine.yaml", "--config", "run mine.yaml"),
        ("--devise cpu mine.yaml", "--devise", "--device"),
        ("mine.yaml other.yaml", None, "other.yaml"),
        ("--eval_jobs_config mine.yaml other.yaml", None, "other.yaml"),
    ],
)
def test_a_line_without_a_job_file_or_with_two_is_refused_with_the_way_out(line, key, words):
    with pytest.raises(ConfigError, match=words) as refused:
        read_options(line.split(), "isaaclab-arena run")
    assert refused.value.problems[0].key == key


@dataclass(frozen=True)
class KillingCfg(PolicyCfg):
    remote_kill_on_exit: bool = False


class KillingPolicy(ShrugPolicy):
    """A policy of another package that has an option of that name."""

    config_class = KillingCfg


def read_policy_line(*arguments: str, policy: str = "scripted"):
    options, rest = read_command_line(PolicyOptions, ["--policy_type", policy, *arguments], program="test")
    return options, rest


def job_of(*arguments: str, policy: str = "scripted"):
    options, rest = read_policy_line("--num_episodes", "2", *arguments, policy=policy)
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
        (("--object", "lift_object"), "--object: comes right before the environment's name 'lift_object'"),
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
    options, rest = read_policy_line("--list_variations", "reach")
    assert job_request(options, job_block(options, rest)).jobs
    options, rest = read_policy_line("reach")
    with pytest.raises(ConfigError, match="give num_episodes or num_steps"):
        job_request(options, job_block(options, rest))


def test_a_refused_flag_goes_to_the_policy_that_declares_it():
    policy = f"{__name__}.KillingPolicy"
    assert job_of("reach", "--remote_kill_on_exit", policy=policy).policy_config_dict == {"remote_kill_on_exit": True}

"""NaN and infinity, thousands of ranks, directories that lead astray and characters that steer a terminal."""

import dataclasses
import json
import os
import typing

import pytest

from isaaclab_arena import ConfigError
from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.config.options import read_options, refuse_wrong_numbers
from isaaclab_arena.distributed.launching.launch import launch_if_asked, most_processes
from isaaclab_arena.distributed.launching.launch_options import LaunchOptions
from isaaclab_arena.evaluation import eval_runner
from isaaclab_arena.evaluation.eval_runner import EvalOptions
from isaaclab_arena.evaluation.options import RunOptions, read_command_line
from isaaclab_arena.evaluation.policy_runner import PolicyOptions, job_block
from isaaclab_arena.evaluation.startup.output_directory import make_output_directory
from isaaclab_arena.training.settings.options import TrainOptions, read_train_options
from isaaclab_arena_gr00t.training.options import FinetuneOptions
from tests.end_to_end.mistakes import GOOD, mistaken

NO_NUMBERS = ["nan", "inf", "-inf", "1e400", "-1e400"]

RUNNERS = ((EvalOptions, ["--eval_jobs_config", "x"]), (PolicyOptions, ["--policy_type", "x"]))


def number_options(options_class: type) -> list[str]:
    """Return the options of a command line that take a number with a point."""
    hints = typing.get_type_hints(options_class)
    return [field.name for field in dataclasses.fields(options_class) if "float" in str(hints[field.name])]


def options(name: str, value: object) -> EvalOptions:
    return dataclasses.replace(EvalOptions(eval_jobs_config="x"), **{name: value})


@pytest.mark.parametrize("text", NO_NUMBERS)
@pytest.mark.parametrize(
    ("options_class", "needed", "option"),
    [
        (options_class, needed, option)
        for options_class, needed in (
            (EvalOptions, ["--eval_jobs_config", "x"]),
            (PolicyOptions, ["--policy_type", "x"]),
        )
        for option in number_options(options_class)
    ],
)
def test_every_number_of_the_runners_is_finite(options_class, needed, option, text):
    with pytest.raises(ConfigError) as caught:
        read_command_line(options_class, [*needed, f"--{option}={text}"], program="x")[0].check()
    assert str(caught.value) == f"--{option}: {float(text)} is no finite number"


def test_the_runners_have_numbers_for_these_tests():
    assert number_options(RunOptions) == ["env_spacing", "video_fps", "lease_s", "step_timeout_s", "build_timeout_s"]


@pytest.mark.parametrize("text", NO_NUMBERS)
@pytest.mark.parametrize("option", number_options(FinetuneOptions))
def test_every_number_of_the_model_training_is_finite(tmp_path, option, text):
    training = dataclasses.replace(FinetuneOptions(dataset=("x",), output_dir=tmp_path), **{option: float(text)})
    with pytest.raises(ConfigError, match=f"--{option}: {float(text)} is no finite number"):
        training.check()


def test_a_training_would_refuse_such_numbers_too():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Later(TrainOptions):
        rate: float = 1.0

    with pytest.raises(ConfigError, match="--rate: nan is no finite number"):
        refuse_wrong_numbers(Later(rate=float("nan")))
    assert read_train_options(["reach"], program="x")[1] == "reach"


@pytest.mark.parametrize("text", ["1e400", "-1e400", "1" + "0" * 400])
def test_every_number_of_a_job_file_is_finite(tmp_path, text, capsys):
    for key in ("num_episodes", "num_steps", "num_rebuilds", "seed", "timeout_s", "episode_timeout_s"):
        block = {**GOOD, key: 7}
        (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [block]}).replace('": 7', f'": {text}'))
        assert eval_runner.main(["--eval_jobs_config", str(tmp_path / "jobs.json")]) == 2
        assert "jobs.json: holds" in capsys.readouterr().err.replace("\n", "")


@dataclasses.dataclass(frozen=True)
class Options:
    number: float = 0.0
    numbers: tuple[float, ...] = ()
    named: dict[str, float] | None = None


@pytest.mark.parametrize(
    "given", [{"number": 10**309}, {"numbers": [1.0, 10**309]}, {"named": {"a": 10**309}}, {"number": -(10**400)}]
)
def test_an_option_that_would_become_infinite_is_refused(given):
    (key,) = given
    with pytest.raises(ConfigError) as caught:
        read_options(Options, given, owner="x")
    assert caught.value.problems[0].key == key
    assert "is no finite number" in str(caught.value)


def test_the_largest_number_is_still_one():
    assert read_options(Options, {"number": 10**308}, owner="x").number == 1e308


@pytest.mark.parametrize("text", ["nan", "inf", "1e400", "1" + "0" * 500])
def test_an_option_of_the_environment_that_is_no_number_is_refused(text):
    block = job_block(PolicyOptions(policy_type="zero_action", num_steps=1), ["reach", "--camera_size", text])
    assert isinstance(block["arena_env_args"]["camera_size"], str)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400", "[1, NaN]"])
def test_a_variation_that_is_no_number_is_refused(text):
    with pytest.raises(ConfigError, match=r"cube\.mass\.sampler_cfg\.low: .* is no finite number"):
        job_block(PolicyOptions(policy_type="zero_action"), ["reach", f"cube.mass.sampler_cfg.low={text}"])


def test_an_interpolation_that_becomes_no_number_is_refused():
    with pytest.raises(ConfigError, match=r"policy_config_dict\.a: .* becomes a number that is not finite"):
        read_jobs(mistaken(policy_config_dict={"a": '${oc.decode:"1e400"}'}), source="x")


def test_a_hundred_thousand_ranks_are_refused_before_the_first_is_started():
    with pytest.raises(ConfigError, match=r"--nproc_per_node: 100000 ranks are more than this machine can hold"):
        launch_if_asked(LaunchOptions(nproc_per_node=100_000), module="none", arguments=[])


def test_one_rank_more_than_a_machine_holds_is_refused(monkeypatch):
    most = most_processes(os.cpu_count() or 1)
    # A rank starts no others, so that nothing starts here should this not be refused.
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match=f"--nproc_per_node: {most + 1} ranks are more .* at most {most} are started"):
        launch_if_asked(LaunchOptions(nproc_per_node=most + 1), module="none", arguments=[])
    with pytest.raises(ConfigError, match="RANK or LOCAL_RANK is set"):
        launch_if_asked(LaunchOptions(nproc_per_node=most), module="none", arguments=[])


def test_a_machine_holds_four_ranks_for_each_core_and_at_least_sixty_four():
    assert [most_processes(cores) for cores in (1, 2, 16, 17, 128)] == [64, 64, 64, 68, 512]


@pytest.mark.parametrize(
    ("option", "most"),
    [("num_threads", 4096), ("torch_threads", 4096), ("policy_batch", 1_000_000), ("pipeline", 1_000_000)],
)
def test_counts_of_the_command_line_have_a_limit(option, most):
    options(option, most).check()
    with pytest.raises(ConfigError, match=f"--{option}: must be at most {most}, got {most + 1}"):
        options(option, most + 1).check()


def test_a_way_up_in_the_name_of_a_directory_makes_no_directory_on_the_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = make_output_directory(output_dir="a/nodir/../../b", output_base_dir="")
    assert made == tmp_path / "b"
    assert make_output_directory(output_dir=None, output_base_dir="c/../d").parent == tmp_path / "d"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "d"]


def test_a_way_up_through_a_link_leads_where_the_link_leads(tmp_path):
    (tmp_path / "far" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "inner")
    made = make_output_directory(output_dir=f"{tmp_path}/link/../out", output_base_dir="")
    assert made == tmp_path / "far" / "out"


@pytest.mark.parametrize("option", ["output_dir", "output_base_dir", "save_conditions", "launcher_log_dir"])
@pytest.mark.parametrize("wicked", ["a\x1b[2Jb", "a\nb", "a\x9b31m", "a\u202eb", "a\u200bb", "a\x07"])
def test_a_directory_with_characters_that_steer_a_terminal_is_refused(option, wicked):
    with pytest.raises(ConfigError, match=f"--{option}: .* holds a character that steers a terminal") as caught:
        options(option, wicked).check()
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


def test_nothing_is_made_of_a_directory_with_an_escape_character_and_nothing_escapes(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs\x1b.json").write_text(json.dumps(mistaken()))
    assert eval_runner.main(["--eval_jobs_config", "jobs\x1b.json", "--output_dir", "out\x1b[2J"]) == 2
    assert eval_runner.main(["--eval_jobs_config", "none\x1b.json", "--output_dir", "out"]) == 2
    shown = capfd.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert [path.name for path in tmp_path.iterdir()] == ["jobs\x1b.json"]

"""NaN and infinity, thousands of ranks, directories that lead astray and characters that steer a terminal."""

import json
import os
import re
import shlex
from collections.abc import Callable

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation import eval_runner, policy_runner
from isaaclab_arena_gr00t.training import finetune
from tests.end_to_end.mistakes import GOOD, mistaken

NO_NUMBERS = ["nan", "inf", "-inf", "1e400", "-1e400"]

PROGRAMS = {
    "eval_runner": (eval_runner.main, "--eval_jobs_config x"),
    "policy_runner": (policy_runner.main, "--policy_type x"),
    "finetune": (finetune.main, "--dataset x --output_dir none"),
}
"""Programs, and the options that each of them needs."""


@pytest.fixture
def number_options(capsys) -> Callable[[str], list[str]]:
    """Return the options of a program that take a number with a point, as its help shows them."""

    def number_options(program: str) -> list[str]:
        with pytest.raises(SystemExit):
            PROGRAMS[program][0](["--help"])
        return re.findall(r"--(\w+) (?:\{None\}\|)?FLOAT", capsys.readouterr().out)

    return number_options


@pytest.fixture
def refusal(capsys) -> Callable[..., str]:
    """Return a program's refusal of a command line."""

    def refusal(program: str, *arguments: str) -> str:
        program_main, needed = PROGRAMS[program]
        assert program_main([*shlex.split(needed), *arguments]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        return shown.err.removeprefix("error: ").removesuffix("\n")

    return refusal


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_number_of_a_program_is_finite(number_options, refusal, program):
    options = number_options(program)
    known = {"video_fps", "lease_s", "step_timeout_s", "build_timeout_s"}
    # The help of the runners only names the spacing.
    options, known = (options, set()) if program == "finetune" else ([*options, "env_spacing"], known)
    assert known <= set(options)
    # Of these, what a cluster needs is said first.
    for option in {*options} - {"cpus_per_rank", "gpus_per_rank", "start_timeout_s"}:
        for text in NO_NUMBERS:
            assert refusal(program, f"--{option}={text}") == f"--{option}: {float(text)} is no finite number"


@pytest.mark.parametrize("text", ["1e400", "-1e400", "1" + "0" * 400])
def test_every_number_of_a_job_file_is_finite(tmp_path, text, capsys):
    for key in ("num_episodes", "num_steps", "num_rebuilds", "seed", "timeout_s", "episode_timeout_s"):
        block = {**GOOD, key: 7}
        (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [block]}).replace('": 7', f'": {text}'))
        assert eval_runner.main(["--eval_jobs_config", str(tmp_path / "jobs.json")]) == 2
        assert "jobs.json: holds" in capsys.readouterr().err.replace("\n", "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        *((["--camera_size", text], r"job 'reach': --camera_size: ") for text in ("nan", "1e400", "1" + "0" * 500)),
        *(
            ([f"cube.mass.sampler_cfg.low={text}"], r"cube\.mass\.sampler_cfg\.low: .* is no finite number")
            for text in ("NaN", "-Infinity", "1e400", "[1, NaN]")
        ),
    ],
)
def test_an_option_of_the_environment_or_a_variation_that_is_no_number_is_refused(words, told, capsys):
    assert policy_runner.main(["--policy_type", "zero_action", "--num_steps", "1", "reach", *words]) == 2
    assert re.search(told, capsys.readouterr().err)


def test_an_interpolation_that_becomes_no_number_is_refused(tmp_path, capsys):
    (tmp_path / "jobs.json").write_text(json.dumps(mistaken(policy_config_dict={"a": '${oc.decode:"1e400"}'})))
    assert main(["validate", "--json", str(tmp_path / "jobs.json")]) == 2
    problem = json.loads(capsys.readouterr().out)["problems"][0]
    assert problem["key"] == "policy_config_dict.a"
    assert "becomes a number that is not finite" in problem["message"]


def test_more_ranks_than_a_machine_holds_are_refused_before_the_first_is_started(refusal, monkeypatch):
    most = max(64, 4 * (os.cpu_count() or 1))
    # A rank starts no others, so that nothing starts here should this not be refused.
    monkeypatch.setenv("RANK", "0")
    for ranks in (most + 1, 100_000):
        told = refusal("eval_runner", "--nproc_per_node", str(ranks))
        assert re.match(f"--nproc_per_node: {ranks} ranks are more .* at most {most} are started", told)
    assert "RANK or LOCAL_RANK is set" in refusal("eval_runner", "--nproc_per_node", str(most))


@pytest.mark.parametrize(
    ("option", "most"),
    [("num_threads", 4096), ("torch_threads", 4096), ("policy_batch", 1_000_000), ("pipeline", 1_000_000)],
)
def test_counts_of_the_command_line_have_a_limit(refusal, option, most):
    # The job file is what is wrong then.
    assert refusal("eval_runner", f"--{option}", str(most)) == "x: there is no such file"
    told = refusal("eval_runner", f"--{option}", str(most + 1))
    assert f"--{option}: must be at most {most}, got {most + 1}" in told


@pytest.mark.parametrize("option", ["output_dir", "output_base_dir", "save_conditions", "launcher_log_dir"])
def test_a_directory_with_characters_that_steer_a_terminal_is_refused(refusal, option):
    for wicked in ("a\x1b[2Jb", "a\nb", "a\x9b31m", "a\u202eb", "a\u200bb", "a\x07"):
        told = refusal("eval_runner", f"--{option}", wicked)
        assert re.match(f"--{option}: .* holds a control character", told)
        assert told.isascii()
        assert told.isprintable()


def test_nothing_is_made_of_a_directory_with_an_escape_character_and_nothing_escapes(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs\x1b.json").write_text(json.dumps(mistaken()))
    assert eval_runner.main(["--eval_jobs_config", "jobs\x1b.json", "--output_dir", "out\x1b[2J"]) == 2
    assert eval_runner.main(["--eval_jobs_config", "none\x1b.json", "--output_dir", "out"]) == 2
    shown = capfd.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert [path.name for path in tmp_path.iterdir()] == ["jobs\x1b.json"]

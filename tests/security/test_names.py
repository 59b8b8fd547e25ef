"""What users and their code call things acts neither on a screen nor in a log, a spreadsheet or a path."""

import csv
import io
import json
import logging
import unicodedata
from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.evaluation import eval_runner
from isaaclab_arena.logs import log_file, plain_text, set_up_console_logging
from isaaclab_arena.policies import PolicyBase
from isaaclab_arena.recording.captions import caption_bar
from isaaclab_arena.results.result_files import csv_text
from isaaclab_arena.storage.json_values import json_line, json_text
from tests.environments.gym.gym_mischief import ID

WICKED = [
    "\x1b[2J\x1b[31mred",
    "over\rwritten",
    "back\b\b",
    "\x9b31m",
    "\u202eevil",
    "a\u2066b",
    "a\u2028b",
    "half \udcff",
]
STEERING = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def steers(text: str) -> set[str]:
    """Return what in a text would steer a terminal, its lines and tabs apart."""
    return {character for character in text if unicodedata.category(character) in STEERING and character not in "\n\t"}


def evaluate(directory: Path, job: dict) -> int:
    block = {"name": "a", "arena_env_args": {"environment": "reach"}, "policy_type": "zero_action", "num_steps": 3}
    (directory / "jobs.json").write_text(json.dumps({"jobs": [{**block, **job}]}))
    return eval_runner.main(
        ["--eval_jobs_config", str(directory / "jobs.json"), "--output_dir", str(directory / "out"), "--no_dataset"]
    )


@pytest.mark.parametrize("text", WICKED)
def test_plain_text_steers_nothing_and_can_be_encoded(text):
    assert not steers(plain_text(text))
    assert plain_text(text).encode()
    assert "\n" not in plain_text(f"{text}\nb\tc")
    assert plain_text("b\n\tc", keep_lines=True) == "b\n\tc"


@pytest.mark.parametrize(
    "text",
    ["lift cube", "W\u00fcrfel", "\u5b57", "\u06a9\u062a\u0627\u0628\u200c\u0647\u0627", "\U0001f468\u200d\U0001f469"],
)
def test_plain_text_leaves_every_script_as_it_is(text):
    assert plain_text(text) == text


@pytest.mark.parametrize("text", WICKED[:-1])
def test_a_mistake_is_shown_without_what_it_would_do_to_the_screen(tmp_path, capfd, text):
    wrong = {"arena_env_args": {"environment": f"reach{text}"}, "policy_type": f"zero{text}", f"key{text}": 1}
    assert evaluate(tmp_path, wrong) == 2
    assert evaluate(tmp_path, {"arena_env_args": {"environment": f"reach{text}"}, "policy_type": f"a.{text}.b"}) == 2
    shown = capfd.readouterr()
    assert "unknown key" in shown.err
    assert "no environment called" in shown.err
    assert not steers(shown.out + shown.err)


def test_log_lines_are_plain_on_the_screen_and_in_the_file(tmp_path, capfd):
    set_up_console_logging(0)
    with log_file(tmp_path / "rank0.log", 0):
        for text in WICKED:
            logging.getLogger("isaaclab_arena.test").warning("job '%s'", text)
    shown = capfd.readouterr().err
    written = (tmp_path / "rank0.log").read_text(encoding="utf-8")
    assert shown.count("job '") == written.count("job '") == len(WICKED)
    assert not steers(shown + written)
    assert "Logging error" not in shown


@pytest.mark.parametrize("text", WICKED)
def test_json_says_the_same_and_steers_nothing(text):
    for written in (json_line({text: [text]}), json_text({text: [text]}).rstrip("\n")):
        assert not steers(written)
        if not text.endswith("\udcff"):
            assert json.loads(written) == {text: [text]}
        assert json.loads(written.encode())


@pytest.mark.parametrize(
    "cell", ["=cmd()", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1dcmd()", "\uff20a", "\x00=1", *WICKED[:-1]]
)
def test_a_cell_neither_runs_in_a_spreadsheet_nor_steers_a_terminal(cell):
    table = pd.DataFrame({"text": pd.array([cell], dtype="string"), "mixed": pd.Series([cell], dtype=object)})
    text = csv_text(table)
    [cells] = csv.DictReader(io.StringIO(text))
    assert not steers(text)
    assert all(value[0] not in "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20" for value in cells.values())


def test_numbers_in_a_table_are_no_formulas():
    assert csv_text(pd.DataFrame({"a": [-1.5], "b": pd.array([-2], dtype="Int64")})) == "a,b\n-1.5,-2\n"


class MutteringPolicy(PolicyBase[None]):
    """Follows another instruction than it is told, and one that is no text for a screen."""

    def get_action(self, env, observation):
        import torch  # noqa: PLC0415

        return torch.zeros(env.num_envs, *env.action_spec.shape)

    def set_task_description(self, task_description):
        return "=HYPERLINK()\x1b[2J\r\u202e"


@pytest.mark.parametrize("instruction", [None, "=cmd()|\x1b[31m\r\u202eevil"])
def test_instructions_and_error_texts_are_harmless_wherever_a_run_writes_them(tmp_path, capfd, instruction):
    job = {
        "arena_env_args": {
            "environment": f"gym:{ID}",
            "make_kwargs": {"mischief": "wicked error"},
            "task_description": "\x1b[2J=task\r",
        },
        "policy_type": f"{__name__}.MutteringPolicy",
        "num_steps": 6,
    }
    # All episodes end in an error, so the job fails.
    assert evaluate(tmp_path, job | ({"language_instruction": instruction} if instruction else {})) == 1
    shown = capfd.readouterr()
    assert not steers(shown.out + shown.err)
    files = [path for path in (tmp_path / "out").rglob("*") if path.suffix in {".csv", ".json", ".jsonl", ".log"}]
    assert len(files) >= 5
    for path in files:
        assert not steers(path.read_bytes().decode("utf-8")), path
    episodes = pd.read_csv(tmp_path / "out" / "episodes.csv")
    assert set(episodes["outcome"]) == {"error"}
    assert all(not str(cell).startswith("=") for cell in episodes.to_numpy().ravel())
    instructions = pd.read_parquet(tmp_path / "out" / "episodes.parquet")["language_instruction"]
    assert all(text.startswith("=HYPERLINK()") for text in instructions)


@pytest.mark.parametrize("name", ["<script>alert(1)<", "=HYPERLINK()", "\u5b57" * 60, "\U0001f916", "x" * 80])
def test_any_name_that_is_accepted_fits_into_a_caption(name):
    assert caption_bar(320, [f"{name}, episode 1", "episode 1"]).shape[1] == 320

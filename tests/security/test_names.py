"""What users and their code call things acts neither on a screen nor in a log, a spreadsheet or a path."""

import json
import unicodedata
from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.evaluation import eval_runner
from isaaclab_arena.policies import PolicyBase
from tests.environments.gym.gym_mischief import ID

WICKED = ["\x1b[2J\x1b[31mred", "over\rwritten", "back\b\b", "\x9b31m", "\u202eevil", "a\u2066b", "a\u2028b"]
WICKED += ["half \udcff"]
STEERING = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def steers(text: str) -> set[str]:
    """Return the characters of a text that would steer a terminal, without lines and tabs."""
    return {character for character in text if unicodedata.category(character) in STEERING and character not in "\n\t"}


def evaluate(directory: Path, job: dict) -> int:
    block = {"name": "a", "arena_env_args": {"environment": "reach"}, "policy_type": "zero_action", "num_steps": 3}
    (directory / "jobs.json").write_text(json.dumps({"jobs": [{**block, **job}]}))
    return eval_runner.main(
        ["--eval_jobs_config", str(directory / "jobs.json"), "--output_dir", str(directory / "out"), "--no_dataset"]
    )


@pytest.mark.parametrize("text", WICKED[:-1])
def test_a_mistake_is_shown_without_what_it_would_do_to_the_screen(tmp_path, capfd, text):
    wrong = {"arena_env_args": {"environment": f"reach{text}"}, "policy_type": f"zero{text}", f"key{text}": 1}
    assert evaluate(tmp_path, wrong) == 2
    assert evaluate(tmp_path, {**wrong, "policy_type": f"a.{text}.b"}) == 2
    shown = capfd.readouterr()
    assert "unknown key" in shown.err
    assert "no environment called" in shown.err
    assert not steers(shown.out + shown.err)


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

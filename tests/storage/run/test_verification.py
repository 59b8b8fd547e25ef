import dataclasses

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.storage.reports import EpisodeVerification, RunVerification, read_verification, write_verification

BITWISE = EpisodeVerification(job="lift", episode_index=3, is_same=True, is_bitwise=True, verdict="bitwise")
FOUND = RunVerification(
    verified_at="2026-01-02T03:04:05.000+00:00",
    sources={"lift/episode_results_rank0.jsonl": 12},
    num_episodes=1_200,
    problems=(),
    episodes=(BITWISE, dataclasses.replace(BITWISE, episode_index=7)),
    is_sound=True,
)


def test_what_was_found_is_read_again_and_the_last_one_counts(tmp_path):
    assert read_verification(tmp_path) is None
    write_verification(tmp_path, dataclasses.replace(FOUND, is_sound=False))
    write_verification(tmp_path, FOUND)
    assert read_verification(tmp_path) == FOUND
    assert [path.name for path in tmp_path.iterdir()] == ["verification.json"]


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "verification.json").write_text("{")
    with pytest.raises(ConfigError, match=r"verification.json: is not valid JSON"):
        read_verification(tmp_path)


def test_what_was_found_is_a_sentence():
    assert FOUND.in_words() == (
        "the files of 1,200 episodes are whole; 2 of 2 episodes ran again bitwise the same (lift 3, 7)"
    )
    ended = dataclasses.replace(BITWISE, job="reach", is_bitwise=False, verdict="ended the same")
    differs = dataclasses.replace(ended, is_same=False, verdict="differs first at control step 17")
    worse = dataclasses.replace(FOUND, problems=("job 'lift': demo_2 is damaged", "more"), episodes=(ended, differs))
    assert worse.in_words() == (
        "wrong with the files: job 'lift': demo_2 is damaged, and 1 more; 1 ended the same (reach 3); "
        "reach 3 differs first at control step 17"
    )
    assert dataclasses.replace(FOUND, episodes=()).in_words().endswith("; no episode ran again")

"""Tests of a run written as Isaac Lab Arena's files, read back by a reader that knows only the files."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, NoReturn

import pytest

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.results.exports import export_arena
from isaaclab_arena.storage.ledger import ReportedStatus
from tests.results.evidence import commit_lines, planned, report, write_job, write_lines, write_plan, write_report

EPISODES_FILE = re.compile(r"episode_results_rebuild(\d+)\.jsonl")
FIELDS = {
    "job_name": str,
    "env_id": int,
    "episode_in_env": int,
    "language_instruction": (str, type(None)),
    "seed": (int, type(None)),
    "success": (bool, type(None)),
    "episode_length": int,
    "timestamp": str,
    "variations": dict,
}


def no_number(text: str) -> NoReturn:
    raise AssertionError(f"{text} is no JSON")


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=no_number)


def read(directory: Path) -> dict[str, dict[int, list[dict[str, Any]]]]:
    """Return episodes by job and rebuild, found as Arena's tools find them: by the names of files."""
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for path in sorted(directory.rglob("*.jsonl")):
        match = EPISODES_FILE.fullmatch(path.name)
        assert match, path
        found.setdefault(path.parent.name, {})[int(match[1])] = [strict(line) for line in path.read_text().splitlines()]
    return found


@pytest.fixture
def export(tmp_path):
    def write() -> Path:
        export_arena(tmp_path / "run", tmp_path / "exported")
        return tmp_path / "exported"

    (tmp_path / "run").mkdir()
    return write


@pytest.fixture
def run(tmp_path, export) -> Path:
    return tmp_path / "run"


def test_every_episode_is_a_line_with_arenas_fields(run, export):
    write_job(run, "sfteu", num_episodes=5)
    [episodes] = read(export())["lift"].values()
    for episode in episodes:
        assert list(episode) == list(FIELDS)
        assert all(isinstance(episode[name], kind) for name, kind in FIELDS.items())
    assert [episode["success"] for episode in episodes] == [True, False, False, None, None]
    assert {episode["job_name"] for episode in episodes} == {"lift"}


def test_progress_is_written_where_there_is_some(run, export):
    write_plan(run, planned(num_episodes=2))
    progress = {"overall_score": 0.5, "all_complete": False, "criteria": {}}
    first, second = commit_lines("sf")
    write_lines(run, [dataclasses.replace(first, progress=progress), second])
    write_report(run, report())
    [episodes] = read(export())["lift"].values()
    assert [episode.get("progress") for episode in episodes] == [progress, None]


def test_an_episode_is_known_by_its_environment_and_its_place_there(run, export):
    """Two ranks and two attempts each have an environment 0 whose first episode is 0."""
    write_plan(run, planned(num_episodes=24), world_size=2)
    own = [commit_lines("ssssss", first=6 * part, rank=part % 2) for part in range(4)]
    for part, lines in enumerate(own):
        attempt = 1 + part // 2
        write_lines(
            run, [dataclasses.replace(line, attempt=attempt, timestamp=f"2026-01-0{attempt}") for line in lines]
        )
        write_report(run, report(rank=part % 2, attempt=attempt))
    [episodes] = read(export())["lift"].values()
    identities = [(episode["env_id"], episode["episode_in_env"]) for episode in episodes]
    assert len(set(identities)) == 24
    assert {env_id for env_id, _ in identities} == set(range(8))
    places: dict[int, list[int]] = {}
    for env_id, place in identities:
        places.setdefault(env_id, []).append(place)
    assert all(found == list(range(len(found))) for found in places.values())


def test_each_rebuild_has_a_file_with_its_own_episodes(run, export):
    write_job(run, "sssssss", num_episodes=7, num_rebuilds=3)
    by_rebuild = read(export())["lift"]
    assert {index: [each["episode_length"] - 10 for each in found] for index, found in by_rebuild.items()} == {
        0: [0, 1, 2],
        1: [3, 4],
        2: [5, 6],
    }
    assert all(episode["episode_in_env"] == 0 for found in by_rebuild.values() for episode in found)


def test_the_experiments_result_holds_the_same_episodes(run, export):
    write_plan(
        run,
        planned("lift", num_episodes=3, policy_config={"policy_variant": "pi05"}),
        planned("reach", index=1, environment="reach", policy_type="my.module.Waves"),
        planned("left", index=2, status=JobStatus.COMPLETED),
    )
    write_lines(run, commit_lines("sfs"))
    write_report(run, report())
    write_report(run, report("reach", status=ReportedStatus.FAILED))
    exported = export()
    runs = strict((exported / "arena_experiment_result.json").read_text())["runs"]
    assert list(runs) == ["lift", "reach"]
    assert runs["lift"]["environment"] == {"name": "lift_object", "definition": "lift_object"}
    assert (runs["lift"]["policy_variant"], runs["lift"]["status"]) == ("pi05", "completed")
    assert runs["lift"]["rebuilds"] == [{"index": 0, "episodes": read(exported)["lift"][0]}]
    assert (runs["reach"]["policy_variant"], runs["reach"]["status"], runs["reach"]["rebuilds"]) == (
        "Waves",
        "failed",
        [],
    )
    assert not (exported / "reach").exists()


def test_the_manifest_says_what_each_run_was(run, export):
    labels = {"task": "lifting", "policy": "ours"}
    write_plan(
        run,
        planned(labels=labels, num_rebuilds=2, language_instruction="lift"),
        planned("b", index=1),
    )
    manifest = strict((export() / "experiment_manifest.json").read_text())
    assert manifest["schema_version"] == 1
    assert (manifest["source"], manifest["label_source"]) == ("experiment_runner", "configured")
    assert manifest["created_at"] == "2026-01-01T00:00:00+00:00"
    first, second = manifest["runs"]
    assert first == {
        "name": "lift",
        "task": "lifting",
        "policy": "ours",
        "environment": "lift_object",
        "policy_type": "zero_action",
        "num_episodes": 10,
        "num_rebuilds": 2,
        "num_envs": 4,
        "language_instruction": "lift",
        "variations": {},
    }
    assert (second["task"], second["policy"]) == ("lift_object", "zero_action")


def test_no_file_holds_what_is_no_json(run, export):
    write_plan(run, planned(num_episodes=1, policy_config={}))
    write_lines(run, [dataclasses.replace(line, conditions={"cube.x": float("nan")}) for line in commit_lines("s")])
    write_report(run, report())
    exported = export()
    assert read(exported)["lift"][0][0]["variations"] == {"cube.x": None}
    strict((exported / "arena_experiment_result.json").read_text())


def test_a_job_that_completed_without_an_episode_has_an_empty_file(run, export):
    write_plan(run, planned(num_episodes=None, num_steps=3))
    write_report(run, report())
    assert read(export()) == {"lift": {0: []}}


def test_a_run_of_which_nothing_was_to_run_is_refused(run, export):
    write_plan(run, planned(status=JobStatus.COMPLETED))
    with pytest.raises(ConfigError, match="no job to export"):
        export()


def test_videos_are_found_by_the_episode_of_their_line(run, export):
    """As Arena's report does: by rebuild, environment and place in their names."""
    write_plan(run, planned(num_episodes=10, num_rebuilds=2), world_size=2)
    first, second = commit_lines("sssss"), commit_lines("fffff", first=5, rank=1)
    write_lines(run, first)
    write_lines(run, second)
    for rank in (0, 1):
        write_report(run, report(rank=rank))
    videos = run / "lift" / "videos"
    videos.mkdir()
    for line in (*first, *second):
        for name in (
            "robot-cam-rebuild{k}-env{n}-wrist_cam_rgb-episode-{e}.mp4",
            "viewport-rebuild{k}-env{n}-episode-{e}.mp4",
        ):
            video = videos / name.format(k=line.rank, n=line.env_id, e=line.episode_index)
            video.write_text(f"{line.length}")
    (videos / "contact_sheet.png").write_text("")
    (videos / "robot-cam-env0-wrist_cam_rgb-episode-77.mp4").symlink_to("/etc/hostname")
    exported = export()
    name = re.compile(r"(.+?)(?:-rebuild(\d+))?-env(\d+)-(.+)-episode-(\d+)\.mp4")
    by_episode: dict[tuple[int, int, int], dict[str, str]] = {}
    for path in (exported / "lift").glob("*.mp4"):
        match = name.fullmatch(path.name)
        assert match, path.name
        episode = (int(match[2]), int(match[3]), int(match[5]))
        by_episode.setdefault(episode, {})[match[4]] = path.read_text()
    lines = {
        (index, line["env_id"], line["episode_in_env"]): str(line["episode_length"])
        for index, found in read(exported)["lift"].items()
        for line in found
    }
    assert by_episode == {key: {"wrist_cam_rgb": length, "viewport": length} for key, length in lines.items()}
    assert len(by_episode) == 10

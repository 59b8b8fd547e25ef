"""Runs written as Isaac Lab Arena's files, read back by their names alone, and as tables of a paper."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, NoReturn

import pytest

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.results.exports import export_arena, export_latex
from isaaclab_arena.results.merge import merge_results, write_tables
from isaaclab_arena.storage.ledger import ReportedStatus
from tests.results.evidence import commit_lines, planned, report, write_job, write_lines, write_plan, write_report
from tests.results.test_summary import write_suites

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


def strict(text: str) -> Any:
    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def read(directory: Path) -> dict[str, dict[int, list[dict[str, Any]]]]:
    """Return episodes by job and rebuild, found as Arena's tools find them: by the names of files."""
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for path in sorted(directory.rglob("*.jsonl")):
        match = EPISODES_FILE.fullmatch(path.name)
        assert match, path
        found.setdefault(path.parent.name, {})[int(match[1])] = [strict(line) for line in path.read_text().splitlines()]
    return found


def export(run: Path) -> Path:
    export_arena(run, run.parent / "exported")
    return run.parent / "exported"


@pytest.fixture
def run(tmp_path) -> Path:
    return tmp_path / "run"


def test_every_episode_is_a_line_with_arenas_fields_and_progress_where_there_is_some(run):
    write_plan(run, planned(num_episodes=5))
    progress = {"overall_score": 0.5, "all_complete": False, "criteria": {}}
    first, *others = commit_lines("sfteu")
    write_lines(run, [dataclasses.replace(first, conditions={"cube.x": float("nan")}), *others[:-1]])
    write_lines(run, [dataclasses.replace(others[-1], progress=progress)])
    write_report(run, report())
    exported = export(run)
    [episodes] = read(exported)["lift"].values()
    for episode in episodes:
        assert list(episode) == [*FIELDS, *(["progress"] if episode is episodes[-1] else [])]
        assert all(isinstance(episode[name], kind) for name, kind in FIELDS.items())
    assert [episode["success"] for episode in episodes] == [True, False, False, None, None]
    assert {episode["job_name"] for episode in episodes} == {"lift"}
    assert (episodes[0]["variations"], episodes[-1]["progress"]) == ({"cube.x": None}, progress)
    strict((exported / "arena_experiment_result.json").read_text())


def test_an_episode_is_known_by_its_environment_and_its_place_there(run):
    """Two ranks and two attempts each have an environment 0 whose first episode is 0."""
    write_plan(run, planned(num_episodes=24), world_size=2)
    for part in range(4):
        rank, attempt = part % 2, 1 + part // 2
        lines = commit_lines("ssssss", first=6 * part, rank=rank)
        own = {"attempt": attempt, "timestamp": f"2026-01-0{attempt}"}
        write_lines(run, [dataclasses.replace(line, **own) for line in lines])
        write_report(run, report(rank=rank, attempt=attempt))
    [episodes] = read(export(run))["lift"].values()
    places: dict[int, list[int]] = {}
    for episode in episodes:
        places.setdefault(episode["env_id"], []).append(episode["episode_in_env"])
    assert (len(episodes), set(places)) == (24, set(range(8)))
    assert all(found == list(range(len(found))) for found in places.values())


def test_each_rebuild_has_a_file_with_its_own_episodes(run):
    write_job(run, "sssssss", num_episodes=7, num_rebuilds=3)
    by_rebuild = read(export(run))["lift"]
    lengths = {index: [each["episode_length"] - 10 for each in found] for index, found in by_rebuild.items()}
    assert lengths == {0: [0, 1, 2], 1: [3, 4], 2: [5, 6]}
    assert all(episode["episode_in_env"] == 0 for found in by_rebuild.values() for episode in found)


def test_the_experiments_result_holds_the_same_episodes(run):
    write_plan(
        run,
        planned("lift", num_episodes=3, policy_config={"policy_variant": "pi05"}),
        planned("reach", index=1, environment="reach", policy_type="my.module.Waves"),
        planned("left", index=2, status=JobStatus.COMPLETED),
        planned("short", index=3, num_episodes=None, num_steps=3),
    )
    write_lines(run, commit_lines("sfs"))
    for each in (report(), report("reach", status=ReportedStatus.FAILED), report("short")):
        write_report(run, each)
    exported = export(run)
    runs = strict((exported / "arena_experiment_result.json").read_text())["runs"]
    assert list(runs) == ["lift", "reach", "short"]
    lift, reach = runs["lift"], runs["reach"]
    assert lift["environment"] == {"name": "lift_object", "definition": "lift_object"}
    assert (lift["policy_variant"], lift["status"]) == ("pi05", "completed")
    assert lift["rebuilds"] == [{"index": 0, "episodes": read(exported)["lift"][0]}]
    assert (reach["policy_variant"], reach["status"], reach["rebuilds"]) == ("Waves", "failed", [])
    assert not (exported / "reach").exists()
    assert read(exported)["short"] == {0: []}


def test_the_manifest_says_what_each_run_was(run):
    labels = {"task": "lifting", "policy": "ours"}
    first = planned(labels=labels, num_rebuilds=2, language_instruction="lift")
    write_plan(run, first, planned("b", index=1))
    manifest = strict((export(run) / "experiment_manifest.json").read_text())
    first, second = manifest.pop("runs")
    said = {"schema_version": 1, "source": "experiment_runner", "label_source": "configured"}
    assert manifest.items() >= (said | {"created_at": "2026-01-01T00:00:00+00:00"}).items()
    expected = labels | {"name": "lift", "environment": "lift_object", "policy_type": "zero_action"}
    expected |= {"num_episodes": 10, "num_rebuilds": 2, "num_envs": 4, "language_instruction": "lift"}
    assert first == expected | {"variations": {}}
    assert (second["task"], second["policy"]) == ("lift_object", "zero_action")


def test_videos_are_found_by_the_episode_of_their_line(run):
    """As Arena's report does: by rebuild, environment and place in their names."""
    write_plan(run, planned(num_episodes=10, num_rebuilds=2), world_size=2)
    lines = [*commit_lines("sssss"), *commit_lines("fffff", first=5, rank=1)]
    videos = run / "lift" / "videos"
    for rank in (0, 1):
        write_lines(run, lines[5 * rank :][:5])
        write_report(run, report(rank=rank))
    videos.mkdir()
    for line in lines:
        names = f"rebuild{line.rank}-env{line.env_id}", f"episode-{line.episode_index}.mp4"
        (videos / "robot-cam-{}-wrist_cam_rgb-{}".format(*names)).write_text(f"{line.length}")
        (videos / "viewport-{}-{}".format(*names)).write_text(f"{line.length}")
    (videos / "contact_sheet.png").touch()
    (videos / "robot-cam-env0-wrist_cam_rgb-episode-77.mp4").symlink_to("/etc/hostname")
    exported = export(run)
    expected = {}
    for index, found in read(exported)["lift"].items():
        for line in found:
            for name in (
                "robot-cam-rebuild{}-env{}-wrist_cam_rgb-episode-{}",
                "viewport-rebuild{}-env{}-viewport-episode-{}",
            ):
                path = name.format(index, line["env_id"], line["episode_in_env"]) + ".mp4"
                expected[path] = str(line["episode_length"])
    assert {path.name: path.read_text() for path in (exported / "lift").glob("*.mp4")} == expected
    assert len(expected) == 20


def test_a_paper_gets_the_table_of_jobs_and_that_of_suites(tmp_path):
    run, paper = write_suites(tmp_path / "run", {"mine_a-0": "sssf", "mine_a-1": "ss", "lift": "s"}), tmp_path / "paper"
    write_tables(run, merge_results(run))
    assert [*export_latex(run, paper)] == [str(paper / "results.tex"), str(paper / "suites.tex")]
    jobs, suites = ((paper / f"{name}.tex").read_text().splitlines() for name in ("results", "suites"))
    assert (jobs[0], jobs[2]) == (r"% \usepackage{booktabs}", r"\toprule")
    assert r"success \% [95 \%]" in jobs[3]
    row = next(row for row in json.loads((run / "results.json").read_text())["jobs"] if row["name"] == "mine_a-0")
    assert f"75.0 [{100 * row['success_low']:.1f}, {100 * row['success_high']:.1f}]" in jobs[5]
    assert jobs[5].startswith(r"mine\_a-0 & ")
    assert suites[5].startswith(r"mine\_a & ")

"""What the documents show works as they show it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from isaaclab_arena.cli.main import main
from tests.documentation.reading import Step, blocks, declare_entry_points, follow, steps_of, typed
from tests.end_to_end.launching import ROOT

README = (ROOT / "README.md").read_text()
QUICKSTART = "jobs/quickstart.json"
FEW_EPISODES = ["--limit", "2"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """A directory like the project's, in which a reader does one after the other what the README says."""
    directory = tmp_path_factory.mktemp("workspace")
    for name in ("jobs", "models", "isaaclab_arena_gr00t"):
        (directory / name).symlink_to(ROOT / name)
    # Three jobs for up to three ranks; the first command of the README runs all of them, GR00T's too.
    quickstart = json.loads((ROOT / QUICKSTART).read_text())
    (directory / "few_jobs.json").write_text(json.dumps({**quickstart, "jobs": quickstart["jobs"][:6:2]}))
    return directory


@pytest.mark.parametrize("step", steps_of(README), ids=str)
def test_a_step_of_the_readme_works(workspace, step):
    """Whole where the run goes on to be resumed and replayed, otherwise few episodes, of few jobs of the quickstart."""
    is_run = re.search("eval_jobs_config|arena run ", step.text) and "outputs/first" not in step.text and not step.file
    few = " ".join([step.text.replace(QUICKSTART, "few_jobs.json"), *FEW_EPISODES])
    follow(Step(step.file, few) if is_run else step, workspace)


def test_a_recording_of_the_readmes_run_gives_the_recorded_outcomes_again(workspace):
    """Depends on the README's commands having run in their order."""
    recording = "outputs/first/lift-cube-scripted/dataset_lift-cube-scripted.hdf5"
    line = f"isaaclab-arena policy --policy_type replay lift_object --num_envs 4 --replay_file_path {recording}"
    follow(Step("", f"{line} --output_dir outputs/again"), workspace)
    outcomes = {}
    for output, job in (("again", "lift_object"), ("first", "lift-cube-scripted")):
        lines = (workspace / "outputs" / output / job / "episode_results_rank0.jsonl").read_text().splitlines()
        outcomes[job] = sorted(
            (line["episode_index"], line["outcome"], line["episode_length"], line["episode_return"])
            for line in map(json.loads, lines)
        )
    assert len(outcomes["lift_object"]) == 20
    assert outcomes["lift_object"] == outcomes["lift-cube-scripted"]


def test_the_table_of_the_readme_is_one_that_its_command_gives(workspace, capsys):
    """Depends on the README's first command having run. A network's last digits are a machine's own."""
    (shown,) = [body for body in re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL) if "episodes" in body]
    assert main(["merge", str(workspace / "outputs" / "first")]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(("* ", "results in"))]
    found = {line.split()[0]: line.split() for line in printed if line}
    lines = shown.splitlines()[1:]
    for job, policy, episodes, *rate in (re.split(r"(?<=[^,])\s+", line)[:5] for line in lines):
        assert {job, policy, episodes} <= set(found[job])
        assert job == "colour-gr00t" or " ".join(rate) in " ".join(found[job])
    assert len(lines) == len(json.loads((workspace / "outputs" / "first" / "results.json").read_text())["jobs"])


def test_make_knows_the_targets_that_the_readme_names():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"(?:^ {4}|`)make ([\w-]+)", README, re.MULTILINE)
    assert {"eval", "test", "check", "bench"} <= set(targets)
    assert all(f"\n{target}:" in makefile for target in targets)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(("target", "command"), [("check", "pyright"), ("gpu-check", "benchmarks.gpu.check")])
def test_make_does_what_a_target_is_named_for(target, command):
    planned = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True)
    assert command in planned.stdout


@pytest.mark.parametrize("name", ["sweep.yaml", "variations.yaml", "compare.yaml", "arena_legacy.json"])
def test_a_job_file_that_ships_completes(tmp_path, name):
    """The quickstart is among the README's commands."""
    job_file = str(ROOT / "jobs" / name)
    assert main(["run", "--eval_jobs_config", job_file, "--output_dir", str(tmp_path / "out"), *FEW_EPISODES]) == 0
    jobs = json.loads((tmp_path / "out" / "results.json").read_text())["jobs"]
    assert {job["status"] for job in jobs} == {"completed"}


@pytest.mark.parametrize(
    ("page", "name", "catalog"),
    [("policies", "wave", "policies"), ("tasks", "raise_gripper", "environments")],
)
def test_what_a_document_shows_how_to_write_is_known_by_its_name_evaluated_and_tested(tmp_path, page, name, catalog):
    """The Python becomes a package, the TOML that package's entry points, the JSON a job file."""
    text = (ROOT / "docs" / "how_to" / f"{page}.md").read_text()
    for step in steps_of(text):
        if step.file.startswith("my_package/"):
            follow(step, tmp_path)
    declare_entry_points(tmp_path, "\n".join(["[project]", *blocks(text, "toml")]))
    (job_file,) = (body for body in blocks(text, "json") if '"jobs"' in body)
    (tmp_path / "jobs.json").write_text(job_file)
    assert re.search(rf"^{name}\b", typed(f"isaaclab-arena list {catalog}", tmp_path).stdout, re.MULTILINE)
    typed("python -m isaaclab_arena.evaluation.eval_runner --eval_jobs_config jobs.json --output_dir out", tmp_path)
    job = json.loads((tmp_path / "out" / "results.json").read_text())["jobs"][0]
    assert job["status"] == "completed"
    assert job["episodes"] == job["planned"] > 0
    # In a place of its own: pytest removes what earlier runs have left in the usual one, which may take minutes.
    line = f"python -m pytest -q -p no:cacheprovider --basetemp={tmp_path / 'temporary'} my_package"
    assert int(re.findall(r"(\d+) passed", typed(line, tmp_path).stdout)[0]) >= 5

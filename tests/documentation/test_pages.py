"""What single pages say is what the programs do."""

import json
import re
import shlex
import socket
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from PIL import Image

import isaaclab_arena as arena
from benchmarks.artifacts import task_catalog
from documentation.command_line import help_of
from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation.policy_runner import main as run_policy
from isaaclab_arena.training import TASKS
from isaaclab_arena.training.train import main as train
from tests.documentation.arena_page import PAGE, table
from tests.documentation.floors import DOCUMENT, floors_of_package, with_floors
from tests.documentation.reading import blocks, commands_of, mistakes_in, typed
from tests.end_to_end.launching import ROOT, episodes_table
from tests.environments.building import ALL_ENVIRONMENTS
from tests.environments.libero.checkouts import as_package, in_checkout, make_checkout
from tests.policy.lerobot.policies import INTERPRETER, SITE, STATE, saved


def page_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def listed(capsys, *words: str) -> dict[str, Any]:
    assert main(["list", "environments", *words, "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    return found


# LIBERO's has a test of its own, and two pages show a part of one.
JOB_FILES = {f"{path.relative_to(ROOT / 'docs')}-{index}": body
             for path in sorted((ROOT / "docs").rglob("*.md")) if path.stem not in {"libero", "backends", "watching"}
             for index, body in enumerate(blocks(path.read_text(), "yaml"))
             if "jobs" in yaml.safe_load(body)}  # fmt: skip


@pytest.mark.parametrize("body", [*JOB_FILES.values(), *blocks((ROOT / "README.md").read_text(), "yaml")],
                         ids=[*JOB_FILES, "README.md"])  # fmt: skip
def test_a_job_file_in_a_document_can_be_read(body, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    (tmp_path / "jobs.yaml").write_text(body)
    assert mistakes_in(tmp_path / "jobs.yaml") == []


# users/arena.md


KEYS = table("Keys")
JOB = {"name": "lift", "arena_env_args": {"environment": "lift_object"}, "policy_type": "scripted", "num_episodes": 2}
FAILS = {**JOB, "name": "fails", "policy_type": "tests.fakes.ShrugPolicy", "policy_config_dict": {"raise_at": 1}}
STANDS_FOR = {"environment": "arena_env_args", "policy": "policy_type",
              "rollout_limit": "num_episodes", "num_steps": "num_episodes"}  # fmt: skip


def job_with(written: str) -> dict[str, Any]:
    """Return the job with more keys, which may stand for some of its own."""
    block = yaml.safe_load(written)
    base = {key: value for key, value in JOB.items() if key not in {STANDS_FOR.get(given) for given in block}}
    inner = base.get("arena_env_args", {}), block.get("arena_env_args", {})
    return {**base, **block, **({"arena_env_args": {**inner[0], **inner[1]}} if any(inner) else {})}


def planned(directory: Path) -> list[dict[str, Any]]:
    """Return the configurations of a run's planned jobs."""
    return [job["config"] for job in json.loads((directory / "run.json").read_text())["jobs"]]


@pytest.fixture(scope="module")
def plans(tmp_path_factory) -> dict[str, dict[str, Any]]:
    """What a run makes of the job with every key that is not refused, and with what it is taken as.

    None of them is played: the job before them fails.
    """
    directory = tmp_path_factory.mktemp("keys")
    rows = [row for row in KEYS if row.here != "refused"]
    written = ["{}", *(row.written for row in rows), *(row.equal() for row in rows if row.here == "taken as")]
    jobs = [FAILS, *({**job_with(each), "name": f"lift-{number}"} for number, each in enumerate(written))]
    (directory / "jobs.json").write_text(json.dumps({"jobs": jobs}))
    assert main(["run", str(directory / "jobs.json"), "--output_dir", str(directory / "out"), "--fail_fast"]) == 1
    found = [{**config, "name": "", "index": 0} for config in planned(directory / "out")[1:]]
    return dict(zip(written, found, strict=True))


@pytest.mark.parametrize("row", KEYS, ids=lambda row: row.written)
def test_a_key_of_arena_does_what_the_page_says(row, plans, tmp_path, capsys):
    if row.here == "refused":
        (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job_with(row.written)]}))
        assert main(["validate", "--json", str(tmp_path / "jobs.json")]) == 2
        [problem] = json.loads(capsys.readouterr().out)["problems"]
        [(outer, inner)] = yaml.safe_load(row.written).items()
        assert (problem["job"], problem["key"], problem["message"]) == ("lift", f"{outer}.{next(iter(inner))}", row.how)
    elif row.here == "taken as":
        assert plans[row.written] == plans[row.equal()] != plans["{}"]
    else:
        assert row.here in {"taken", "no effect"}
        assert (plans[row.written] == plans["{}"]) == (row.here == "no effect")


def test_the_experiment_of_the_page_is_the_job_file_beside_it(tmp_path):
    for name, body in zip(("experiment", "jobs"), blocks(PAGE, "yaml"), strict=True):
        (tmp_path / f"{name}.yaml").write_text(body)
        words = [str(tmp_path / f"{name}.yaml"), "--output_dir", str(tmp_path / name)]
        assert main(["run", *words, "--limit", "1", "--no_dataset", "--no_report"]) == 0
    assert planned(tmp_path / "experiment") == planned(tmp_path / "jobs")


# Options, columns, variations and metrics that pages name.


def test_the_cameras_of_the_page_and_every_option_and_column_that_it_names_exist(tmp_path, capsys):
    text = page_of("how_to/cameras.md")
    [job] = yaml.safe_load(blocks(text, "yaml")[0])["jobs"]
    options = {name: value for name, value in job["arena_env_args"].items() if name != "num_envs"}
    assert options["enable_cameras"] is True
    words = [f"--{option}={json.dumps(value).strip(chr(34))}" for option, value in list(options.items())[1:]]
    terms = listed(capsys, options["environment"], *words)["observation"]
    assert [spec["shape"] for term, spec in terms.items() if term.startswith("camera_obs.")] == [[64, 64, 3]] * 2
    named = set(re.findall(r"`-*((?:camera|viewport|record|video|enable)_\w+)[ `:]", text)) - {"camera_obs"}
    arena.evaluate(environment="cartpole", policy="zero_action", num_episodes=1, output_dir=tmp_path / "out")
    of_timing = set(pd.read_csv(tmp_path / "out" / "timing.csv").columns)
    of_environment = {option["name"] for option in listed(capsys, "lift_object")["options"]}
    assert {"record_camera_video", "camera_size", "viewport_width"} <= named
    assert named <= {*re.findall(r"--(\w+)", help_of("run")), *of_environment, *of_timing}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["walk_humanoid", "velocity_go1", "track_motion"])
def test_metrics_of_a_legged_robot_are_those_of_its_page(task, tmp_path):
    section = page_of("reference/legged_robots.md").partition(f"\n## {task}\n")[2].partition("\n## ")[0]
    arguments = ["--policy_type", "zero_action", "--num_episodes", "2", "--no_dataset", "--output_dir", str(tmp_path)]
    assert run_policy([*arguments, task, "--num_envs", "2"]) == 0
    for metrics in map(json.loads, episodes_table(tmp_path)["metrics"]):
        assert metrics
        assert {name for name, value in metrics.items() if isinstance(value, float)} == metrics.keys()
        assert all(f"`{name}`" in section for name in metrics)


def test_the_documented_variations_are_the_programs(capsys):
    words = ["--policy_type", "scripted", "--list_variations", "lift_object", "--object", "cube"]
    assert main(["policy", *words]) == 0
    # The program prints its rows below a line: the name, whether it is on, its range, its unit and its meaning.
    printed = capsys.readouterr().out.partition("\u2500\n")[2]
    offered = [line.split()[0] for line in printed.splitlines() if line.strip()]
    assert len(offered) > 10
    shown = page_of("how_to/variations.md").partition("\n| what | variations |")[2].partition("\n\n")[0]
    columns = [row.split(" | ")[1] for row in shown.splitlines()[2:]]
    assert sorted(re.findall(r"`(\S+)`", "\n".join(columns))) == sorted(offered)


def test_the_jobs_of_the_page_of_robustness_are_the_ones_that_it_names(tmp_path, capsys):
    body, _ = blocks(page_of("how_to/robustness.md"), "yaml")
    (tmp_path / "jobs.yaml").write_text(body)
    assert main(["validate", "--json", str(tmp_path / "jobs.yaml")]) == 0
    [file] = json.loads(capsys.readouterr().out)["files"]
    ends = [f"{axis}-{level}" for axis in ("object_position", "action_noise", "all") for level in range(1, 6)]
    assert file["jobs"] == ["lift-benign", *(f"lift-{end}" for end in ends)]


@pytest.mark.parametrize(
    "body",
    [*blocks(page_of("how_to/libero.md"), "yaml"), (ROOT / "jobs/benchmarks/libero_spatial.yaml").read_text()],
    ids=["one_task", "ready"],
)
def test_a_job_file_of_libero_names_tasks_of_pips_package_and_options_that_exist(tmp_path, monkeypatch, capsys, body):
    checkout = make_checkout(tmp_path)
    variables, python = in_checkout(checkout)["environment_variables"], str(as_package(checkout))
    monkeypatch.delenv("LIBERO_PATH", raising=False)
    monkeypatch.setenv("LIBERO_PYTHON", python)
    document = yaml.safe_load(body.replace("~/libero/bin/python", python))
    for job in document["jobs"]:
        job["arena_env_args"]["environment_variables"] = variables
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump(document))
    assert main(["validate", str(tmp_path / "jobs.yaml")]) == 0
    assert "libero:libero_spatial/0" in capsys.readouterr().out


# Policies: a server, LeRobot's, and training.


SERVED = [shlex.split(line) for line in commands_of(page_of("how_to/serving.md"))]


@pytest.mark.parametrize("words", [words for words in SERVED if words[:2] == ["isaaclab-arena", "serve"]])
def test_a_policy_of_the_page_can_be_served(words, monkeypatch, capsys):
    """At a port that is taken, which a server finds when everything else is right."""
    monkeypatch.chdir(ROOT)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([*words[1:], "--port", str(port)]) == 1
    told = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1, port {port}" in told
    assert ("job 'colour-gr00t'" in told) == (words[2] == "jobs/quickstart.json:colour-gr00t")
    assert ("RslRlPolicy" in told) == (words[2] == "rsl_rl")


@pytest.mark.slow
def test_a_policy_of_lerobot_plays_as_its_page_says(tmp_path):
    text = page_of("bring_your_policy/lerobot.md")
    python = tmp_path / "lerobot" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={SITE} exec {INTERPRETER["python"]} "$@"\n')
    python.chmod(0o755)
    wrist, state, action = ({"type": kind, "shape": shape} for kind, shape in
                            (("VISUAL", [3, 64, 64]), ("STATE", [9]), ("ACTION", [8])))  # fmt: skip
    features = {"observation.images.wrist": wrist, STATE: state}
    saved(tmp_path / "outputs" / "train" / "act", input_features=features, output_features={"action": action})
    (tmp_path / "lerobot.yaml").write_text(blocks(text, "yaml")[0].replace("num_episodes: 20", "num_episodes: 2"))
    for line in commands_of(text):
        if line.startswith("isaaclab-arena"):
            typed(line, tmp_path, HOME=str(tmp_path))
    assert "completed" in (tmp_path / "outputs" / "act" / "results.csv").read_text()


TRAINING = page_of("how_to/training.md")


def test_the_file_of_a_training_that_is_shown_is_right(tmp_path, monkeypatch):
    block = blocks(TRAINING, "yaml")[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shown.yaml").write_text(block)
    few = ["--max_iterations", "1", "checkpoints.export=false", "evaluation.interval=0", "--device", "cpu"]
    assert train(["--config", "shown.yaml", "--run_directory", "run", *few]) == 0
    document = yaml.safe_load(block)
    settings = yaml.safe_load((tmp_path / "run" / "params" / "train.yaml").read_text())
    assert settings["task"] == document["task"]
    assert settings["variations"] == document["variations"] != {}


def test_lines_of_other_trainers_are_understood_as_they_are_shown(tmp_path, monkeypatch, capsys):
    section = TRAINING.partition("## Coming from")[2].partition("\n## ")[0]
    lines = [shlex.split(line)[2:] for line in commands_of(section)]
    assert len(lines) == 4
    monkeypatch.chdir(tmp_path)
    for words in lines:
        # The ranks that would train are not started; everything before has read the line.
        on_ranks = [] if "--gpu-ids" in words else ["--nproc_per_node", "2"]
        code = train([*words, *on_ranks], launch=lambda *_, **__: 0)
        told = capsys.readouterr().err
        assert code == (2 if "--resume" in words else 0), told
        if "--resume" in words:
            [experiment] = set(words) & set(TASKS.names())
            assert f"logs/rsl_rl/{experiment} has no run whose name matches" in told


def test_every_task_of_training_is_listed():
    assert set(TASKS.names()) <= {line.split("`")[1] for line in TRAINING.splitlines() if line.startswith("| [`")}


# Pages that programs write, and what they name.


def test_the_pages_of_the_tasks_are_up_to_date_with_a_small_picture_each():
    for path, text in task_catalog.pages().items():
        assert path.read_text() == text, f"{path.name}: run MUJOCO_GL=egl python -m benchmarks.artifacts.task_catalog"
    for name in ALL_ENVIRONMENTS:
        text = (task_catalog.PAGES / f"{name}.md").read_text()
        assert re.search(r"^\| scripted.* \| \d+/200, ", text, re.MULTILINE), name
        picture = task_catalog.PICTURES / f"{name}.jpg"
        assert picture.stat().st_size < 60_000
        with Image.open(picture) as opened:
            assert opened.size == task_catalog.SIZE


def test_the_measured_success_is_what_is_promised():
    """At least 95 % for the scripted policy and at most 2 % for doing nothing, in every row."""
    lines = [line.split("|") for line in task_catalog.MEASURED.read_text().splitlines() if "/200" in line]
    rates = [(cells[2].strip(), float(cells[5].split("%")[0])) for cells in lines if "%" in cells[5]]
    assert min(rate for policy, rate in rates if policy == "scripted") >= 95
    assert max(rate for policy, rate in rates if policy == "zero_action") <= 2


def test_the_document_shows_the_floors_of_the_contracts_and_what_each_room_is_for():
    text = DOCUMENT.read_text()
    assert "<!-- floors -->" in text
    assert text == with_floors(text), "run: python -m tests.documentation.floors"
    assert all(purpose for _, _, purpose in floors_of_package("isaaclab_arena"))


PROMISES = [(page, *line.strip("| ").split(" | "))
            for page in ("concepts/claims.md", "concepts/training_promises.md")
            for line in page_of(page).splitlines()
            if line.startswith("| ") and "---" not in line and not re.match(r"\| (claim|promise)\b", line)]  # fmt: skip
_HOLDER = re.compile(r"`((?:tests|benchmarks|examples|docs|models|jobs)/[\w./-]*?)(?:::(\w+))?`")


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row[1])
def test_what_holds_a_promise_exists(row):
    found = _HOLDER.findall(row[-1])
    assert all(cell.strip() for cell in row)
    assert found or "`make check`" in row[-1] or "not verified: no GPU" in row[-1]
    assert row[-1].count("::") == sum(bool(test) for _, test in found)
    for path, test in found:
        assert (ROOT / path).exists(), path
        assert not test or re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{test}"


def test_every_table_of_promises_is_read():
    assert len(PROMISES) > 80

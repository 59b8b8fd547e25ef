"""What docs/how_to/cameras.md shows can be typed."""

import json
import re

import pandas as pd
import yaml

import isaaclab_arena as arena
from documentation.command_line import help_of
from isaaclab_arena.cli.main import main
from tests.documentation.reading import blocks, mistakes_in
from tests.end_to_end.launching import ROOT

OBSERVATION_GROUPS = ("camera_obs",)
TEXT = (ROOT / "docs" / "how_to" / "cameras.md").read_text()


def test_the_job_file_can_be_run(tmp_path, capsys):
    [body] = blocks(TEXT, "yaml")
    (tmp_path / "jobs.yaml").write_text(body)
    assert mistakes_in(tmp_path / "jobs.yaml") == []
    [job] = yaml.safe_load(body)["jobs"]
    options = {**job["arena_env_args"]}
    name, _ = options.pop("environment"), options.pop("num_envs")
    assert options["enable_cameras"] is True
    words = [f"--{option}={json.dumps(value).strip(chr(34))}" for option, value in options.items()]
    assert main(["list", "environments", name, *words, "--json"]) == 0
    [listed] = json.loads(capsys.readouterr().out)
    pictures = [spec["shape"] for term, spec in listed["observation"].items() if term.startswith("camera_obs.")]
    assert pictures == [[64, 64, 3]] * 2


def test_every_option_and_column_that_is_named_exists(tmp_path, capsys):
    words = set(re.findall(r"`-*((?:camera|viewport|record|video|enable)_\w+)[ `:]", TEXT)) - set(OBSERVATION_GROUPS)
    assert main(["list", "environments", "lift_object", "--json"]) == 0
    [listed] = json.loads(capsys.readouterr().out)
    of_environment = {option["name"] for option in listed["options"]}
    arena.evaluate(environment="cartpole", policy="zero_action", num_episodes=1, output_dir=tmp_path / "out")
    of_timing = set(pd.read_csv(tmp_path / "out" / "timing.csv").columns)
    assert {"record_camera_video", "camera_size", "viewport_width"} <= words
    assert words <= {*re.findall(r"--(\w+)", help_of("run")), *of_environment, *of_timing}

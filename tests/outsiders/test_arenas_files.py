"""Files in the style of Isaac Lab Arena's own run as they are, and the results come back in its files.

Only names that are Arena's assets, of environments, robots and objects, are this project's.
"""

import json
from pathlib import Path

from isaaclab_arena.cli.main import main as isaaclab_arena
from isaaclab_arena.evaluation import eval_runner, experiment_runner

LIST_OF_RUNS = """
# Each run is one scene with one change.
runs:
  - name: 01_plain
    environment:
      type: pick_and_place
      embodiment: panda
      pick_up_object: cube
    policy:
      type: zero_action
    rollout_limit:
      num_steps: 4

  - name: 02_another_object
    environment:
      type: pick_and_place
      embodiment: panda
      pick_up_object: mug
    policy:
      type: zero_action
    environment_builder:
      num_envs: 3
      env_spacing: 2.5
    rollout_limit:
      num_steps: 4
"""

SHARED_AND_RUNS = """
shared:
  environment:
    type: reach
    enable_cameras: false
  environment_builder:
    num_envs: 2
    seed: 42
    placement_seed: 42
    resolve_on_reset: true
    record_trajectories: true
    presets: newton
    language_instruction: Go to the red point.
  policy:
    type: isaaclab_arena.policy.zero_action_policy.ZeroActionPolicy
  rollout_limit:
    num_episodes: 4
  num_rebuilds: 2
  labels:
    policy: nothing

runs:
  standing: {}
  expert:
    policy:
      type: scripted
    labels:
      task: reaching
      policy: expert
    variations:
      action.noise.enabled: true
      action.noise.sampler_cfg.high: 0.001
"""


def results(output: Path) -> list[dict]:
    return json.loads((output / "results.json").read_text())["jobs"]


def test_a_list_of_runs_is_run_by_the_experiment_runner(tmp_path, capfd):
    (tmp_path / "experiment.yaml").write_text(LIST_OF_RUNS)
    output = tmp_path / "out"
    arguments = ["--experiment_config", str(tmp_path / "experiment.yaml"), "--experiment_output_directory", str(output)]
    assert experiment_runner.main([*arguments, "--headless", "--viz", "kit", "--continue_on_error"]) == 0
    found = [(job["name"], job["object"], job["status"]) for job in results(output)]
    assert found == [("01_plain", "cube", "completed"), ("02_another_object", "mug", "completed")]
    assert "job '02_another_object': no episode ended within its control steps" in capfd.readouterr().out


def test_runs_with_what_they_share_come_back_in_arenas_files(tmp_path):
    (tmp_path / "experiment.yaml").write_text(SHARED_AND_RUNS)
    output = tmp_path / "out"
    arguments = ["--eval_jobs_config", str(tmp_path / "experiment.yaml"), "--output_dir", str(output)]
    overrides = ["shared.rollout_limit.num_episodes=3", "runs.expert.environment_builder.num_envs=1"]
    assert eval_runner.main([*arguments, *overrides]) == 0
    found = [(job["name"], job["policy"].rpartition(".")[2], job["task"], job["seed"]) for job in results(output)]
    standing = ("standing", "ZeroActionPolicy", "move the gripper to the green marker", 42)
    assert found == [standing, ("expert", "scripted", "reaching", 42)]
    assert isaaclab_arena(["merge", str(output), "--by", "labels.policy"]) == 0
    assert (output / "results_by.csv").read_text().startswith("labels.policy,jobs,episodes")
    assert isaaclab_arena(["export", str(output), "--arena", "--output", str(tmp_path / "arena")]) == 0
    manifest = json.loads((tmp_path / "arena" / "experiment_manifest.json").read_text())
    told = [(run["task"], run["policy"], run["num_envs"]) for run in manifest["runs"]]
    assert told == [("reach", "nothing", 2), ("reaching", "expert", 1)]
    result = json.loads((tmp_path / "arena" / "arena_experiment_result.json").read_text())["runs"]
    for name in ("standing", "expert"):
        assert [len(rebuild["episodes"]) for rebuild in result[name]["rebuilds"]] == [2, 1]
        for rebuild in result[name]["rebuilds"]:
            path = tmp_path / "arena" / name / f"episode_results_rebuild{rebuild['index']}.jsonl"
            assert list(map(json.loads, path.read_text().splitlines())) == rebuild["episodes"]
    first = result["expert"]["rebuilds"][0]["episodes"][0]
    assert (first["job_name"], first["seed"], first["language_instruction"]) == ("expert", 42, "Go to the red point.")
    assert (first["env_id"], first["episode_in_env"], first["success"]) == (0, 0, True)

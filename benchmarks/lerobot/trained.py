"""Play a policy that ``lerobot-train`` trained on recordings of ``lift_object``, and ask it as LeRobot's loop does.

LeRobot's own ``select_action`` answers the policy's observations of some episodes, one after the other. If its actions
are the same, these episodes would have ended the same way in its loop.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks import ROOT
from benchmarks.harness.environments import success_rate
from benchmarks.harness.measure import Page, PageOptions, Table, run
from benchmarks.harness.runs import evaluate, job_results, one_job
from isaaclab_arena.interfaces.episode import MAX_SEED, Episode
from isaaclab_arena.storage.episodes import read_episode

THREADS = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
CAMERA, STATES = "wrist_cam_rgb", ("robot_joint_pos", "gripper_pos")


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the program."""

    python: str = ".venv-lerobot/bin/python"  # Interpreter with LeRobot 0.4.4.
    policy: Literal["act", "diffusion"] = "act"  # Policy that train.sh trained.
    training: Path = ROOT / "outputs" / "act"  # Its output directory.
    steps: int = 8000  # Wanted steps of the training.
    episodes: int = 100  # Episodes to play.
    compared: int = 8  # First episodes of them for LeRobot's loop.
    num_envs: int = 8  # Env slots.
    seed: int = 0  # That of the job; demonstrations had another one.
    note: str = ""  # Further text of the page.


def checkpoint(training: Path) -> Path:
    """Return the newest policy of a training."""
    return (training / "checkpoints" / "last" / "pretrained_model").resolve()


def job_file(options: Options, num_episodes: int) -> Mapping[str, Any]:
    """Return a job with the policy, with one observation per call, as in LeRobot's loop."""
    environment = {
        "environment": "lift_object",
        "num_envs": options.num_envs,
        "enable_cameras": True,
        "camera_size": 64,
    }
    policy = {
        "python": options.python,
        "pretrained": str(checkpoint(options.training)),
        "states": {"observation.state": list(STATES)},
        "slots_per_call": 1,
    }
    return one_job(environment, "lerobot", num_episodes, policy, name=options.policy, seed=options.seed)


def shown_in(recording: Path, job: str, index: int, seed: int) -> dict[str, Any]:
    """Return the policy's observations in an episode, and ``seeds`` of its noise at each look."""
    arrays = read_episode(recording, index).arrays
    state = np.concatenate([arrays[f"obs/{name}"] for name in STATES], axis=1).astype(np.float32)
    stream = Episode(job=job, episode_index=index, seed=seed).policy_generator()
    seeds = [int(stream.integers(MAX_SEED, endpoint=True)) for _ in range(len(state))]
    return {"state": state, CAMERA: arrays[f"camera_obs/{CAMERA}"], "seeds": np.array(seeds)}


def apart(options: Options, recording: Path) -> tuple[int, float]:
    """Return the number of actions of LeRobot's loop, and the largest distance of one from the recorded one."""
    with tempfile.TemporaryDirectory(prefix="select_action_") as name:
        shown, answered = Path(name) / "shown", Path(name) / "answered"
        shown.mkdir()
        answered.mkdir()
        for index in range(options.compared):
            arrays: dict[str, Any] = shown_in(recording, options.policy, index, options.seed)
            np.savez(shown / f"{index}.npz", **arrays)
        words = ["select_action_loop", str(checkpoint(options.training)), str(shown), str(answered)]
        command = [options.python, "-m", "benchmarks.lerobot.inside", *words]
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **THREADS})
        ours = [read_episode(recording, index).arrays["actions"] for index in range(options.compared)]
        theirs = [np.load(answered / f"{index}.npy", allow_pickle=False) for index in range(options.compared)]
    furthest = max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))
    return sum(map(len, ours)), furthest


def trained_for(training: Path) -> str:
    """Return the length of a policy's training, in words."""
    document = json.loads((checkpoint(training) / "train_config.json").read_text(encoding="utf-8"))
    state = checkpoint(training).parent / "training_state" / "training_step.json"
    steps = json.loads(state.read_text(encoding="utf-8"))["step"]
    return f"{steps:,} of {document['steps']:,} steps, batches of {document['batch_size']}"


def main(options: Options) -> None:
    """Play, compare and write the page."""
    name = options.policy
    page = Page(f"lerobot_{name}", f"{_TITLES[name]} trained with LeRobot, played here", options)
    heading = ("trained for", "successes", "rate, Wilson 95 %", "actions compared", "apart by at most")
    table = Table("policy", *heading)
    with tempfile.TemporaryDirectory(prefix="lerobot_trained_") as place:
        played, recorded = Path(place) / "played", Path(place) / "recorded"
        process = evaluate(played, job_file(options, options.episodes), variables=THREADS)
        evaluate(recorded, job_file(options, options.compared), "--record_observations", "all", variables=THREADS)
        [found] = job_results(played)
        number, furthest = apart(options, recorded / "out" / name / f"dataset_{name}.hdf5")
    counts, rate = f"{found['successes']}/{options.episodes}", success_rate(found["successes"], options.episodes)
    table.add(name, trained_for(options.training), counts, rate, f"{number:,}", f"{furthest:.2g}")
    training = f"""\
Demonstrations are those of the scripted policy, with pictures of the wrist camera, which LeRobot reads as PNG:

    isaaclab-arena collect {_COLLECT}
    python -m isaaclab_arena_gr00t.convert to_lerobot {_CONVERT}
    bash benchmarks/lerobot/train.sh {options.python} outputs/dataset {options.policy} outputs/model {options.steps}"""
    text = f"""\
`lift_object` without variations: a cube at any place and angle of its range, seed {options.seed}, {options.episodes}
episodes that were not among the demonstrations. The policy sees one picture of 64 x 64 pixels and the angles of the
joints, nothing of the cube, and plays 8 actions before it looks again. Playing took {process.cpu_s:.0f} s of CPU time,
LeRobot's process included. What the policy was shown in the first {options.compared} episodes was shown to LeRobot's
own `select_action` with its processors, one control step after the other; the last two columns compare its actions, in
radians and metres. Each call had one env slot (`slots_per_call: 1`), as LeRobot's own have. With calls of four, which
`lerobot` makes by default on a CPU, the same actions are apart by up to 8.3e-7."""
    page.write(training, text, table, options.note)


_TITLES = {"act": "ACT", "diffusion": "Diffusion Policy"}
_COLLECT = "--num_episodes 400 --num_envs 16 --seed 1000 --output_dir outputs/demos lift_object --camera_size 64"
_CONVERT = (
    "--dataset outputs/demos --output_dir outputs/dataset --version v3.0 --png --only_successes \\\n"
    "        --policy_config_yaml_path benchmarks/lerobot/wrist_camera.yaml"
)


if __name__ == "__main__":
    run(main, Options)

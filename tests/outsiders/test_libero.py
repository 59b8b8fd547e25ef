"""LIBERO itself, in an interpreter of its own: what runs here is what a plain loop there gives, bit for bit."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.end_to_end.launching import command, episodes_table, run, same_tables, start, wait_until, write_jobs
from tests.environments.gym.gym_running import build
from tests.environments.libero.installed import LIBERO, PYTHON
from tests.outsiders.opengl import opengl_variables

VARIABLES = opengl_variables()
NUM_STEPS, PERIOD, SIZE = 200, 8, 64
CAMERAS = ("agentview_image", "robot0_eye_in_hand_image")
DIRECTORY = Path(__file__).parent

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not PYTHON, reason="LIBERO's interpreter is missing: make test-benchmarks makes it"),
]


def in_workers(task: str, *, num_envs: int = 1, **options: Any):
    options = {"python": PYTHON, "environment_variables": VARIABLES, **options}
    return build(f"libero:{task}", num_envs=num_envs, **options)


def in_its_interpreter(script: str, directory: Path, request: dict[str, Any]) -> dict[str, np.ndarray]:
    """Run a script of this directory with a request, and return the arrays that it writes."""
    asked, out = directory / f"{script}.json", directory / f"{script}.npz"
    asked.write_text(json.dumps({"checkout": str(LIBERO.root), **request}))
    command = [PYTHON, str(DIRECTORY / script), str(asked), str(out)]
    done = subprocess.run(command, env={**os.environ, **VARIABLES}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(np.load(out))


@pytest.mark.parametrize("task", ["libero_spatial/0", "libero_10/3"])
def test_states_and_pictures_are_those_of_a_plain_loop(task, tmp_path):
    actions = np.random.default_rng(1).uniform(-1, 1, (NUM_STEPS, 7)).astype(np.float32)
    np.save(tmp_path / "actions.npy", actions.astype(np.float64))
    suite, _, index = task.partition("/")
    request = {"suite": suite, "task": int(index), "seed": 7, "reset_index": 2, "init_state": 2, "wait_steps": 10}
    files = {"actions": str(tmp_path / "actions.npy"), "camera_size": SIZE}
    expected = in_its_interpreter("libero_reference.py", tmp_path, {**request, **files})
    environment = in_workers(task, protocol="openpi", enable_cameras=True, camera_size=SIZE)
    conditions = {"libero.fixture_seed": 7, "libero.init_state": 2}
    # Another episode comes first: what ran before must not matter.
    environment.reset(torch.tensor([0]), [{**conditions, "libero.reset_index": 4}])
    environment.step(torch.ones(1, 7))
    observation = environment.reset(torch.tensor([0]), [{**conditions, "libero.reset_index": 2}])
    shown: dict[str, torch.Tensor] = {}
    for number in range(NUM_STEPS + 1):
        if number > 0:
            environment.draw_pictures_of([0] if number % PERIOD == 0 else [])
            observation = environment.step(torch.from_numpy(actions[number - 1])[None]).observation
        shown = {name: term for name, term in observation["policy"].items() if name != "robot0_eef_axis_angle"}
        for name, term in shown.items():
            plain = expected[f"observation {name}"][number]
            assert np.array_equal(term[0].numpy(), plain.astype(np.float32).reshape(term[0].shape)), (number, name)
        for name in CAMERAS if number % PERIOD == 0 else ():
            picture = observation["camera_obs"][name][0].numpy()
            assert np.array_equal(picture, expected[f"observation {name}"][number][::-1, ::-1]), (number, name)
    told = {name for name in expected if name.startswith("observation ") and not name.endswith(("-state", "_image"))}
    assert told == {f"observation {name}" for name in shown}
    environment.close()


@pytest.mark.parametrize(
    "task", ["libero_spatial/0", "libero_goal/0", "libero_object/2", "libero_10/3", "libero_90/40"]
)
def test_pictures_without_what_cannot_be_seen_are_the_same(task):
    suite, _, index = task.partition("/")
    command = [PYTHON, str(DIRECTORY / "libero_drawn.py"), str(LIBERO.root), suite, index, "4", "128"]
    done = subprocess.run(command, env={**os.environ, **VARIABLES}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) >= 4


def command_of(directory: Path, output: Path, *, ranks: int = 1, num_envs: int = 1, **changed: Any) -> list[str]:
    """Return the command of a run of six short episodes."""
    options = {"python": PYTHON, "environment_variables": VARIABLES, "num_envs": num_envs}
    task = {"environment": "libero:libero_spatial/4", "protocol": "openpi", "max_episode_length": 5}
    job = {"name": "bowl", "policy_type": "random_action", "num_episodes": 6, "arena_env_args": {**task, **options}}
    job |= changed
    jobs = write_jobs(directory / f"{output.name}.json", [job])
    divided = ("--assignment", "dynamic") if ranks > 1 else ()
    return command("--eval_jobs_config", jobs, "--output_dir", output, *divided, ranks=ranks)


def test_tables_are_the_same_for_any_ranks_and_env_slots_and_after_kill_9(tmp_path):
    def finished(name: str, *options: str, **how: Any) -> Path:
        assert run([*command_of(tmp_path, tmp_path / name, **how), *options], timeout_s=1200).returncode == 0
        return tmp_path / name

    one = finished("one")
    for name, how in {
        **{f"ranks_{ranks}": {"ranks": ranks} for ranks in (2, 3)},
        **{f"slots_{num_envs}": {"num_envs": num_envs} for num_envs in (2, 3)},
    }.items():
        assert same_tables(one, finished(name, **how)), name
    for ranks in (1, 2):
        output = tmp_path / f"killed_{ranks}"
        process = start(command_of(tmp_path, output, ranks=ranks), tmp_path / "log")
        wait_until(lambda output=output: any(output.rglob("e00000[1-5].h5")), timeout_s=1200)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert same_tables(one, finished(output.name, "--resume", ranks=ranks)), output.name
    conditions = [json.loads(each) for each in episodes_table(one)["conditions"]]
    assert [each["libero.reset_index"] for each in conditions] == list(range(6))


def test_all_fifty_episodes_of_a_task_run_once_each(tmp_path):
    task = {"environment": "libero:libero_spatial/0", "protocol": "openpi", "max_episode_length": 2, "num_envs": 2}
    options = {"python": PYTHON, "environment_variables": VARIABLES}
    changed = {"num_episodes": None, "arena_env_args": {**task, **options}}
    done = run(command_of(tmp_path, tmp_path / "all", ranks=2, **changed), timeout_s=3000)
    assert done.returncode == 0
    table = episodes_table(tmp_path / "all")
    assert table["episode_index"].tolist() == list(range(50))
    conditions = [json.loads(each) for each in table["conditions"]]
    assert [each["libero.init_state"] for each in conditions] == list(range(50))
    assert [each["libero.reset_index"] for each in conditions] == list(range(50))
    assert set(table["outcome"]) == {"timeout"}

"""A file that was edited between two evaluations of a process counts with what it holds now, in numbers and hashes."""

import hashlib
import importlib
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import isaaclab_arena as arena
from isaaclab_arena import ConfigError
from isaaclab_arena.environments import ENVIRONMENTS
from isaaclab_arena.policies import PolicyBase, PolicyCfg
from isaaclab_arena.tasks import Backend, FloorTask, SceneObject, TableOptions, TableTask, Task, TaskSpec, Verdict
from tests.environments.libero.checkouts import SUITES, in_checkout, make_checkout, write_states
from tests.environments.six_axis import DESCRIPTION, MJCF
from tests.policy.checkpoints import write_checkpoint

HASH = re.compile(r"[0-9a-f]{64}")


class Evaluations:
    """Evaluates what some options say, again and again in this process."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._numbers = directory, count()

    def __call__(self, **options: Any) -> tuple[list[int], set[str]]:
        """Return the checksums of the episodes, and the hashes of what was evaluated."""
        asked = {"num_episodes": 2, "num_envs": 2, "seed": 5, "policy": "zero_action", **options}
        results = arena.evaluate(output_dir=self._directory / f"run{next(self._numbers)}", **asked)
        assert results.complete, results
        attempt = json.loads((results.output_dir / "attempts" / "attempt_1.json").read_text())
        return results.episodes["checksum"].tolist(), set(HASH.findall(json.dumps(attempt["jobs"])))


@pytest.fixture
def evaluate(tmp_path) -> Evaluations:
    return Evaluations(tmp_path)


@pytest.fixture
def edited(evaluate) -> Callable[..., tuple[list[int], set[str]]]:
    """Evaluate before and after an edit, which counts in numbers and hashes; return those of after."""

    def edited(edit: Callable[[], object], **options: Any) -> tuple[list[int], set[str]]:
        before, known_by = evaluate(**options)
        edit()
        after, now_known_by = evaluate(**options)
        assert before != after
        assert known_by != now_known_by
        return after, now_known_by

    return edited


def tetrahedron(size_m: float) -> str:
    corners = [(0, 0, 0), (size_m, 0, 0), (0, size_m, 0), (0, 0, size_m)]
    lines = ["v {:.4f} {:.4f} {:.4f}".format(*corner) for corner in corners]
    return "\n".join([*lines, "f 1 3 2", "f 1 2 4", "f 1 4 3", "f 2 3 4", ""])


@pytest.fixture
def robot(tmp_path) -> Path:
    """The directory of a robot whose description, model, included file and mesh are files of their own."""
    directory = tmp_path / "robot"
    (directory / "meshes").mkdir(parents=True)
    defaults = re.findall(r"<default>.*?</default>", MJCF, re.DOTALL)[0]
    model = MJCF.replace(
        defaults, '<include file="defaults.xml"/><asset><mesh name="load" file="meshes/load.obj"/></asset>'
    )
    model = model.replace('<body name="hand"', '<geom type="mesh" mesh="load" density="2000"/><body name="hand"')
    (directory / "six_axis.xml").write_text(model)
    (directory / "defaults.xml").write_text(f"<mujoco>{defaults}</mujoco>")
    (directory / "meshes" / "load.obj").write_text(tetrahedron(0.04))
    (directory / "six_axis.yaml").write_text(DESCRIPTION.replace("gravity_compensation: true", ""))
    return directory


def content_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def rewritten(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def heavier(directory: Path) -> None:
    """Replace a mesh by one that is as long a file and as old: a copy that keeps times does that."""
    mesh = directory / "meshes" / "load.obj"
    status = mesh.stat()
    mesh.write_text(tetrahedron(0.06))
    os.utime(mesh, ns=(status.st_atime_ns, status.st_mtime_ns))


def linked(directory: Path) -> None:
    """Have a link lead to another file."""
    (directory / "heavy.obj").write_text(tetrahedron(0.06))
    (directory / "meshes" / "load.obj").unlink()
    (directory / "meshes" / "load.obj").symlink_to("../heavy.obj")


def linked_model(directory: Path) -> None:
    """Have the link to the model lead to another file."""
    model = directory / "six_axis.xml"
    (directory / "heavy.xml").write_text(model.read_text().replace('mass="1.5"', 'mass="1.9"'))
    model.unlink()
    model.symlink_to("heavy.xml")


EDITS: dict[str, Callable[[Path], None]] = {
    "description": lambda robot: rewritten(robot / "six_axis.yaml", "0.4115", "0.3115"),
    "model": lambda robot: rewritten(robot / "six_axis.xml", 'mass="1.5"', 'mass="1.9"'),
    "included_file": lambda robot: rewritten(robot / "defaults.xml", 'damping="2"', 'damping="3"'),
    "mesh": heavier,
    "link_to_a_mesh": linked,
    "link_to_a_model": linked_model,
}


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(edit, id=name, marks=[] if name in ("included_file", "link_to_a_mesh") else [pytest.mark.slow])
        for name, edit in EDITS.items()
    ],
)
def test_a_robot(robot, evaluate, edited, edit):
    if edit in (linked, linked_model):
        for path in (robot / "six_axis.xml", robot / "meshes" / "load.obj"):
            path.symlink_to(path.rename(path.with_stem("light")).name)
    found = edited(lambda: edit(robot), environment="reach", embodiment=str(robot / "six_axis.yaml"))
    # The same files where nobody has read them before.
    elsewhere = robot.rename(robot.with_name("elsewhere"))
    assert evaluate(environment="reach", embodiment=str(elsewhere / "six_axis.yaml")) == found


@dataclass(frozen=True)
class EditsCfg(PolicyCfg):
    model: str


class Edits(PolicyBase[EditsCfg]):
    """Makes a robot heavier while it moves it."""

    config_class = EditsCfg

    def get_action(self, env, observation):
        path = Path(self.config.model)
        path.write_text(path.read_text().replace('mass="1.5"', 'mass="1.9"'))
        return torch.zeros(env.action_space.shape, device=env.device)


def test_a_robot_that_is_edited_while_a_run_goes_on_fails_the_jobs_that_read_it_then(robot, tmp_path):
    robot_at = {"environment": "reach", "embodiment": str(robot / "six_axis.yaml")}
    edits = {"policy_type": f"{__name__}.Edits", "policy_config_dict": {"model": str(robot / "six_axis.xml")}}
    jobs = [
        {"name": "edits", "arena_env_args": {**robot_at, "num_envs": 2}, **edits},
        {"name": "keeps_it", "arena_env_args": {**robot_at, "num_envs": 2}, "policy_type": "zero_action"},
        {"name": "reads_it", "arena_env_args": {**robot_at, "num_envs": 1}, "policy_type": "zero_action"},
    ]
    (tmp_path / "jobs.json").write_text(json.dumps({"defaults": {"num_episodes": 2}, "jobs": jobs}))
    results = arena.evaluate(tmp_path / "jobs.json", output_dir=tmp_path / "run")
    assert results.jobs["status"].tolist() == ["completed", "completed", "failed"]
    error = results.jobs["error"].tolist()[-1]
    assert "it changed during the run" in error
    assert "--resume --rerun reads_it" in error


def test_conditions(tmp_path, evaluate, edited):
    path = tmp_path / "starts.json"
    evaluate(environment="cartpole", save_conditions=path)

    def save_others() -> None:
        path.unlink()
        evaluate(environment="cartpole", save_conditions=path, seed=6)

    edited(save_others, environment="cartpole", conditions=path)


def checkpoint(directory: Path, seed: int) -> Path:
    return write_checkpoint(directory, num_inputs=5, num_actions=1, seed=seed)


def exported(directory: Path, seed: int) -> Path:
    directory.mkdir(exist_ok=True)
    linear = torch.nn.Linear(5, 1, bias=False)
    torch.nn.init.constant_(linear.weight, 0.1 * seed)
    torch.jit.save(torch.jit.trace(linear, torch.zeros(2, 5)), str(directory / "policy.pt"))
    return directory / "policy.pt"


@pytest.mark.parametrize("write", [checkpoint, exported])
def test_a_network(tmp_path, evaluate, write):
    def played(seed: int) -> list[int]:
        path = write(tmp_path / "network", seed)
        os.utime(path, ns=(1, 1))
        found = evaluate(environment="cartpole", policy="rsl_rl", policy_config={"checkpoint_path": str(path)})
        assert content_hash(path) in found[1]
        return found[0]

    before = played(1)
    assert played(2) != before
    assert played(1) == before


def test_a_module_runs_and_is_known_as_it_was_imported_until_it_is_imported_anew(tmp_path, monkeypatch, evaluate):
    path = tmp_path / "edited_for_evaluations.py"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    source = "import torch\n\n\ndef act(observation):\n    return torch.full((2, 1), {})\n"

    def played(to: float) -> tuple[list[int], set[str]]:
        path.write_text(source.format(to))
        importlib.invalidate_caches()
        return evaluate(environment="cartpole", policy="edited_for_evaluations.act")

    before = played(0.5)
    assert content_hash(path) in before[1]
    assert played(0.7) == before
    importlib.reload(sys.modules["edited_for_evaluations"])
    after = played(0.7)
    assert after[0] != before[0]
    assert content_hash(path) in after[1]


def test_the_list_of_a_suites_tasks_and_what_an_interpreter_has(tmp_path, evaluate, edited):
    checkout = make_checkout(tmp_path)
    options = {"name": "bowl", "environment": "libero:libero_spatial/0", "environment_args": in_checkout(checkout)}
    listed = checkout / "libero" / "libero" / "benchmark" / "libero_suite_task_map.py"
    status, (first, second) = listed.stat(), SUITES["libero_spatial"]
    states = listed.parents[1] / "init_files" / "libero_spatial" / f"{second}.pruned_init"

    def swap() -> None:
        """As long a file as before, and no younger."""
        write_states(states, np.full((4, 3), 0.05))
        listed.write_text(listed.read_text().replace(first, "?").replace(second, first).replace("?", second))
        os.utime(listed, ns=(status.st_atime_ns, status.st_mtime_ns))

    edited(swap, **options)
    (checkout.with_name("packages") / "bddl.py").unlink()
    with pytest.raises(ConfigError, match="bddl"):
        evaluate(**options)


def test_a_thing_of_a_task_of_ones_own(tmp_path, edited):
    file = tmp_path / "box.xml"
    body = '<body name="body"><freejoint name="free"/><geom type="box" size="0.02 0.02 0.02" mass="{}"/></body>'
    file.write_text(f"<mujoco><worldbody>{body.format(0.1)}</worldbody></mujoco>")

    class WithBox(Task):
        def __init__(self) -> None:
            box = SceneObject(
                prefix="box", asset=str(file), position=(0.5, 0.0, 0.1), loose=True, area=((0.5, 0, 0), (0.5, 0, 0))
            )
            super().__init__(TaskSpec(name="box", instruction="wait", time_limit_s=1.0, hold_steps=1, things=(box,)))

        def judge(self, backend: Backend, running: torch.Tensor) -> Verdict:
            return Verdict(reward=torch.zeros_like(running).float(), success=~running, lost=~running, metrics={})

    with ENVIRONMENTS.restored_afterwards():
        builder = TableTask(config_class=TableOptions, make_task=lambda options, robot: WithBox())
        ENVIRONMENTS.register("waits_for_a_box", builder)
        _, known_by = edited(lambda: rewritten(file, "0.1", "0.9"), environment="waits_for_a_box")
        assert content_hash(file) in known_by


def test_a_robot_on_the_floor(tmp_path, edited):
    (tmp_path / "meshes").mkdir()
    (tmp_path / "meshes" / "load.obj").write_text(tetrahedron(0.04))
    (model,) = Path(arena.__file__ or "").parent.rglob("cartpole.xml")
    load = '<asset><mesh name="load" file="meshes/load.obj"/></asset><worldbody>'
    cart = model.read_text().replace("<worldbody>", load, 1)
    at = cart.rindex("<geom")
    (tmp_path / "cart.xml").write_text(f'{cart[:at]}<geom type="mesh" mesh="load" density="2000"/>{cart[at:]}')
    standard: Any = ENVIRONMENTS.get("cartpole")

    def own_cart(options: Any) -> FloorTask:
        task = standard.make_task(options)
        task.robot = replace(task.robot, asset=str(tmp_path / "cart.xml"))
        return task

    with ENVIRONMENTS.restored_afterwards():
        ENVIRONMENTS.register("own_cart", replace(standard, make_task=own_cart))
        edited(lambda: heavier(tmp_path), environment="own_cart")

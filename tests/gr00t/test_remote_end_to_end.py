"""Jobs whose model is behind a server, through the program as a user starts it, also when the server dies."""

from pathlib import Path
from typing import Any

import numpy as np
from gr00t.data.types import ModalityConfig
from gr00t.policy.policy_server import PolicyServer

from isaaclab_arena.environments.embodiments.panda import PANDA
from isaaclab_arena.evaluation import eval_runner
from tests.end_to_end.launching import episodes_table, jobs_table, write_jobs
from tests.gr00t.fakes import write_yaml
from tests.gr00t.panda_checkpoint import CONFIGS
from tests.gr00t.servers import serving

POLICY = "isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy.Gr00tRemoteClosedloopPolicy"
HORIZON = 5


class Homesick:
    """Sends the Panda home, whatever it sees; its server stops after some queries."""

    def __init__(self, queries_left: int = -1) -> None:
        self.server: PolicyServer | None = None
        self.queries = 0
        self.queries_left = queries_left

    def get_modality_config(self) -> dict[str, ModalityConfig]:
        joints = ["arm", "gripper"]
        return {
            "video": ModalityConfig(delta_indices=[0], modality_keys=[]),
            "state": ModalityConfig(delta_indices=[0], modality_keys=joints),
            "action": ModalityConfig(delta_indices=list(range(HORIZON)), modality_keys=joints),
            "language": ModalityConfig(delta_indices=[0], modality_keys=["annotation.human.task_description"]),
        }

    def get_action(
        self, observation: dict[str, Any], options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        self.queries += 1
        if self.queries == self.queries_left and self.server is not None:
            self.server.stop()
        rows = len(observation["state"]["arm"])
        home = np.asarray(PANDA.robot.home, np.float32)
        arm = np.broadcast_to(home, (rows, HORIZON, len(home)))
        return {"arm": arm.copy(), "gripper": np.zeros((rows, HORIZON, 1), np.float32)}, {}

    def reset(self, options: dict[str, Any] | None = None) -> dict[str, Any]:
        return {}


def jobs(folder: Path, port: int) -> Path:
    joints = str(CONFIGS / "panda_joints.yaml")
    yaml = write_yaml(
        folder / "panda.yaml",
        {
            "action_horizon": HORIZON,
            "action_chunk_length": HORIZON,
            "pov_cam_name_sim": {},
            "state_names_sim": ["robot_joint_pos", "gripper_pos"],
            "policy_joints_config_path": joints,
        },
    )
    server = {"remote_host": "127.0.0.1", "remote_port": port, "timeout_s": 10.0, "wait_for_server_s": 0.5}
    reach = {"arena_env_args": {"environment": "reach", "num_envs": 1}, "num_episodes": 3}
    served = {"policy_type": POLICY, "policy_config_dict": {"policy_config_yaml_path": yaml, **server}}
    return write_jobs(
        folder / "jobs.json",
        [{"name": "served", **reach, **served}, {"name": "other", **reach, "policy_type": "zero_action"}],
    )


def evaluate(path: Path, *options: str) -> int:
    return eval_runner.main(["--eval_jobs_config", str(path), "--device", "cpu", *options])


def test_a_dead_server_fails_its_job_keeps_what_had_ended_and_the_run_can_go_on(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    policy = Homesick()
    with serving(policy) as server:
        path = jobs(tmp_path, server.port)
        assert evaluate(path, "--output_dir", str(whole)) == 0
    port, policy = server.port, Homesick(queries_left=policy.queries // 2)
    with serving(policy, port=port) as policy.server:
        assert evaluate(path, "--output_dir", str(cut)) == 1
    rows = jobs_table(cut).set_index("name").to_dict("index")
    assert (rows["served"]["status"], rows["served"]["episodes"]) == ("failed", 1)
    assert f"no policy server answers at 127.0.0.1:{port}" in str(rows["served"]["error"])
    assert (rows["other"]["status"], rows["other"]["episodes"]) == ("completed", 3)

    with serving(Homesick(), port=port):
        assert evaluate(path, "--output_dir", str(cut), "--resume", str(cut)) == 0
    rows = jobs_table(cut).set_index("name").to_dict("index")
    assert (rows["served"]["status"], rows["served"]["episodes"]) == ("completed", 3)
    assert rows["served"]["reproducible"] == "plan"
    assert episodes_table(cut)["checksum"].tolist() == episodes_table(whole)["checksum"].tolist()

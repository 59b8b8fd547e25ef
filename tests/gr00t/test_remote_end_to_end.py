"""Jobs whose model is behind a server, through the program as a user starts it, also when the server dies."""

import time
from pathlib import Path
from typing import Any

import numpy as np
from gr00t.data.types import ModalityConfig
from gr00t.policy.policy_server import PolicyServer

from isaaclab_arena.environments.robots.panda import PANDA
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
        batch_size = len(observation["state"]["arm"])
        home = np.asarray(PANDA.robot.home, np.float32)
        arm = np.broadcast_to(home, (batch_size, HORIZON, len(home)))
        return {"arm": arm.copy(), "gripper": np.zeros((batch_size, HORIZON, 1), np.float32)}, {}

    def reset(self, options: dict[str, Any] | None = None) -> dict[str, Any]:
        return {}


def jobs(directory: Path, port: int, **options: str) -> Path:
    joints = str(CONFIGS / "panda_joints.yaml")
    yaml = write_yaml(
        directory / "panda.yaml",
        {
            "action_horizon": HORIZON,
            "action_chunk_length": HORIZON,
            "pov_cam_name_sim": {},
            "state_names_sim": ["robot_joint_pos", "gripper_pos"],
            "policy_joints_config_path": joints,
        },
    )
    server = {"remote_host": "127.0.0.1", "remote_port": port, "timeout_s": 10.0, "wait_for_server_s": 0.5, **options}
    reach = {"arena_env_args": {"environment": "reach", "num_envs": 1}, "num_episodes": 3}
    served = {"policy_type": POLICY, "policy_config_dict": {"policy_config_yaml_path": yaml, **server}}
    return write_jobs(
        directory / "jobs.json",
        [{"name": "served", **reach, **served}, {"name": "other", **reach, "policy_type": "zero_action"}],
    )


def evaluate(path: Path, *options: str) -> int:
    return eval_runner.main(["--eval_jobs_config", str(path), "--device", "cpu", *options])


def jobs_by_name(output: Path) -> dict[str, dict[str, Any]]:
    return {str(job["name"]): job for job in jobs_table(output).to_dict("records")}


def test_a_dead_server_fails_its_job_in_time_and_the_run_can_go_on_when_it_is_back(tmp_path, capfd):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    policy = Homesick()
    with serving(policy) as server:
        path = jobs(tmp_path, server.port)
        assert evaluate(path, "--output_dir", str(whole)) == 0
    port, policy = server.port, Homesick(queries_left=policy.queries // 2)
    started = time.monotonic()
    with serving(policy, port=port) as policy.server:
        assert evaluate(path, "--output_dir", str(cut)) == 1
    assert time.monotonic() - started < 60
    served = jobs_by_name(cut)["served"]
    # The first episode had ended, the second was under way, the third had not begun.
    assert (served["status"], served["episodes"], served["errors"], served["missing"]) == ("failed", 2, 1, 1)
    said = f"no GR00T policy server answers at 127.0.0.1:{port}"
    assert said in str(served["error"])
    assert said in capfd.readouterr().out
    assert "waiting for it" in (cut / "logs" / "rank0.log").read_text()
    lost = episodes_table(cut).set_index(["job", "episode_index"]).loc["served", 1]
    assert (lost["outcome"], lost["termination"]) == ("error", "policy_lost")
    assert str(lost["error"]).startswith(f"the policy was lost: {said}")
    other = jobs_by_name(cut)["other"]
    assert (other["status"], other["episodes"]) == ("completed", 3)

    with serving(Homesick(), port=port):
        assert evaluate(path, "--resume", str(cut)) == 0
    served = jobs_by_name(cut)["served"]
    assert (served["status"], served["episodes"], served["errors"]) == ("completed", 3, 1)
    with serving(Homesick(), port=port):
        assert evaluate(path, "--resume", str(cut), "--retry_errors") == 0
    served = jobs_by_name(cut)["served"]
    assert (served["status"], served["episodes"], served["errors"], served["retried"]) == ("completed", 3, 0, 1)
    assert served["reproducible"] == "plan"
    assert episodes_table(cut).to_dict("records") == episodes_table(whole).to_dict("records")


def test_a_token_gets_into_nothing_that_a_run_writes(tmp_path):
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    with serving(Homesick(), api_token="open sesame") as server:
        path = jobs(tmp_path, server.port, remote_api_token_file=str(token))
        assert evaluate(path, "--output_dir", str(tmp_path / "out")) == 0
    written = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert tmp_path / "out" / "run.json" in written
    assert not [file for file in written if b"sesame" in file.read_bytes()]

"""GR00T policies in whole runs."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gr00t.data.types import ModalityConfig

from isaaclab_arena.environments.robots.embodiment import PANDA
from isaaclab_arena.evaluation import eval_runner, policy_runner
from isaaclab_arena_gr00t.config import model_interface, stated_embodiments
from tests.end_to_end.launching import command, episodes_table, jobs_table, run, write_jobs
from tests.gr00t.panda_checkpoint import save_panda_checkpoint, write_panda_yaml
from tests.gr00t.servers import NetworkPolicy, serving
from tests.outsiders.cables import Cable, cable

# A GR00T model drives the Panda, from pictures and joints, through the program as a user starts it.


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """A directory with a checkpoint of random weights."""
    directory = tmp_path_factory.mktemp("gr00t")
    save_panda_checkpoint(directory / "checkpoint")
    return directory


def evaluate(directory: Path, output: Path, num_envs: int = 2, num_episodes: int = 2) -> int:
    # What is typed goes before what the file says.
    yaml = write_panda_yaml(directory / "panda.yaml", policy_device="cuda:77")
    words = ["--policy_type", "gr00t_closedloop", "--policy_device", "cpu", "--device", "cpu", "--enable_cameras"]
    words += ["--num_episodes", str(num_episodes), "--num_envs", str(num_envs), "--output_dir", str(output)]
    return policy_runner.main([*words, "reach", "--camera_size", "64", "--policy_config_yaml_path", yaml])


@pytest.fixture(scope="module")
def evaluated(directory) -> Path:
    assert evaluate(directory, directory / "two") == 0
    return directory / "two"


def test_a_model_plays_its_episodes_to_the_end(evaluated):
    [job] = jobs_table(evaluated).to_dict("records")
    assert (job["status"], job["episodes"], job["planned"]) == ("completed", 2, 2)
    assert job["reproducible"] == "bitwise"
    assert min(episodes_table(evaluated)["length"]) > 10


def test_the_log_says_where_the_model_ran(evaluated):
    log = (evaluated / "logs" / "rank0.log").read_text()
    assert "runs on cpu" in log


def test_an_episode_is_the_same_bits_alone(directory, evaluated):
    assert evaluate(directory, directory / "one", num_envs=1, num_episodes=1) == 0
    checksums = [list(episodes_table(output)["checksum"]) for output in (directory / "one", evaluated)]
    assert checksums[0] == checksums[1][:1]
    assert len(set(checksums[1])) == 2


def test_what_a_checkpoints_files_say_of_it_is_what_the_model_package_says(directory):
    from gr00t.policy.gr00t_policy import Gr00tPolicy  # noqa: PLC0415  transformers takes seconds to load

    policy = Gr00tPolicy("new_embodiment", directory / "checkpoint", device="cpu")
    stated = stated_embodiments(str(directory / "checkpoint"))["new_embodiment"]
    said = model_interface(policy.get_modality_config(), policy.get_dimensions())
    assert model_interface(*stated) == said


# Jobs whose model is behind a server, through the program as a user starts it, also when the server dies.


HORIZON = 5


class Homesick(NetworkPolicy):
    """Sends the Panda home, whatever it sees."""

    def get_modality_config(self) -> dict[str, ModalityConfig]:
        steps = {"action": list(range(HORIZON))}
        keys = {"video": [], "language": ["annotation.human.task_description"]}
        return {
            name: ModalityConfig(steps.get(name, [0]), keys.get(name, ["arm", "gripper"]))
            for name in ("video", "state", "action", "language")
        }

    def get_action(
        self, observation: dict[str, Any], options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        self.asked()
        home = np.tile(np.array([*PANDA.robot.home, 0.0], np.float32), (len(observation["state"]["arm"]), HORIZON, 1))
        return {"arm": home[..., :-1].copy(), "gripper": home[..., -1:].copy()}, {}


@contextmanager
def served(port: int = 0, *, dies_at: int = -1, hangs_at: int = -1) -> Iterator[tuple[int, list[int]]]:
    """Serve on a port; yield it and a list that grows with each query. At one of them the server dies, or hangs."""
    queries: list[int] = []
    is_over = threading.Event()
    line: list[Cable] = []

    def asked() -> None:
        queries.append(len(queries))
        if len(queries) == dies_at:
            threading.Thread(target=line[0].close).start()
            time.sleep(0.2)
        if 0 < hangs_at <= len(queries):
            is_over.wait(120)

    with serving(Homesick(asked)) as found, cable(found.port, port) as made:
        line.append(made)
        try:
            yield made.port, queries
        finally:
            is_over.set()


def jobs(directory: Path, port: int, **options: str | float) -> Path:
    yaml = write_panda_yaml(
        directory / "panda.yaml", action_horizon=HORIZON, action_chunk_length=HORIZON, pov_cam_name_sim={}
    )
    server = {"remote_host": "127.0.0.1", "remote_port": port, "timeout_s": 10.0, "wait_for_server_s": 0.5, **options}
    reach = {"arena_env_args": {"environment": "reach", "num_envs": 1}, "num_episodes": 3}
    served_by = {
        "policy_type": "gr00t_remote_closedloop",
        "policy_config_dict": {"policy_config_yaml_path": yaml, **server},
    }
    return write_jobs(
        directory / "jobs.json",
        [{"name": "served", **reach, **served_by}, {"name": "other", **reach, "policy_type": "zero_action"}],
    )


def remote_evaluate(path: Path, *options: str) -> int:
    return eval_runner.main(["--eval_jobs_config", str(path), "--device", "cpu", *options])


def jobs_by_name(output: Path) -> dict[str, dict[str, Any]]:
    return {str(job["name"]): job for job in jobs_table(output).to_dict("records")}


def test_a_dead_server_fails_its_job_in_time_and_the_run_can_go_on_when_it_is_back(tmp_path, capfd):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    with served() as (port, queries):
        path = jobs(tmp_path, port)
        assert remote_evaluate(path, "--output_dir", str(whole)) == 0
    with served(port, dies_at=len(queries) // 2):
        assert remote_evaluate(path, "--output_dir", str(cut)) == 1
    found = jobs_by_name(cut)["served"]
    # The first episode had ended, the second was under way, the third had not begun.
    assert (found["status"], found["episodes"], found["errors"], found["missing"]) == ("failed", 2, 1, 1)
    said = f"answers at 127.0.0.1:{port}"
    assert said in str(found["error"])
    assert said in capfd.readouterr().out
    lost = episodes_table(cut).set_index(["job", "episode_index"]).loc["served", 1]
    assert (lost["outcome"], lost["termination"]) == ("error", "policy_lost")
    assert str(lost["error"]).startswith("the policy was")
    other = jobs_by_name(cut)["other"]
    assert (other["status"], other["episodes"]) == ("completed", 3)

    with served(port):
        assert remote_evaluate(path, "--resume", str(cut), "--retry_errors") == 0
    found = jobs_by_name(cut)["served"]
    assert (found["status"], found["episodes"], found["errors"], found["retried"]) == ("completed", 3, 0, 1)
    assert found["reproducible"] == "plan"
    assert episodes_table(cut).to_dict("records") == episodes_table(whole).to_dict("records")


@pytest.mark.slow
def test_a_server_that_hangs_costs_its_job_and_not_the_rank_whatever_its_time_outs_say(tmp_path):
    output = tmp_path / "out"
    with served(hangs_at=3) as (port, _):
        path = jobs(tmp_path, port, timeout_s=600.0, wait_for_server_s=600.0)
        line = command("--eval_jobs_config", path, "--output_dir", output, "--step_timeout_s", "6", "--device", "cpu")
        assert run(line).returncode == 1
    found = jobs_by_name(output)
    assert (found["served"]["status"], found["served"]["errors"]) == ("failed", 1)
    assert any(words in str(found["served"]["error"]) for words in ("did not answer", "after waiting"))
    assert (found["other"]["status"], found["other"]["episodes"]) == ("completed", 3)
    assert set(episodes_table(output).query("outcome == 'error'")["termination"]) == {"policy_lost"}
    assert not (output / "logs" / "rank0.watchdog.txt").exists()


def test_a_token_gets_into_nothing_that_a_run_writes(tmp_path):
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    with serving(Homesick(), api_token="open sesame") as server:
        path = jobs(tmp_path, server.port, remote_api_token_file=str(token))
        assert remote_evaluate(path, "--output_dir", str(tmp_path / "out")) == 0
    written = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert tmp_path / "out" / "run.json" in written
    assert not [file for file in written if b"sesame" in file.read_bytes()]

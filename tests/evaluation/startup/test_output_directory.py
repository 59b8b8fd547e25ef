"""The directory of a run, and the contents it was planned with."""

import dataclasses
import functools
import importlib
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.job import ContentReader, contents_of_jobs, package_content
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.start_up import common_directory
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.sim.scene import ASSETS
from isaaclab_arena.storage.contents import SAVED_CONDITIONS, Contents, changes, content_hash
from isaaclab_arena.storage.run_directory import make_output_directory
from tests.distributed.threads import ranks_in_threads
from tests.evaluation.jobs import coin_job

# The directory of a run, where the name that is given leads up.


def test_a_way_up_in_the_name_of_a_directory_makes_no_directory_on_the_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = make_output_directory(output_dir="a/nodir/../../b", output_base_dir="")
    assert made == tmp_path / "b"
    assert make_output_directory(output_dir=None, output_base_dir="c/../d").parent == tmp_path / "d"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "d"]


def test_a_way_up_through_a_link_leads_where_the_link_leads(tmp_path):
    (tmp_path / "far" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "inner")
    made = make_output_directory(output_dir=f"{tmp_path}/link/../out", output_base_dir="")
    assert made == tmp_path / "far" / "out"


# Ranks, as threads, look for the run's directory where each of them was told to.


def seen_by_each(made: Path, options: Sequence[RunOptions]) -> list[str]:
    """Finding of each rank, or the message of its error."""

    def look(ranks: Ranks) -> str:
        rank = ranks.context.rank
        try:
            return str(common_directory(ranks, options[rank], None if rank else made, delay_s=0.0))
        except ConfigError as error:
            return str(error)

    with ThreadPoolExecutor(len(options)) as threads:
        return list(threads.map(look, ranks_in_threads(len(options))))


def named(*directories: Path) -> list[RunOptions]:
    return [RunOptions(output_dir=str(each)) for each in directories]


def test_each_rank_sees_the_directory_by_its_own_name(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    asked = [tmp_path / "out", tmp_path / "link", tmp_path / "out"]
    assert seen_by_each(asked[0], named(*asked)) == [*map(str, asked)]
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("base", ["outputs", "mounted"])
def test_a_dated_directory_is_found_by_the_name_of_rank_0_or_in_the_own_base(tmp_path, base):
    dated = tmp_path / "outputs" / "2026-01-01_00-00-00"
    dated.mkdir(parents=True)
    (tmp_path / "mounted").symlink_to(tmp_path / "outputs")
    options = [RunOptions(), RunOptions(output_base_dir=str(tmp_path / base))]
    assert [Path(each).resolve() for each in seen_by_each(dated, options)] == [dated] * 2


def test_nodes_that_do_not_see_it_are_named_by_all_ranks_with_the_two_ways_out(tmp_path):
    (tmp_path / "out").mkdir()
    said = seen_by_each(tmp_path / "out", named(tmp_path / "out", tmp_path / "own", tmp_path / "out"))
    assert said[0] == said[1] == said[2]
    assert said[0].startswith(f"--output_dir: rank 0 has made {tmp_path / 'out'} on ")
    assert all(part in said[0] for part in ("rank 1 on", "all nodes share", "--cluster ray"))
    assert "rank 2" not in said[0]
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    assert list((tmp_path / "out").iterdir()) == []


def test_of_many_ranks_only_some_are_named(tmp_path):
    (tmp_path / "out").mkdir()
    message = seen_by_each(tmp_path / "out", named(tmp_path / "out", *[tmp_path / "own"] * 11))[0]
    assert "rank 8 on" in message
    assert "rank 9 on" not in message
    assert "and 3 more cannot see it" in message


CARTPOLE = Path("models/cartpole")


def contents(environment: str, policy_type: str = "zero_action", **options: Any) -> Contents:
    config = JobConfig(
        index=0,
        name="a",
        environment=environment,
        environment_args=options.pop("environment_args", {}),
        policy_type=policy_type,
        policy_config_dict=options,
        num_envs=1,
        num_episodes=1,
    )
    return contents_of_jobs(resolve_jobs([config]))["a"]


def test_a_job_of_this_package_alone_has_no_content_beside_it():
    assert contents("cartpole") == Contents()


def test_a_checkpoint_is_the_file_that_is_meant_and_the_configuration_beside_it():
    found = contents("cartpole", "rsl_rl", checkpoint_path=str(CARTPOLE))
    assert found.checkpoint is not None
    assert Path(found.checkpoint).parent == CARTPOLE
    assert sorted(name.partition(" ")[0] for name in found.policy) == ["agent_cfg_path", "checkpoint_path"]


def test_a_file_that_many_jobs_share_is_read_once(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"weights")
    read: list[Path] = []

    def noted(path: Path) -> str:
        read.append(path)
        return content_hash(path)

    reader = ContentReader(functools.cache(noted))
    jobs = [
        dataclasses.replace(
            coin_job(str(index), index=index), policy_options={"weights_path": str(tmp_path / "w.bin"), "n": index}
        )
        for index in range(20)
    ]
    assert len({reader.read(each).policy["weights_path w.bin"] for each in jobs}) == 1
    assert read.count(tmp_path / "w.bin") == 1


def test_secrets_are_not_hashed_into_the_output_of_a_run(tmp_path):
    (tmp_path / "token").write_text("secret")
    job = dataclasses.replace(coin_job("a"), policy_options={"remote_api_token_file": str(tmp_path / "token")})
    assert not any("token" in name for name in contents_of_jobs([job])["a"].policy)


def test_saved_conditions_are_known_by_content():
    one, other = (dataclasses.replace(coin_job("a"), saved_conditions=({"coin.x": value},)) for value in (0.5, 0.6))
    of_one, of_other = (contents_of_jobs([job])["a"].environment[SAVED_CONDITIONS] for job in (one, other))
    assert of_one != of_other
    assert len(of_one) == 64


def test_an_environment_of_an_installed_package_is_known_by_its_version_and_files():
    found = package_content("yaml")
    assert found is not None
    assert found.startswith("PyYAML ")
    assert ", files " in found
    assert package_content("no_such_package_anywhere") is None


def test_a_gymnasium_environment_of_ones_own_is_known_by_its_source():
    found = contents("gym:tests.environments.gym.gym_fakes:Fake/Draw-v0").environment
    assert "module tests.environments.gym.gym_fakes" in found


def test_in_another_interpreter_it_is_known_by_its_file():
    found = contents(
        "gym:tests.environments.gym.gym_fakes:Fake/Draw-v0",
        environment_args={"python": sys.executable, "environment_variables": {"PYTHONPATH": str(Path.cwd())}},
    ).environment
    assert len(found["module tests.environments.gym.gym_fakes"]) == 64


def test_a_robot_of_ones_own_is_its_description_and_every_file_of_its_model(tmp_path):
    document = (Path(__file__).parents[3] / "docs" / "how_to" / "robots.md").read_text()
    model = re.findall(r"```xml\n(.*?)```", document, re.DOTALL)[0]
    described = re.findall(r"```yaml\n(.*?)```", document, re.DOTALL)[0]
    (tmp_path / "six_axis.yaml").write_text(described)
    (tmp_path / "six_axis.xml").write_text(
        model.replace("<worldbody>", '<include file="parts/more.xml"/><worldbody>', 1)
    )
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "more.xml").write_text("<mujoco><size nuserdata='1'/></mujoco>")
    options = {"embodiment": str(tmp_path / "six_axis.yaml"), "action_mode": "joint_position"}
    before = contents("reach", environment_args=options).environment
    assert list(before) == ["robot six_axis.yaml", "robot parts/more.xml", "robot six_axis.xml"]
    (tmp_path / "parts" / "more.xml").write_text("<mujoco><size nuserdata='2'/></mujoco>")
    now = contents("reach", environment_args=options).environment
    assert [name for name, _ in changes(before, now)] == ["robot parts/more.xml"]


def test_a_motion_of_ones_own_counts(tmp_path):
    motion = tmp_path / "motion.csv"
    motion.write_bytes((ASSETS / "motions" / "squat_and_wave.csv").read_bytes())
    found = contents("track_motion", environment_args={"motion_file": str(motion)})
    assert list(found.environment) == ["motion_file motion.csv"]


ACT = """
import torch


def act(observation):
    return torch.full((len(observation["policy"]["cart_pos"]), 1), {push})
"""


def test_a_module_that_is_edited_is_known_by_the_code_that_runs_until_it_is_imported_anew(
    tmp_path, monkeypatch, caplog
):
    """Python keeps what it has imported: the new file's hash would stand beside the old code's numbers."""
    path = tmp_path / "edited_between_runs.py"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    config = JobConfig(
        index=0,
        name="cart",
        environment="cartpole",
        num_envs=1,
        num_episodes=1,
        policy_type="edited_between_runs.act",
    )

    def known_by(source: str, *, anew: bool = False) -> str:
        path.write_text(source)
        importlib.invalidate_caches()
        if anew:
            importlib.reload(sys.modules["edited_between_runs"])
        [job] = resolve_jobs([config])
        return contents_of_jobs([job])["cart"].policy["module edited_between_runs"]

    first = known_by(ACT.format(push=0.0))
    assert first == content_hash(path)
    assert known_by(ACT.format(push=1.0)) == first
    assert "has changed since it was imported, and what was imported runs" in caplog.text
    assert known_by(ACT.format(push=1.0), anew=True) == content_hash(path) != first

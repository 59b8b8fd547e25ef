"""Jobs that are checked and planned before a run."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.cli.main import main
from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.config.schema import JobConfig, JobDefaults
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.planning import plan_run, resumed_plan
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg
from isaaclab_arena.policy.replay import ReplayPolicy, ReplayPolicyCfg
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena.recording.recorder import EpisodeRecorder, RecordedObservations
from isaaclab_arena.registry import Registry
from isaaclab_arena.storage.episodes import list_episodes, read_episode
from isaaclab_arena.storage.ledger import RunPlan, read_plan_copy, read_run_plan, write_run_plan
from tests.environments.building import ALL_ENVIRONMENTS, CPU, build, build_on_the_floor, episode
from tests.evaluation.jobs import coin_job, config_of, request_of
from tests.fakes import CoinBuilder, CoinConfig, ShrugPolicy
from tests.pretend_backend import pretended_environments, there
from tests.pretend_gpu import GPU, PretendGpu

SHRUG = f"{ShrugPolicy.__module__}.ShrugPolicy"


@dataclass(frozen=True, kw_only=True)
class NetworkCfg(PolicyCfg):
    checkpoint: str
    num_envs: int = 1
    policy_device: str = "cuda"
    policy_device_id: int | None = None


class NetworkPolicy(PolicyBase[NetworkCfg]):
    config_class = NetworkCfg

    @classmethod
    def check_options(cls, config) -> None:
        if not config.checkpoint.endswith(".pt"):
            raise ConfigError(Problem(f"'{config.checkpoint}' is no network", key="checkpoint"))

    def get_action(self, env, observation) -> torch.Tensor:
        return torch.zeros(env.num_envs, 2)


class PlainPolicy(PolicyBase[None]):
    def get_action(self, env, observation) -> torch.Tensor:
        return torch.zeros(env.num_envs, 2)


class SelfReadingPolicy(PlainPolicy):
    @classmethod
    def from_dict(cls, config_dict):
        return cls()


class RecordedPolicy(PlainPolicy):
    def num_episodes(self) -> int | None:
        return 4


class UnfinishedPolicy(PolicyBase[None]):
    pass


class BiasedCoinBuilder(CoinBuilder):
    """Refuses options, the way a registered environment does."""

    def check(self, config: CoinConfig) -> None:
        if not 0 <= config.success_rate <= 1:
            raise ConfigError(Problem("a rate lies between 0 and 1", key="success_rate"))


class CountedCoinBuilder(CoinBuilder):
    """Has five coins."""

    def num_episodes(self, config: CoinConfig) -> int:
        return 5


@pytest.fixture(autouse=True)
def environments() -> Iterator[Registry]:
    with ENVIRONMENTS.restored_afterwards() as registry:
        registry.register("coin", BiasedCoinBuilder())
        registry.register("five_coins", CountedCoinBuilder())
        yield registry


def path_of(policy_class: type[PolicyBase]) -> str:
    return f"{policy_class.__module__}.{policy_class.__name__}"


def job(**changes: Any) -> JobConfig:
    return JobConfig(
        **{"index": 0, "name": "a", "environment": "coin", "policy_type": SHRUG, "num_episodes": 1} | changes
    )


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"environment": "cion"}, "arena_env_args.environment", "no environment called 'cion'; did you mean 'coin'?"),
        ({"environment": "a/b.yaml"}, "arena_env_args.environment", "is a graph specification"),
        ({"environment_args": {"sucess_rate": 1}}, "arena_env_args.sucess_rate", "did you mean 'success_rate'?"),
        ({"environment_args": {"num_env": 1}}, "arena_env_args.num_env", "did you mean 'num_envs'?"),
        ({"environment_args": {"success_step": "5"}}, "arena_env_args.success_step", '"5" is not a whole number'),
        ({"environment_args": {"success_rate": 2}}, "arena_env_args.success_rate", "between 0 and 1"),
        ({"policy_type": "zero_acton"}, "policy_type", "no policy called 'zero_acton'; did you mean 'zero_action'?"),
        ({"policy_type": "no.such.Policy"}, "policy_type", "cannot import 'no.such'"),
        ({"policy_type": "tests.fakes.ShrgPolicy"}, "policy_type", "did you mean 'ShrugPolicy'?"),
        ({"policy_type": "os.system"}, "policy_type", "'os.system' is not a policy"),
        ({"policy_type": "tests.fakes.CoinConfig"}, "policy_type", "neither a class of PolicyBase nor a function"),
        ({"policy_type": path_of(UnfinishedPolicy)}, "policy_type", "does not define get_action"),
        ({"policy_config_dict": {"acton": "nan"}}, "policy_config_dict.acton", "did you mean 'action'?"),
        ({"policy_config_dict": {"raise_at": True}}, "policy_config_dict.raise_at", "true is not a whole number"),
        ({"policy_type": path_of(NetworkPolicy)}, "policy_config_dict.checkpoint", "is missing"),
        (
            {"policy_type": path_of(NetworkPolicy), "policy_config_dict": {"checkpoint": "a.txt"}},
            "policy_config_dict.checkpoint",
            "'a.txt' is no network",
        ),
        (
            {"policy_type": path_of(PlainPolicy), "policy_config_dict": {"a": 1}},
            "policy_config_dict.a",
            "takes no options",
        ),
        ({"num_episodes": None}, "num_episodes", "has no length of its own, so give num_episodes or num_steps"),
        ({"enable_cameras": True}, "arena_env_args.enable_cameras", "environment 'coin' has no cameras"),
        (
            {"variations": {"light": {"intensity": {"enabled": True}}}},
            "variations.light.intensity.enabled",
            "this environment has no variation 'light.intensity'",
        ),
        (
            {"variations": {"instruction.words.enabled": True}, "language_instruction": "lift"},
            "variations",
            "'instruction.words' varies the task's words, and the job says its own (language_instruction)",
        ),
        ({"environment": "five_coins", "num_episodes": 6}, "num_episodes", "is 6, and 'five_coins' has 5 episodes"),
        ({"environment": "five_coins", "num_episodes": None, "num_steps": 9}, "num_steps", "give num_episodes"),
        (
            {"environment": "five_coins", "num_episodes": None, "environment_args": {"success_step": "5"}},
            "arena_env_args.success_step",
            '"5" is not a whole number',
        ),
    ],
)
def test_a_job_that_cannot_run_is_refused_with_file_job_and_key(changes, key, message):
    with pytest.raises(ConfigError) as refused:
        resolve_jobs([job(**changes)], file="jobs.json")
    [problem] = refused.value.problems
    assert (problem.file, problem.job, problem.key) == ("jobs.json", "a", key)
    assert message in problem.message


def test_the_number_of_env_slots_and_the_command_line_reach_policies_that_have_such_options():
    network = job(policy_type=path_of(NetworkPolicy), policy_config_dict={"checkpoint": "a.pt"}, num_envs=4)
    jobs = [network, replace(network, num_envs=2), job(num_envs=4)]
    jobs.append(job(policy_type=path_of(SelfReadingPolicy), policy_config_dict={"anything": 1}))
    overrides = {"policy_device": "cpu", "policy_device_id": None}
    options = [found.policy_options for found in resolve_jobs(jobs, overrides=overrides)]
    asked = {"checkpoint": "a.pt", "policy_device": "cpu"}
    assert options == [{**asked, "num_envs": 4}, {**asked, "num_envs": 2}, {}, {"anything": 1}]
    [found] = resolve_jobs([network], policy_batch=64)
    assert found.policy_options["num_envs"] == 64, "it is always asked on that batch"


@pytest.mark.parametrize(
    ("changes", "num_episodes"),
    [({}, 5), ({"num_episodes": 2}, 2), ({"max_episodes": 3}, 3), ({"policy_type": path_of(RecordedPolicy)}, None)],
)
def test_an_environment_may_say_how_many_episodes_it_has(changes, num_episodes):
    config = job(**{"environment": "five_coins", "num_episodes": None} | changes)

    assert resolve_jobs([config])[0].config.num_episodes == num_episodes


CONTEXT = DistributedContext.from_environment(device="cpu", visible_gpus=0)


def plan_of(*jobs, **options: Any) -> RunPlan:
    request = request_of(*(jobs or (coin_job("a"), coin_job("b", index=1))), **options)
    return plan_run(request, CONTEXT.world_size, [str(torch.device("cpu"))], run_id="run", contents={})


def told(before: RunPlan, now: RunPlan) -> list[str]:
    return [str(problem) for problem in resumed_plan(before, now, has_recorded=lambda _: True)[1]]


ONE = replace(coin_job("a", conditions="set.json"), saved_conditions=({"coin.x": 0.5},))


@pytest.mark.parametrize(
    ("before", "now", "differences"),
    [
        (plan_of(), plan_of(), []),
        (plan_of(coin_job("a")), plan_of(coin_job("a", timeout_s=5.0)), []),
        (plan_of(coin_job("a")), plan_of(coin_job("b")), ["job 'b': is new", "job 'a': is missing now"]),
        (plan_of(), plan_of(compression="gzip"), ['--compression: was "none" when the run began, now "gzip"']),
        (
            plan_of(coin_job("a")),
            plan_of(coin_job("a", environment=CoinConfig(success_step=7), seed=4, num_episodes=8)),
            ["job 'a': environment_args: was {", "job 'a': num_episodes: was 10 ", "job 'a': seed: was 0 "],
        ),
        # Other saved conditions under the same name.
        (plan_of(ONE), plan_of(replace(ONE, saved_conditions=({"coin.x": 0.6},))), ["job 'a': saved conditions"]),
    ],
    ids=["none", "time limit", "names", "option", "keys", "conditions"],
)
def test_what_differs_from_the_plan_is_named_with_both_values(tmp_path, before, now, differences):
    write_run_plan(tmp_path, before)
    found = told(read_run_plan(tmp_path), now)
    assert len(found) == len(differences)
    assert all(each.startswith(start) for each, start in zip(found, differences, strict=True)), found


def test_a_plan_with_more_episodes_keeps_everything_else(tmp_path):
    few, many = (
        plan_of(coin_job("a"), coin_job("b", index=1)),
        plan_of(coin_job("a"), coin_job("b", index=1, num_episodes=20)),
    )
    assert told(few, many) == []
    revised, _ = resumed_plan(few, many, has_recorded=lambda _: True)
    assert [job.config.num_episodes for job in revised.jobs] == [10, 20]
    write_run_plan(tmp_path, few)
    write_run_plan(tmp_path, revised, revises=True)
    assert told(read_run_plan(tmp_path), many) == told(read_plan_copy(tmp_path), many) == []
    assert read_run_plan(tmp_path).config_hash == few.config_hash


def test_only_a_job_that_has_recorded_nothing_may_have_another_policy():
    before, now = plan_of(coin_job("a", action="zeros")), plan_of(coin_job("a", action="nan"))
    _, (problem,) = resumed_plan(before, now, has_recorded=lambda _: True)
    assert problem.key == "policy options"
    revised, differences = resumed_plan(before, now, has_recorded=lambda _: False)
    assert differences == []
    assert revised.jobs[0].policy_config == {"action": "nan"}


def test_the_task_is_the_jobs_label_or_else_what_is_to_be_done_in_its_environment():
    can = config_of("lift_object", environment_args={"object": "can"})
    jobs = resolve_jobs([can, config_of("cartpole", name="b"), config_of("reach", name="c", labels={"task": "t"})])
    lift, balance, labelled = (entry.task for entry in plan_of(*jobs).jobs)
    assert (lift, labelled) == ("pick up the blue can and lift it", "t")
    assert balance not in (None, "cartpole")
    assert [entry.task for entry in plan_of(coin_job("a")).jobs] == ["coins"], "it does not say"


REACH = {"name": "reach", "arena_env_args": {"environment": "reach"}, "policy_type": "scripted", "num_episodes": 50}


def chosen(*, defaults=None, **keys) -> int:
    file = read_jobs({"jobs": [{**REACH, **keys}]}, source="jobs.json", defaults=defaults)
    (job,) = resolve_jobs(file.jobs)
    return job.config.num_envs


def with_slots(num_envs) -> dict[str, object]:
    return {"arena_env_args": {"environment": "reach", "num_envs": num_envs}}


def test_as_many_as_pay_and_not_more_than_episodes_of_a_build():
    assert chosen() == chosen(**with_slots("auto")) == 16
    assert chosen(num_episodes=5) == 5
    assert chosen(num_episodes=10, num_rebuilds=3) == 4
    assert chosen(policy_type="random_action") == 16


def test_a_number_that_the_user_gives_stays():
    assert chosen(**with_slots(1)) == 1
    assert chosen(defaults=JobDefaults(num_envs=3)) == 3
    assert chosen(defaults=JobDefaults(num_envs=3), **with_slots(2)) == 2


def test_one_where_more_would_change_the_episodes():
    steps = {**REACH, "num_steps": 30}
    del steps["num_episodes"]
    (job,) = resolve_jobs(read_jobs({"jobs": [steps]}, source="jobs.json").jobs)
    assert job.config.num_envs == 1
    assert chosen(policy_type=f"{__name__}.PlainPolicy") == 1


def test_files_in_forms_of_arena_keep_the_one_that_they_mean_there():
    tokens = {**REACH, "arena_env_args": ["reach", "--embodiment", "panda"]}
    run = {"environment": {"type": "reach"}, "policy": {"type": "scripted"}, "rollout_limit": {"num_episodes": 50}}
    for document in ({"jobs": [tokens]}, {"runs": {"reach": run}}):
        (job,) = resolve_jobs(read_jobs(document, source="jobs.json").jobs)
        assert job.config.num_envs == 1


@pytest.mark.parametrize("assignment", ["round_robin", "dynamic"])
def test_a_resumed_run_keeps_the_number_that_it_began_with(tmp_path, assignment):
    run = ["--output_dir", str(tmp_path / "out"), "--assignment", assignment]
    for num_episodes, resumes in ((3, []), (8, ["--resume"])):
        (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [{**REACH, "num_episodes": num_episodes}]}))
        assert main(["run", str(tmp_path / "jobs.json"), *run, *resumes]) == 0
    assert json.loads((tmp_path / "out" / "run.json").read_text())["jobs"][0]["config"]["num_envs"] == 3
    (attempts,) = [json.loads((tmp_path / "out" / "attempts" / "attempt_2.json").read_text())["jobs"]]
    assert [each["chosen_num_envs"] for each in attempts] == [3]
    lines = (tmp_path / "out" / "reach" / "episode_results_rank0.jsonl").read_text().splitlines()
    assert {json.loads(line)["env_id"] for line in lines} == {0, 1, 2}


NUM_ENVS, NUM_EPISODES, EPISODE_STEPS = 2, 3, 2

Recording = Mapping[int, Mapping[str, np.ndarray]]


@pytest.fixture
def _physics_on_the_gpu(gpu: PretendGpu) -> Iterator[None]:
    with pretended_environments():
        yield


def recorded(directory: Path, name: str, policy: PolicyBase, device: torch.device, **options: Any) -> Recording:
    """Play short episodes, more than there are env slots, and return what was recorded."""
    builds = build if name in ALL_ENVIRONMENTS else build_on_the_floor
    backend = {"backend": "mujoco" if device == CPU else "warp"}
    env = builds(there(name), num_envs=NUM_ENVS, device=device, **{**backend, **options})
    env.max_episode_length = EPISODE_STEPS
    job, seen = f"{name}-{device.type}", RecordedObservations.ALL
    recorder = EpisodeRecorder(directory, job=job, rank=0, world_size=1, attempt=1, observations=seen)
    policy.check_environment(env)
    done = rollout(env, policy, [episode(index) for index in range(NUM_EPISODES)], [recorder])
    assert done.finished_episodes == NUM_EPISODES
    recorder.consolidate()
    recorder.close()
    dataset = directory / f"dataset_{job}.hdf5"
    return {index: read_episode(dataset, index).arrays for index in list_episodes(dataset)}


def assert_the_same(played: Recording, expected: Recording) -> None:
    assert played.keys() == expected.keys() == set(range(NUM_EPISODES))
    for index, arrays in expected.items():
        assert played[index].keys() == arrays.keys()
        for path, array in arrays.items():
            np.testing.assert_array_equal(played[index][path], array, err_msg=path)


@pytest.mark.usefixtures("_physics_on_the_gpu")
@pytest.mark.parametrize("kept_on", [GPU, CPU])
def test_what_was_recorded_on_the_cpu_is_played_again_on_a_gpu(tmp_path, kept_on):
    expected = recorded(tmp_path, "reach", ScriptedPolicy(), CPU)
    again = ReplayPolicy(
        ReplayPolicyCfg(replay_file_path=str(tmp_path / "dataset_reach-cpu.hdf5"), device=str(kept_on))
    )
    assert_the_same(recorded(tmp_path, "reach", again, GPU), expected)

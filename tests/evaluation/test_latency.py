"""Answers of a policy that come late."""

import dataclasses
import math
import time
from contextlib import nullcontext
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.config.schema import Delays, JobStatus, LatencyConfig, Meanwhile, PolicyServerConfig, ServerScope
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.latency import LatePolicy, QueryTimes, continuation, in_time, late_groups, latencies_of
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.planning import (
    NUM_QUERIES,
    Machinery,
    policy_as_served,
    settle_latencies,
    without_outliers,
)
from isaaclab_arena.evaluation.rollout import EnvGroup, rollout
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.storage.ledger import MAX_QUERY_TIMES
from tests.evaluation.jobs import coin_job
from tests.evaluation.plants import (
    GAIN,
    POLE,
    CommittedChunks,
    ConstantChunks,
    NoisyChunks,
    Proportional,
    UnstablePlant,
)
from tests.fakes import CoinBuilder, Notebook, shrugging
from tests.fakes_environment import ActionLog, PushPolicy, ScriptedEnvironment, episodes
from tests.fakes_network import ServablePolicy


def test_times_are_rounded_up_to_control_steps():
    assert in_time([0.0, 49.9, 50.0, 50.1, 120.0], 0.05).steps == ((0, 1), (1, 2), (2, 1), (3, 1))
    # 0.06 / 0.02 is a little more than 3 in floating point.
    assert in_time([60.0], 0.02).steps == ((3, 1),)
    assert str(in_time([120.0], 0.05)) == "3 control steps of 50 ms"


def test_a_range_of_times_is_uniform(tmp_path):
    latencies = latencies_of(LatencyConfig(ms=(40.0, 120.0)), tmp_path)
    assert latencies is not None
    steps = dict(in_time(latencies, 0.05).steps)
    assert [round(steps[number] / sum(steps.values()), 3) for number in (1, 2, 3)] == [0.125, 0.625, 0.25]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ms\n4\n", "has no column 'latency_ms'"),
        ("latency_ms\n", "has 0 latencies"),
        ("latency_ms\n40\n-1\n", "line 3: '-1' is no latency"),
        ("latency_ms\n40\nnan\n", "line 3: 'nan' is no latency"),
        ("latency_ms,gpu\n,h200\n", "line 2: '' is no latency"),
        (None, "cannot be read"),
    ],
)
def test_a_file_of_latencies_is_read_relative_to_the_job_file_and_a_wrong_one_refused(tmp_path, text, why):
    (tmp_path / "other.csv").write_text("latency_ms,gpu\n41.5,h200\n60,h200\n", encoding="utf-8")
    assert latencies_of(LatencyConfig(file="other.csv"), tmp_path) == (41.5, 60.0)
    if text is not None:
        (tmp_path / "latencies.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"latencies\.csv") as refused:
        latencies_of(LatencyConfig(file="latencies.csv"), tmp_path)
    assert why in str(refused.value)
    assert refused.value.problems[0].key == "latency.file"


UP_TO_TWO = Delays(steps=((0, 1), (1, 2), (2, 1)))


def test_a_delay_is_drawn_as_often_as_it_was_measured():
    generator = np.random.default_rng(0)
    drawn = [UP_TO_TWO.draw(generator) for _ in range(4000)]
    assert [drawn.count(steps) / 4000 for steps in range(3)] == pytest.approx([0.25, 0.5, 0.25], abs=0.03)


class Still(ScriptedEnvironment):
    """The scripted environment with an action that keeps the point where it is."""

    hold_action = (0.0, 0.0, None)


def late(policy: PolicyBase, delays: Delays | int, meanwhile: Meanwhile) -> LatePolicy:
    every = delays if isinstance(delays, Delays) else Delays(steps=((delays, 1),))
    return LatePolicy(policy, every, meanwhile, QueryTimes())


def success_of(policy: PolicyBase, hold_action, delay: int, meanwhile: Meanwhile) -> list[bool | None]:
    notebook = Notebook()
    rollout(UnstablePlant(4, hold_action), late(policy, delay, meanwhile), episodes(4), [notebook])
    return [record.success for record in notebook.records]


def radius(*lines: tuple[float, float]) -> float:
    return float(np.abs(np.linalg.eigvals(np.array(lines))).max())


def multiplier(meanwhile: Meanwhile, delay: int, *, holds_last: bool) -> float:
    """Return by how much the plant grows from one query to the next, as control theory says."""
    grown = sum(POLE**step for step in range(delay))
    if meanwhile in (Meanwhile.CHUNK, Meanwhile.RTC):
        # A constant action that was chosen a query before, for as many steps as the next one takes. It makes no
        # difference whether the actions that were played meanwhile are dropped of a chunk, or given to it as committed.
        return radius((POLE**delay, -GAIN * grown), (1.0, 0.0)) if delay else abs(POLE - GAIN)
    # One action in every delay + 1 steps; before it the last one, or nothing.
    return radius((POLE ** (delay + 1) - GAIN, -GAIN * POLE * grown if holds_last else 0.0), (1.0, 0.0))


@pytest.mark.parametrize(
    ("policy", "hold_action", "meanwhile"),
    [
        (Proportional, (0.0,), Meanwhile.HOLD),
        (Proportional, "last", Meanwhile.HOLD),
        (ConstantChunks, None, Meanwhile.CHUNK),
        (CommittedChunks, None, Meanwhile.RTC),
    ],
)
def test_an_unstable_plant_is_lost_exactly_where_its_delay_margin_ends(policy, hold_action, meanwhile):
    factors = [multiplier(meanwhile, delay, holds_last=hold_action == "last") for delay in range(6)]
    assert factors[0] < 1 < factors[-1]
    for delay, factor in enumerate(factors):
        assert success_of(policy(), hold_action, delay, meanwhile) == [factor < 1] * 4, (delay, factor)


def actions(policy: PolicyBase, num_envs: int, first: int = 0) -> dict[int, torch.Tensor]:
    log = ActionLog()
    rollout(Still(num_envs, endings=("timeout",), cameras=True), policy, episodes(20)[first:], [log])
    return log.actions


@pytest.mark.parametrize(
    ("meanwhile", "policy"),
    [*((meanwhile, NoisyChunks) for meanwhile in Meanwhile), (Meanwhile.HOLD, PushPolicy)],
)
def test_what_an_episode_does_depends_on_nothing_but_the_episode(meanwhile, policy):
    alone = actions(late(policy(), UP_TO_TWO, meanwhile), 1)
    together = actions(late(policy(), UP_TO_TWO, meanwhile), 7)
    # A run that was killed goes on with the episodes that are missing.
    resumed = actions(late(policy(), UP_TO_TWO, meanwhile), 3, first=13)
    assert all(torch.equal(alone[index], together[index]) for index in range(20))
    assert all(torch.equal(alone[index], resumed[index]) for index in range(13, 20))


def test_a_robot_that_holds_still_repeats_the_elements_that_its_environment_says():
    done = actions(late(NoisyChunks(), 2, Meanwhile.HOLD), 2)
    waits = [episode[3:5] for episode in done.values() if len(episode) >= 5]
    before = [episode[2] for episode in done.values() if len(episode) >= 5]
    assert waits
    assert all(bool((each[:, :2] == 0).all()) for each in waits)
    assert all(bool((each[:, 2] == last[2]).all()) for each, last in zip(waits, before, strict=True))


class Counting(NoisyChunks):
    """Answers with the step of its query and the place in the chunk."""

    def chunks(self, env, observation, env_ids, going_on=None):
        steps = observation["policy"]["clock"][list(env_ids)].float()
        places = torch.arange(float(self.PREDICTED))
        return torch.stack([steps.expand(-1, self.PREDICTED), places.expand(len(steps), -1), steps + places], dim=2)


def test_a_robot_that_goes_on_leaves_out_the_actions_that_are_late_and_one_that_waits_plays_every_one():
    done = actions(late(Counting(), 2, Meanwhile.CHUNK), 3)
    # Three actions of each chunk are played. A query is made two steps before they are used up.
    assert max(done.values(), key=len)[:, 0].tolist() == [0, 0, 0, 1, 1, 1, 4, 4]
    # Each action is played in the step that it was predicted for.
    assert all(episode[:, 2].tolist() == list(range(len(episode))) for episode in done.values())
    waited = max(actions(late(Counting(), 2, Meanwhile.HOLD), 3).values(), key=len)
    assert waited[:, 2].tolist() == [0, 1, 2, 2, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("hold_action", "meanwhile", "metrics"),
    [
        # The first answer is waited for, then 2 of 3 steps wait for the next one.
        ((0.0,), Meanwhile.HOLD, {"latency.stale_share": 40 / 60, "latency.queries_per_s": 21 / 3.0}),
        (None, Meanwhile.WAIT, {}),
    ],
)
def test_an_episode_tells_how_stale_its_actions_were_unless_the_world_waits(hold_action, meanwhile, metrics):
    notebook = Notebook()
    rollout(UnstablePlant(2, hold_action), late(Proportional(), 2, meanwhile), episodes(2), [notebook])
    assert [record.metrics for record in notebook.records] == [metrics] * 2
    assert meanwhile is Meanwhile.HOLD or {record.success for record in notebook.records} == {True}


def test_a_sample_is_bounded_and_has_queries_of_all_of_a_job():
    times = QueryTimes()
    for number in range(10 * MAX_QUERY_TIMES):
        times.add(float(number))
    kept = times.kept_s
    assert MAX_QUERY_TIMES / 2 <= len(kept) <= MAX_QUERY_TIMES
    assert len({later - earlier for earlier, later in pairwise(kept)}) == 1
    assert (kept[0], kept[-1]) == (0.0, 5104.0)


def job(latency, environment="reach", policy="zero_action", options=None, **arguments):
    block = {
        "name": "late",
        "arena_env_args": {"environment": environment, **arguments},
        "policy_type": policy,
        "policy_config_dict": options or {},
        "num_episodes": 1,
        "latency": latency,
    }
    read = read_jobs({"jobs": [block]}, source="jobs.yaml")
    (resolved,) = resolve_jobs(read.readable_jobs, file="jobs.yaml", known=read.problems)
    return resolved


def test_times_come_to_control_steps_of_the_environment_before_the_run_starts():
    resolved = job({"ms": 120, "meanwhile": "hold"}, environment="lift_object")
    assert resolved.delays == Delays(steps=((3, 1),), control_dt=0.05)


OPENPI = {"states": {"observation/state": ["robot_joint_pos"]}, "action_chunk_length": 6}


GR00T = {"policy_config_yaml_path": "isaaclab_arena_gr00t/policy/config/panda_closedloop.yaml"}
CLOSED = {**GR00T, "model_path": "models/panda_tabletop"}
COEFFICIENT = "temporal_ensemble_coeff"
AVERAGING = {**CLOSED, COEFFICIENT: 0.1}


@pytest.mark.parametrize(
    ("latency", "policy", "options", "key", "why"),
    [
        ({"steps": 4, "meanwhile": "chunk"}, "openpi_remote", OPENPI, "latency.meanwhile", ""),
        ({"steps": 1, "meanwhile": "rtc"}, "openpi_remote", OPENPI, "latency.meanwhile", ""),
        ({"steps": 9, "meanwhile": "chunk"}, "gr00t_closedloop", CLOSED, "latency.meanwhile", ""),
        ({"steps": 1, "meanwhile": "rtc"}, "gr00t_remote_closedloop", GR00T, "latency.meanwhile", ""),
        ({"steps": 1, "meanwhile": "hold"}, "gr00t_closedloop", AVERAGING, f"policy_config_dict.{COEFFICIENT}", ""),
        ({"steps": 10_000, "meanwhile": "wait"}, "zero_action", {}, "latency", "an episode has"),
        ({"steps": 1, "meanwhile": "chunk"}, "zero_action", {}, "latency.meanwhile", "predicts only 1 action"),
        ({"steps": 0, "meanwhile": "rtc"}, "zero_action", {}, "latency.meanwhile", "continues given actions"),
        ({"file": "none.csv"}, "zero_action", {}, "latency.file", "cannot be read"),
    ],
)
def test_what_cannot_work_as_far_as_its_options_say_is_refused_before_it_is_built(latency, policy, options, key, why):
    with pytest.raises(ConfigError, match=why) as refused:
        job(latency, "lift_object", policy, options, camera_size=64, enable_cameras=True)
    (problem,) = refused.value.problems
    assert (problem.file, problem.job, problem.key) == ("jobs.yaml", "late", key)


@pytest.mark.parametrize(
    ("steps", "meanwhile", "environment", "policy", "why"),
    [
        ((1, 1), "hold", UnstablePlant(1, None), Proportional(), "declares none"),
        ((0, 5), "chunk", ScriptedEnvironment(1), NoisyChunks(), "at most 4 steps"),
        ((4, 4), "chunk", ScriptedEnvironment(1), NoisyChunks(), None),
        ((2, 2), "rtc", UnstablePlant(1, None), ConstantChunks(), "use chunk"),
        ((8, 8), "wait", ScriptedEnvironment(1), NoisyChunks(), "has 8"),
    ],
)
def test_what_environment_and_policy_cannot_do_is_refused_when_they_are_built(
    steps, meanwhile, environment, policy, why
):
    delays = Delays(steps=tuple((number, 1) for number in range(steps[0], steps[1] + 1)))
    config = LatencyConfig(steps=steps, meanwhile=Meanwhile(meanwhile))
    group = EnvGroup(environment=environment, policy=policy)
    with pytest.raises(ConfigError, match=why) if why else nullcontext():
        assert isinstance(late_groups([group], config, delays, None, QueryTimes())[0].policy, LatePolicy)


@pytest.mark.parametrize(
    ("environment", "options", "held"),
    [
        ("lift_object", {}, "last"),
        ("cartpole", {}, (0.0,)),
        # Steps of the hand are held by none, and the gripper by its last width.
        ("lift_object", {"action_mode": "ee_delta"}, (0.0,) * 6 + (None,)),
    ],
)
def test_the_environments_of_this_package_declare_what_holds_their_robots(environment, options, held):
    resolved = job({"steps": 1}, environment=environment, **options)
    sample = resolved.builder.sample(resolved.environment_config)
    assert sample is not None
    assert sample.hold_action == held


def test_the_mask_is_that_of_the_paper():
    (weights,) = continuation(torch.zeros(1, 16, 1), torch.tensor([8]), committed=4).weights
    shares = [(8 - place) / (8 - 4 + 1) for place in range(4, 8)]
    expected = [1.0] * 4 + [share * (math.exp(share) - 1) / (math.e - 1) for share in shares] + [0.0] * 8
    assert torch.allclose(weights, torch.tensor(expected))


def test_chunks_go_on_from_what_is_left_of_the_plan_and_from_nothing_where_there_is_none():
    plans = torch.arange(8.0).reshape(2, 4, 1)
    going_on = continuation(plans, torch.tensor([1, 4]), committed=2)
    assert going_on.actions.flatten(1).tolist() == [[1, 2, 3, 0], [0, 0, 0, 0]]
    assert going_on.weights[0, :2].tolist() == [1, 1]
    assert 0 < going_on.weights[0, 2] < 1
    assert going_on.weights[0, 3] == 0
    assert not going_on.weights[1].any()


MACHINERY = Machinery(devices=("cpu",), num_threads=1)
THREE = Delays(steps=((3, 1),), control_dt=0.1)


def measuring(
    builder: CoinBuilder, name: str = "coins", *, measured: bool = True, meanwhile: str = "wait", **config
) -> Job:
    how = Meanwhile(meanwhile)
    latency = LatencyConfig(measured=True, meanwhile=how) if measured else LatencyConfig(steps=(1, 1), meanwhile=how)
    return coin_job(name, builder=builder, latency=latency, **config)


def test_a_latency_is_a_distribution_of_queries_in_control_steps_and_a_policy_that_raises_has_none():
    builder = CoinBuilder()
    jobs = [measuring(CoinBuilder(), "broken", raise_at=1), measuring(builder)]
    # A policy that does nothing answers within one step of 100 ms.
    expected = {"coins": Delays(steps=((1, NUM_QUERIES),), control_dt=0.1)}
    assert settle_latencies(jobs, MACHINERY, known={}) == expected
    assert [(each.num_envs, each.closed) for each in builder.built] == [(1, True)]


def test_only_jobs_that_ask_for_it_are_to_run_and_were_not_measured_before_are_measured():
    builder = CoinBuilder()
    jobs = [measuring(builder), coin_job("plain", builder=builder), measuring(builder, "given", measured=False)]
    jobs.append(measuring(builder, "skipped", status=JobStatus.COMPLETED))
    assert settle_latencies(jobs, MACHINERY, known={"coins": THREE}) == {"coins": THREE}
    assert builder.built == []


def test_a_head_without_a_gpu_refuses_to_measure_for_ranks_that_have_one():
    builder = CoinBuilder()
    machinery = Machinery(devices=("cuda",), num_threads=1, measures=False)
    with pytest.raises(ConfigError, match="no GPU") as refused:
        settle_latencies([measuring(builder)], machinery, known={})
    assert [(each.job, each.key) for each in refused.value.problems] == [("coins", "latency")]
    assert builder.built == []
    assert settle_latencies([measuring(builder)], machinery, known={"coins": THREE}) == {"coins": THREE}


def test_one_slow_query_does_not_decide_how_late_answers_are():
    times_ms = [*range(1, 40), 5000]
    assert without_outliers(times_ms) == [*range(1, 40), 39]
    assert without_outliers([7.0, 7.0]) == [7.0, 7.0]


class QuickBuilder(CoinBuilder):
    """Builds coins with control steps of 4 ms."""

    def build(self, config, *, num_envs, device, num_threads):
        built = super().build(config, num_envs=num_envs, device=device, num_threads=num_threads)
        built.control_dt = 0.004
        return built


def test_what_is_too_late_is_refused_before_the_run_with_what_was_measured_and_a_way_out():
    builder = QuickBuilder()
    late = measuring(builder, "late", meanwhile="chunk", policy_class=shrugging(lambda *_: time.sleep(0.005)))
    with pytest.raises(ConfigError, match=r"use hold; .* ms \(p50\), .* ms \(p95\)") as refused:
        settle_latencies([late, measuring(CoinBuilder())], MACHINERY, known={})
    assert [(each.job, each.key) for each in refused.value.problems] == [("late", "latency.meanwhile")]
    assert [each.closed for each in builder.built] == [True]


# The server is a process of its own, which imports torch.
def test_the_policy_in_a_runs_policy_server_is_the_one_that_is_measured(tmp_path):
    asked = []

    class Watched(ServablePolicy):
        @classmethod
        def asking(cls, options, network):
            asked.append(network)
            return super().asking(options, network)

    builder = CoinBuilder()
    job = measuring(builder, policy_class=Watched, policy_server=PolicyServerConfig(shared=ServerScope.RUN))
    job = dataclasses.replace(
        job, config=dataclasses.replace(job.config, policy_type="tests.fakes_network.ServablePolicy")
    )
    served = partial(policy_as_served, options=RunOptions(), output_directory=tmp_path)
    assert list(settle_latencies([job], MACHINERY, known={}, asked=served)) == ["coins"]
    assert asked[0].usage.queries >= NUM_QUERIES
    assert list(tmp_path.iterdir()) == []

"""Figures that benchmarks count, in cases whose answer is known."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.analysis.decision_quality import (
    Figure,
    Setting,
    log_e_values,
    log_e_values_of_difference,
    log_e_values_of_rate,
    rejected_by,
    stops,
    streams,
)
from benchmarks.artifacts import reference_motion
from benchmarks.artifacts.report_pictures import MOST_BYTES, WIDTH, photograph, shown_runs
from benchmarks.gr00t import wires
from benchmarks.gr00t.checkpoint import save_random_checkpoint, write_policy_yaml
from benchmarks.gr00t.policy import count_requests
from benchmarks.gr00t.wire_worker.answers import ACTION_DIM, NUM_STEPS
from benchmarks.lerobot.pusht_side_by_side import Episodes, furthest_apart, our_episodes, outcomes_apart, their_episodes
from benchmarks.lerobot.trained import shown_in
from benchmarks.scheduling.cluster import ClusterOptions, SimulatedJob, simulate
from benchmarks.scheduling.scale import AIM, KINDS, Options, outcomes
from benchmarks.success.engines import Engine, paired, pairs_table
from benchmarks.success.models import PAGES, jobs_document
from benchmarks.training import ranks
from benchmarks.training.exchange import Options as ExchangeOptions
from benchmarks.training.exchange import counted as counted_on_ranks
from benchmarks.training.exchange import exchanged, figures
from isaaclab_arena.analysis.arms import Arm, EpisodeColumns
from isaaclab_arena.environments.tasks.track_motion import read_motion
from isaaclab_arena.environments.tasks.walk_humanoid import FEET, HUMANOID, KEYPOINTS
from isaaclab_arena.errors import ArenaError
from isaaclab_arena.interfaces.episode import MAX_SEED, Episode, count_episodes
from isaaclab_arena.results.statistics import mcnemar_mid_p
from isaaclab_arena.results.stopping import (
    PairCounts,
    RateCounts,
    log_e_value_of_difference,
    log_e_value_of_equality,
    log_e_value_of_rate,
)
from isaaclab_arena.training import TASKS
from isaaclab_arena_gr00t.config import read_policy_config
from tests.browser.chromium import executable
from tests.gr00t.data.recordings import record, recorded_episode

# Artifacts.


def test_the_motion_that_comes_along_is_the_one_that_the_program_writes_and_a_person_could_do_it():
    made = reference_motion.written(reference_motion.frames()[::30]).splitlines()
    heading, *committed = reference_motion.MOTION.read_text(encoding="utf-8").splitlines()
    assert made[0] == heading
    for ours, theirs in zip(made[1:], committed[::30], strict=True):
        # Times differ where frames are left out, and the last digit may.
        first, second = ([float(value) for value in line.split(",")[1:]] for line in (ours, theirs))
        assert first == pytest.approx(second, abs=2e-5)
    motion = read_motion(reference_motion.MOTION, HUMANOID, KEYPOINTS, 0.02)
    feet = motion.keypoints[:, [KEYPOINTS.index(foot) for foot in FEET]]
    assert np.abs(feet - feet[0]).max() < 1e-3
    assert np.abs(motion.joint_velocity).max() < 12
    assert np.abs(motion.joint_velocity[[0, -1]]).max() < 1e-3
    assert np.allclose(motion.joint_position[0], motion.joint_position[-1], atol=1e-4)


@pytest.mark.slow
def test_a_page_is_shown_from_its_top_in_its_colours_unless_its_picture_is_too_large(tmp_path):
    executable()
    page = tmp_path / "page.html"
    page.write_text("<body style='margin:0;background:#d55e00'><p style='margin-top:900px'>below</p>")
    photograph(page, tmp_path / "page.png", height=300)
    with Image.open(tmp_path / "page.png") as picture:
        assert picture.size == (WIDTH, 300)
        assert picture.convert("RGB").getcolors() == [(WIDTH * 300, (0xD5, 0x5E, 0x00))]
    # Of few colours, because finding the ones to keep of a million takes a minute.
    noise = np.random.default_rng(0).integers(0, 4, (1000, 1200, 3), dtype=np.uint8) * 85
    Image.fromarray(noise).save(tmp_path / "noise.png")
    page.write_text("<img src=noise.png>")
    with pytest.raises(ArenaError, match=str(MOST_BYTES)):
        photograph(page, tmp_path / "page.png", height=1000)


def test_the_pictures_of_the_documents_are_those_that_the_program_makes():
    for shown in shown_runs(Path("comparison.yaml")):
        path = Path("docs/images") / f"report_{shown.name}.png"
        with Image.open(path) as picture:
            assert picture.size == (WIDTH, shown.height)
        assert path.stat().st_size <= MOST_BYTES


# GR00T and LeRobot.


@pytest.fixture(scope="module")
def model_path(tmp_path_factory) -> Path:
    """Directory of a checkpoint of random weights."""
    path = tmp_path_factory.mktemp("gr00t_benchmarks") / "checkpoint"
    assert save_random_checkpoint(path) > 1_000_000
    return path


def test_slots_are_asked_for_once_a_chunk(model_path, tmp_path):
    blind = write_policy_yaml(tmp_path / "blind.yaml", model_path, pov_cam_name_sim={})
    count, found = count_requests(blind, "lift_object", num_envs=3, num_episodes=7, per_query=4)
    chunk_length = read_policy_config(blind).action_chunk_length
    lengths = [record.length for record in found.records]
    assert len(set(lengths)) > 1
    assert count.slots_needed == sum(math.ceil(length / chunk_length) for length in lengths)
    # Each query is filled up to four env slots, and three env slots make one query at most.
    assert count.slots_asked % 4 == 0
    assert count.slots_needed < count.slots_of_all <= 3 * count.slots_asked // 4


@pytest.mark.slow
def test_each_wire_answers_for_all_env_slots_and_costs_what_both_processes_take():
    picture, chunk = np.zeros((4, 4, 3), np.uint8), (NUM_STEPS, ACTION_DIM)
    with wires.ExitStack() as stack:
        found = wires.ways(stack, {"front": picture, "side": picture}, wires.Options())
        answers: dict[str, Any] = {name: way.ask(2) for name, way in found.items()}
        cost = wires.measured(found["openpi"], num_slots=2, num_queries=8)
    assert np.shape(answers.pop("in this process")) == (2, *chunk)
    assert answers.pop("policy server")["actions"].shape == (2, *chunk)
    assert answers.pop("gr00t")[0]["action"].shape == (2, *chunk)
    assert answers.pop("lerobot")[1]["actions"].shape == (2, *chunk)
    assert set(answers) == {"openpi", "vla_eval, raw", "vla_eval, png", "vla_eval, jpeg"}
    assert all([answer["actions"].shape for answer in each] == [chunk, chunk] for each in answers.values())
    assert min(cost.client_ms, cost.server_ms) > 0
    assert cost.cpu_ms == pytest.approx(cost.client_ms + cost.server_ms)


def test_episodes_of_lerobots_program_and_ours_are_compared_one_by_one(tmp_path):
    metrics = {"sum_rewards": [0.0, 4.5, 18.0], "successes": [False, True, True], "max_rewards": []}
    theirs = {"per_task": [{"task_group": "pusht", "metrics": metrics}]}
    (tmp_path / "eval_info.json").write_text(json.dumps(theirs))
    # A run lists its episodes in the order in which they ended.
    rows = ("pusht,2,18.0,True", "pusht,0,0.0,False", "pusht,1,4.25,False")
    (tmp_path / "episodes.csv").write_text("\n".join(["job,episode_index,return,success", *rows, ""]))
    ours = our_episodes(tmp_path)
    assert ours == Episodes(returns=[0.0, 4.25, 18.0], successes=[False, False, True])
    assert furthest_apart(ours.returns, their_episodes(tmp_path).returns) == 0.25
    assert outcomes_apart(ours, their_episodes(tmp_path)) == 1


def test_lerobots_loop_is_shown_what_the_policy_saw_and_the_seeds_of_its_noise(tmp_path):
    shown = shown_in(record(tmp_path, "act", [5, 4]), "act", index=1, seed=7)
    source = recorded_episode(1, 4, "act").arrays
    assert np.array_equal(shown["state"][:, :7], source["obs/robot_joint_pos"])
    assert np.array_equal(shown["state"][:, 7:], source["obs/gripper_pos"])
    assert np.array_equal(shown["wrist_cam_rgb"], source["camera_obs/wrist_cam_rgb"])
    stream = Episode(job="act", episode_index=1, seed=7).policy_generator()
    assert shown["seeds"].tolist() == [stream.integers(MAX_SEED, endpoint=True) for _ in range(4)]


# Scheduling.


@pytest.mark.parametrize("failures_per_gpu_day", [0.0, 20.0, 500.0])
def test_every_episode_is_committed_once_and_no_run_beats_its_bound(failures_per_gpu_day):
    generator = np.random.default_rng(0)
    jobs = [
        SimulatedJob(
            environment=f"environment {index // 2}",
            episode_s=4.0 * generator.lognormal(sigma=0.3, size=400 * (1 + index % 4)),
        )
        for index in range(10)
    ]
    cluster = ClusterOptions(num_ranks=40, joining_s=20.0, start_up_s=10.0, build_s=5.0)
    cluster = dataclasses.replace(cluster, failures_per_gpu_day=failures_per_gpu_day)
    ended = simulate(jobs, cluster, np.random.default_rng(1))
    assert ended.num_committed == sum(count_episodes(job.episodes) for job in jobs)
    assert ended.over_bound >= 1.0
    assert (ended.num_failures > 0) == (ended.num_episodes_lost > 0) == (failures_per_gpu_day > 0)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "within"), [*zip(KINDS, (AIM, 1.06, AIM), strict=True)])
def test_a_tenth_of_the_ranks_of_the_page_keep_to_its_aim_or_come_near(kind, within):
    # A tenth of the ranks have a tenth of the work, so it ends as it does for a thousand, with more of it by chance.
    # An hour of episodes of a minute, of which the longest take ten, misses the aim by a thousandth.
    options = Options(ranks=100, draws=3, service_ms=0.4, word_ms=0.4)
    over = [each.over_bound for each in outcomes(kind, "RSC-1, jobs of 1,024 GPUs", options)]
    assert np.mean(over) <= within


# Success rates.


def engine(version: str, success: list[float], lengths: list[int]) -> Engine:
    number = len(success)
    nothing: Any = None
    names = np.array([str(index) for index in range(number)], object)
    episodes = EpisodeColumns(
        index=np.arange(number), drawn=names, began=names, success=np.array(success), length=np.array(lengths),
        episode_return=np.zeros(number), metrics=np.array(["{}"] * number, object), events=np.full(number, None),
        conditions=np.array([f'{{"gym.seed": {index}}}' for index in range(number)], object),
    )  # fmt: skip
    arm = Arm(directory=nothing, entry=nothing, contents=nothing, provenance=nothing, episodes=episodes, planned=number)
    return Engine(version=version, packages="numpy 2", arms={"lift": arm})


def test_pairs_of_engines_say_which_version_alone_solved_them_and_whose_length_is_another():
    older = engine("3.3.2", [1, 1, 1, 0, 1], [10, 10, 10, 20, 10])
    newer = engine("3.9.0", [1, 0, 0, 1, 1], [10, 20, 20, 15, 11])
    counts, changed = paired(older, newer)
    assert (counts.both, counts.only_first, counts.only_second, counts.neither, changed) == (2, 2, 1, 0, 0.8)
    last = str(pairs_table({"robosuite": [older, newer]})).splitlines()[-1]
    assert last.startswith("| robosuite | 3.3.2, 3.9.0 | -20.0 points [")
    assert last.endswith("| 5 | 3 | 2 | 1 | 80 % |")


def test_what_is_to_be_measured_ships():
    for page in PAGES:
        assert set(PAGES[page].wanted) <= {job["name"] for job in jobs_document(PAGES[page], 3)["jobs"]}
    assert {measured.task for measured in ranks.TASKS} <= set(TASKS.names())


# Training.


def test_collectives_of_an_iteration_are_told_apart_by_what_is_in_them():
    facts = {"num_learning_epochs": 2, "num_mini_batches": 3, "gradient_bytes": 400}
    calls = [["all_reduce", 400, 12], ["all_reduce", 4, 24], ["broadcast", 4, 12]]
    one = exchanged(facts, {"calls": calls}, 2)
    assert (one.mini_batches, one.gradient_calls, one.calls) == (6, 6, 24)
    assert (one.sent_bytes, one.least_bytes) == (6 * 400 + 18 * 4, 2400)
    assert figures(one)[3:] == ("24", "4.0", "2,472", "412", "1.030")


@pytest.mark.usefixtures("quick_python")
def test_two_ranks_exchange_one_gradient_for_each_mini_batch():
    one = counted_on_ranks(ExchangeOptions(num_envs=4), ("agent.num_steps_per_env=8",))
    assert one.gradient_calls == one.mini_batches == 20
    assert 1.0 < one.sent_bytes / one.least_bytes < 1.01


# Decisions while a run goes on.


def test_many_streams_at_once_have_the_evidence_that_each_has_alone():
    generator = np.random.default_rng(2)
    wins, losses, alike = generator.integers(0, 40, size=(3, 50))
    counted = list(zip(wins.tolist(), losses.tolist(), alike.tolist(), strict=True))
    pairs = [PairCounts(both=same, only_first=won, only_second=lost, neither=0) for won, lost, same in counted]
    assert log_e_values(wins, losses) == pytest.approx([log_e_value_of_equality(each) for each in pairs])
    for difference in (-0.2, 0.0, 0.1):
        assert log_e_values_of_difference(wins, losses, alike, difference) == pytest.approx(
            [log_e_value_of_difference(each, difference) for each in pairs]
        )
    rates = [RateCounts(successes=won, trials=won + lost) for won, lost, _ in counted]
    assert log_e_values_of_rate(wins, losses, 0.8) == pytest.approx([log_e_value_of_rate(each, 0.8) for each in rates])


def test_a_figure_keeps_its_bar_or_is_marked():
    kept = Figure(what="error", setting="", value=0.04, at_most=0.05)
    missed = Figure(what="pairs", setting="", value=61.26, at_least=10.0, at_most=60.0, unit="pairs")
    assert kept.cells()[2:] == ("4.00 %", "at most 5 %", "yes")
    assert missed.cells()[2:] == ("61.3 pairs", "at least 10, at most 60 pairs", "NO")


EQUAL, UNEQUAL = (Setting(first=first, second=0.7, agreement=0.5) for first in (0.7, 0.9))


def test_evidence_stops_few_streams_without_a_difference_and_all_with_one_and_a_test_keeps_its_level():
    generator = np.random.default_rng(1)
    assert 0.035 < rejected_by(mcnemar_mid_p, EQUAL, pairs=200, repeats=2_000, generator=generator) < 0.065
    equal, unequal = (streams(each, looks=300, repeats=1_000, generator=generator) for each in (EQUAL, UNEQUAL))
    assert 0.01 < stops(log_e_values(equal.wins, equal.losses)).decided < 0.05
    found = stops(log_e_values(unequal.wins, unequal.losses))
    assert found.decided > 0.99
    assert 48.0 < found.mean_episodes < 58.0

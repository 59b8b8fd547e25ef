"""Environments made elsewhere behave as the contract of `Environment` says."""

import random
from contextlib import closing

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.gym.builder import MetaWorldConfig
from isaaclab_arena.errors import ArenaError, EnvironmentBuildError, PolicyError, UnannouncedPictureError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.episode import Episode, Outcome
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.interfaces.specs import VIEWPORT, ArraySpec
from isaaclab_arena.policy.catalog import FunctionPolicy
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy
from isaaclab_arena.recording import VideoOptions
from isaaclab_arena.recording.video import VideoRecorder
from tests.environments.gym.gym_fakes import ID, TELLING
from tests.environments.gym.gym_leaks import GlobalNoise, Leaking, RareNoise, TorchNoise, name_of
from tests.environments.gym.gym_running import IN_WORKERS, Trace, build, run
from tests.environments.gym.looking import PERIOD, LooksNowAndThen
from tests.layouts import LAYOUTS

PLACES = pytest.mark.parametrize("place", [{}, IN_WORKERS], ids=["here", "in_workers"])
MEANWHILE = {**IN_WORKERS, "steps_while_starting": 3}

RATED = "gym:tests.environments.gym.gym_fakes:Fake/Rated-v0"
LAID = "gym:tests.environments.gym.gym_pictures:Fake/Laid-v0"
SEEN, SPARING = (f"gym:tests.environments.gym.gym_pictures:Fake/{name}-v0" for name in ("Seen", "Sparing"))
TASK_SET = "gym:tests.environments.gym.gym_fakes:Fake/TaskSet-v0"


def started(environment, *seeds: int):
    slots = torch.arange(len(seeds))
    return environment.reset(slots, [{"gym.seed": seed} for seed in seeds])


def traced(name, **options) -> dict:
    trace = Trace()
    run(name, num_episodes=3, observer=trace, **options)
    return trace.steps


def test_an_episode_of_a_real_simulator_is_the_same_bits_whatever_number_of_env_slots_there_is():
    alone = traced("gym:Ant-v5", num_envs=1)
    assert len(alone) == 3
    assert traced("gym:Ant-v5", num_envs=4) == alone


class Drawing(RandomActionPolicy):
    """Draws from the generators of the process, whose numbers do nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[tuple[float, ...]] = []

    def get_action(self, env, observation):
        self.drawn.append((random.random(), np.random.random(), float(torch.rand(1))))
        return torch.zeros(env.num_envs, 1)


@pytest.mark.parametrize("maker", [GlobalNoise, RareNoise, TorchNoise])
def test_what_is_drawn_from_process_wide_generators_follows_from_the_episode_and_leaves_those_of_a_policy(maker):
    name, drawn = name_of(maker), []
    alone = traced(name, num_envs=1)
    assert len(set(map(str, alone.values()))) == 3
    assert traced(name, num_envs=3) == traced(name, num_envs=2, pipeline=2) == alone
    assert traced(name, num_envs=2, **IN_WORKERS, envs_per_worker=2) == alone
    for each in (name, name_of(Leaking)):
        seed_everything(5)
        policy = Drawing()
        assert traced(each, num_envs=2, policy=policy) == traced(each)
        drawn.append(policy.drawn)
    assert drawn[0] == drawn[1]


def seed_everything(seed: int) -> None:
    for each in (random.seed, np.random.seed, torch.manual_seed):
        each(seed)


@PLACES
def test_an_episode_is_told_its_index_and_says_its_words_whatever_env_slot_plays_it(place):
    told = []
    for num_envs in (1, 3):
        trace = Trace()
        options = {"tell_episode": True, "instruction_key": "language", "task_description": "tidy", **place}
        records = run(TASK_SET, num_envs=num_envs, num_episodes=4, observer=trace, **options)
        assert [records[index].conditions["gym.episode_index"] for index in range(4)] == [0, 1, 2, 3]
        layouts = [np.frombuffer(trace.steps[index][0][0], np.float32).tolist() for index in range(4)]
        told.append((layouts, [records[index].language_instruction for index in range(4)]))
    words = [f"put away the {noun}" for noun in ("cube", "mug", "plate", "cube")]
    # By default an environment is told nothing; words may also be an attribute of it.
    trace = Trace()
    records = run(TASK_SET, num_episodes=1, observer=trace, instruction_key="attribute_words")
    assert np.frombuffer(trace.steps[0][0][0], np.float32).tolist() == [2.0, 0.0]
    assert (set(records[0].conditions), records[0].language_instruction) == ({"gym.seed"}, "tidy up")
    assert told == [([[0, 2], [1, 2], [2, 2], [0, 2]], words)] * 2


TOLD = {"success_key": "episode.success", "metric_keys": ("episode.r.mean",), "instruction_key": "told.task"}


@PLACES
def test_an_episode_that_is_solved_where_it_starts_is_an_error_and_entries_are_found_by_nested_names(place):
    records = run(TELLING, num_envs=2, num_episodes=8, **TOLD, **place).values()
    ends = {(record.conditions["gym.seed"] % 2, record.termination, record.length) for record in records}
    assert ends == {(0, "solved_at_start", 0), (1, "terminated", 3)}
    for record in records:
        assert record.success is (True if record.length else None)
        assert record.language_instruction == f"sort {record.conditions['gym.seed']}"
        assert record.metrics == ({"episode.r.mean": 0.5} if record.length else {})
    # Where the last step decides, the start counts for nothing.
    records = run(TELLING, num_episodes=4, end_on_success=False, **TOLD, **place).values()
    assert {(record.termination, record.success) for record in records} == {("time_limit", False)}
    # A dict of actions is one vector whose numbers have names.
    with closing(build(TELLING, **TOLD, **place)) as environment:
        assert environment.action_spec.names == ("arm.0", "arm.1", "gripper")
        started(environment, 1)
        step = environment.step(torch.tensor([[0.25, -2.0, 0.9]]))
        assert step.observation["policy"]["number"].tolist() == [[1.25, 0.0]]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (f"gym:{ID}", {"success_key": "succes"}, "did you mean 'success'"),
        (f"gym:{ID}", {"success_key": "half"}, "neither true nor false"),
        (TELLING, {**TOLD, "success_key": "succes"}, r"episode\.success"),
        (TELLING, {}, "instruction_key: note"),
        (TASK_SET, {"instruction_key": "speech"}, "neither .* nor .*'speech'"),
        (TASK_SET, {"instruction_key": "language", "make_kwargs": {"words": ""}}, "'language' is 3"),
    ],
)
def test_an_entry_that_is_missing_or_of_another_kind_is_told_with_those_that_there_are(name, options, message):
    with pytest.raises((ArenaError, ValueError), match=message):
        run(name, num_episodes=2, **options)


def test_a_policy_gives_one_choice_for_each_env_slot_as_policies_of_gymnasium_do():
    def lean(observation):
        return (observation["policy"]["obs"][:, 2] > 0).numpy().astype(np.int64)

    given = (lean, lambda observation: lean(observation)[:, None])
    flat, whole = (run("gym:CartPole-v1", num_envs=2, policy=FunctionPolicy(each)) for each in given)
    assert [each.length for each in flat.values()] == [each.length for each in whole.values()]
    with pytest.raises(PolicyError, match=r"shape \(2,\), the environment takes \(2, 1\)"):
        run("gym:Pendulum-v1", num_envs=2, policy=FunctionPolicy(lean))


def test_success_ends_an_episode_or_counts_at_the_last_step_is_a_return_or_is_not_measured():
    first = run(num_episodes=12, success_key="success").values()
    assert {record.outcome for record in first} == {Outcome.SUCCESS, Outcome.FAILURE}
    assert {record.length for record in first if record.success} == {3}
    last = run(num_episodes=12, success_key="success", end_on_success=False).values()
    assert {record.length for record in last if record.success} <= {3}
    assert sum(bool(record.success) for record in last) < 6
    assert max(record.length for record in last) > 3
    of_return = run("gym:CartPole-v1", num_episodes=12, success_reward_threshold=20).values()
    assert {(record.success, record.episode_return >= 20) for record in of_return} == {(True, True), (False, False)}
    endless = run(make_kwargs={"endless": True}, num_episodes=2, max_episode_length=11).values()
    assert {(record.length, record.outcome) for record in endless} == {(11, Outcome.TIMEOUT)}
    for record in run(metric_keys=("clock", "absent")).values():
        assert (record.success, record.outcome) == (None, None)
        assert record.metrics["clock"] == record.length
        assert np.isnan(record.metrics["absent"])


@pytest.mark.parametrize(
    ("place", "misbehaviour", "at_step", "error"),
    [
        ({}, "raise", 2, "OSError: the floor gave way"),
        (IN_WORKERS, "raise", 2, "OSError: the floor gave way"),
        ({}, "nan_observation", 0, "at the reset, observation 'obs' holds NaN"),
        (IN_WORKERS, "nan_observation", 2, "observation 'obs' holds NaN"),
        ({}, "other_shape", 0, "at the reset, observation 'obs' has shape (2,)"),
        (IN_WORKERS, "float_picture", 0, "at the reset, observation 'eye.front'[0, 0, 0] is 0.8"),
        ({}, "nan_reward", 2, "the reward is nan"),
        (IN_WORKERS, "no_reward", 2, "ValueError: the reward is None"),
        ({}, "huge_reward", 2, "the reward is -1e+300"),
        ({}, "half_an_end", 2, "ValueError: terminated is 0.5"),
    ],
)
def test_what_an_environment_does_wrong_is_an_error_of_its_episode_alone(place, misbehaviour, at_step, error):
    picture = misbehaviour == "float_picture"
    wanted = {"misbehaviour": misbehaviour, "at_step": at_step, "only_odd": True, "picture": picture}
    # One that looks at every picture: others are not read.
    records = run(num_envs=2, num_episodes=6, make_kwargs=wanted, observer=Observer(), **place)
    sound = run(num_envs=2, num_episodes=6, make_kwargs={"picture": picture})
    errors = {index for index, record in records.items() if record.outcome is Outcome.ERROR}
    assert errors == {index for index, record in sound.items() if record.length % 2}
    for index, record in records.items():
        if index in errors:
            assert (record.error or "").startswith(error)
            assert (record.success, record.length) == (None, at_step)
        else:
            assert record.episode_return == sound[index].episode_return


@pytest.mark.parametrize("out_of_range", ["error", "keep"])
def test_numbers_beyond_the_range_of_their_space_are_an_error_unless_a_job_keeps_them(out_of_range):
    environment = build(RATED, make_kwargs={"shown": 5.0, "render_fps": 10}, out_of_range=out_of_range)
    [observed] = started(environment, 1)["policy"]["obs"].flatten().tolist()
    assert observed == pytest.approx({"error": np.nan, "keep": 5.0}[out_of_range], nan_ok=True)
    assert ["out_of_range: keep" in each for each in environment.start_errors([0]).values()] == (
        [True] if out_of_range == "error" else []
    )
    assert MetaWorldConfig().out_of_range == "keep"  # says of its goals that they are 0


@PLACES
def test_pictures_are_camera_observations_and_films_go_on_to_the_last_step(place):
    wanted = {"picture": True, "render_mode": "rgb_array", "misbehaviour": "raise", "at_step": 2}
    environment = build(make_kwargs=wanted, num_envs=2, **place)
    assert environment.observation_spec["camera_obs"] == {"eye.front": ArraySpec(shape=(4, 5, 3), dtype=torch.uint8)}
    assert environment.filmable == ("eye.front", VIEWPORT)
    started(environment, 1, 2)
    observation = environment.step(torch.zeros(2, 2)).observation
    assert list(observation["policy"]) == ["numbers"]
    assert torch.equal(observation["camera_obs"]["eye.front"], torch.ones(2, 4, 5, 3, dtype=torch.uint8))
    filmed = environment.film([1], environment.filmable)
    assert np.array_equal(filmed[VIEWPORT], np.full((1, 48, 64, 3), 40))
    assert np.unique(filmed["eye.front"]).tolist() == [1]
    assert environment.step(torch.zeros(2, 2)).diverged.all()
    assert np.array_equal(environment.film([1], [VIEWPORT])[VIEWPORT], filmed[VIEWPORT])
    assert environment.render_s > 0
    environment.close()


def test_a_picture_that_was_left_out_is_not_filmed_and_one_of_a_step_that_failed_is_not_shown():
    environment = build(SPARING, num_envs=2, make_kwargs={"at_step": 2})
    started(environment, 1, 2)
    environment.draw_pictures_of([0])
    environment.step(torch.zeros(2, 2))
    assert environment.film([0], ["front"])["front"].shape == (1, 6, 8, 3)
    with pytest.raises(UnannouncedPictureError, match="'front' of env slots 1"):
        environment.film([0, 1], ["front"])
    environment.draw_pictures_of([0, 1])
    shown = environment.step(torch.zeros(2, 2)).observation["camera_obs"]["front"]
    assert shown.env_ids == (0,)


@pytest.mark.parametrize(
    ("place", "options", "num_films"),
    [({}, {}, 6), (MEANWHILE, {"first_episodes": 2}, 2), (IN_WORKERS, {"only_failures": True}, 1)],
    ids=["all", "first", "failures"],
)
def test_films_of_what_is_observed_show_what_they_show_if_every_picture_is_drawn(tmp_path, place, options, num_films):
    films = []
    for watches in ([], [Observer()]):
        directory = tmp_path / str(len(watches))
        environment = build(SPARING, num_envs=2, success_key="near", **place)
        recorder = VideoRecorder(directory, "seen", VideoOptions(camera=True, **options))
        recorder.begin_rebuild([environment])
        wanted = [Episode(job="seen", episode_index=index, seed=1) for index in range(6)]
        rollout(environment, LooksNowAndThen(), wanted, [recorder, *watches])
        recorder.close()
        environment.close()
        films.append({path.name: path.read_bytes() for path in directory.rglob("*.mp4")})
    assert len(films[0]) == num_films
    assert films[0] == films[1]


@pytest.mark.parametrize(("viewport", "looks"), [(True, False), (True, True), (False, True)])
def test_the_viewport_is_rendered_for_the_frames_of_films_alone_and_draws_no_observed_picture(
    tmp_path, viewport, looks
):
    films = VideoRecorder(tmp_path, "seen", VideoOptions(viewport=viewport))
    options = {"make_kwargs": {"render_mode": "rgb_array"}, "metric_keys": ("rendered", "drawn"), "control_dt": 0.1}
    policy = LooksNowAndThen() if looks else RandomActionPolicy()
    records = run(SPARING, policy=policy, observer=films, num_episodes=3, **options)
    films.close()
    for record in records.values():
        # The frame that the last step leads to is rendered after that step.
        assert record.metrics["rendered"] == (record.length if viewport else 0)
        assert record.metrics["drawn"] == (1 + record.length // PERIOD if looks else 0)


@pytest.mark.parametrize(("lies", "colours"), LAYOUTS.values(), ids=LAYOUTS)
def test_films_are_in_colours_and_policies_see_pictures_as_they_lie(lies, colours):
    environment = build(LAID, make_kwargs={"picture": lies.tolist()})
    observed = started(environment, 1)["camera_obs"]["obs"]
    assert np.array_equal(observed[0], lies)
    filmed = environment.film([0], environment.filmable)
    assert list(filmed) == ["obs", VIEWPORT]
    assert all(np.array_equal(pictures, colours[None]) for pictures in filmed.values())


def test_a_layout_that_is_not_certain_is_not_filmed_and_why_there_are_no_videos_is_told(tmp_path, caplog):
    environment = build(LAID, make_kwargs={"picture": np.zeros((4, 6, 8)).tolist()})
    started(environment, 1)
    assert environment.filmable == (VIEWPORT,)
    assert "'obs' has shape (4, 6, 8)" in environment.filming_hint
    with pytest.raises(ArenaError, match=r"shape \(4, 6, 8\)"):
        environment.film([0], [VIEWPORT])
    with pytest.raises(KeyError, match="render_mode: rgb_array"):
        build().film([0], [VIEWPORT])
    recorder = VideoRecorder(tmp_path, "draw", VideoOptions(viewport=True))
    rollout(build(), RandomActionPolicy(), [Episode(job="draw", episode_index=0, seed=1)], [recorder])
    assert "job 'draw' has no videos" in caplog.text
    assert "render_mode: rgb_array" in caplog.text


@pytest.mark.parametrize(
    ("name", "said", "found"),
    [
        (RATED, {"control_hz": 10, "render_fps": 10, "dt": 0.01}, 0.1),
        (RATED, {"control_timestep": 0.05, "control_freq": np.int64(20)}, 0.05),
        (RATED, {"render_fps": 67, "dt": 0.015}, 0.015),
        (RATED, {"control_hz": 0, "control_freq": "fast", "render_fps": 25}, 0.04),
        ("gym:Humanoid-v5", {}, 0.015),
        # It may be the simulator's, and then it is said.
        (RATED, {"dt": np.float32(0.05)}, (0.05, "dt = 0.05 s alone")),
        (RATED, {"dt": np.array([0.06])}, (0.06, "dt = 0.06 s alone")),
        (RATED, {}, (1.0, "1 s is taken")),
        (RATED, {"control_freq": 20, "render_fps": 30}, "20 .* control_freq, and 30 .*render_fps"),
        (RATED, {"control_hz": 20, "control_timestep": 0.1}, "20 .* control_hz, and 10 .*control_timestep"),
        (RATED, {"render_fps": 20, "dt": 0.002}, "500 .* dt, and 20 .*render_fps"),
    ],
)
def test_a_control_step_takes_what_an_environment_says_and_two_rates_that_differ_are_an_error(
    name, said, found, caplog
):
    if isinstance(found, str):
        with pytest.raises(EnvironmentBuildError, match=f"{found}.*control_dt"):
            build(name, make_kwargs=said)
        assert build(name, make_kwargs=said, control_dt=0.1).control_dt == 0.1
        return
    control_dt, *warned = found if isinstance(found, tuple) else (found,)
    assert build(name, make_kwargs=said).control_dt == pytest.approx(control_dt)
    told = [record.getMessage() for record in caplog.records]
    assert [words in each for words, each in zip(warned, told, strict=True)] == [True] * len(warned)


@pytest.mark.parametrize(("bits", "low", "high"), [(32, 2**31, 2**32), (63, 2**61, 2**63)])
def test_seeds_have_as_many_bits_as_asked_for(bits, low, high):
    environment, generator = build(seed_bits=bits), np.random.default_rng(0)
    seeds = {environment.draw_conditions(generator)["gym.seed"] for _ in range(100)}
    assert low < max(seeds) < high
    assert len(seeds) == 100

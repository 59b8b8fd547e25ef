"""Environments made elsewhere behave as the contract of `Environment` says."""

import random
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.gym.builder import MetaWorldConfig
from isaaclab_arena.errors import ArenaError, EnvironmentBuildError, UnannouncedPictureError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.episode import Episode, Outcome
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.interfaces.specs import VIEWPORT, ArraySpec, Pictures
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy
from isaaclab_arena.recording import VideoOptions
from isaaclab_arena.recording.video import VideoRecorder
from tests.environments.gym.gym_fakes import ID
from tests.environments.gym.gym_leaks import GlobalNoise, Leaking, RareNoise, TorchNoise, name_of
from tests.environments.gym.gym_running import IN_WORKERS, Trace, build, run
from tests.environments.gym.gym_telling import NAME as TELLING
from tests.environments.gym.looking import PERIOD, LooksNowAndThen
from tests.layouts import LAYOUTS

PLACES = pytest.mark.parametrize("place", [{}, IN_WORKERS], ids=["here", "in_workers"])
WHILE_STARTING = pytest.mark.parametrize(
    "place",
    [{}, IN_WORKERS, {**IN_WORKERS, "steps_while_starting": 3}],
    ids=["here", "in_workers", "others_step_meanwhile"],
)


RATED = "gym:tests.environments.gym.gym_fakes:Fake/Rated-v0"
LAID = "gym:tests.environments.gym.gym_pictures:Fake/Laid-v0"
SEEN, SPARING = (f"gym:tests.environments.gym.gym_pictures:Fake/{name}-v0" for name in ("Seen", "Sparing"))
TASK_SET = "gym:tests.environments.gym.gym_fakes:Fake/TaskSet-v0"
OPTIONS = {"success_key": "near", "end_on_success": False, "metric_keys": ("drawn",)}


def started(environment, *seeds: int):
    slots = torch.arange(len(seeds))
    return environment.reset(slots, [{"gym.seed": seed} for seed in seeds])


@pytest.mark.parametrize("name", [f"gym:{ID}", "gym:CartPole-v1", "gym:Reacher-v5", "gym:Ant-v5"])
def test_an_episode_is_the_same_bits_whatever_number_of_env_slots_there_is(name):
    traces = {num_envs: Trace() for num_envs in (1, 4)}
    for num_envs, trace in traces.items():
        run(name, num_envs=num_envs, observer=trace)
    assert len(traces[1].steps) == 6
    assert traces[1].steps == traces[4].steps


def test_workers_give_the_same_bits_as_this_process():
    traces = [Trace(), Trace()]
    here = run(num_envs=2, observer=traces[0], success_key="success")
    there = run(num_envs=3, observer=traces[1], success_key="success", **IN_WORKERS)
    assert traces[0].steps == traces[1].steps
    assert {index: record.outcome for index, record in here.items()} == {
        index: record.outcome for index, record in there.items()
    }


def traced(name, **place) -> dict:
    trace = Trace()
    run(name, num_episodes=3, observer=trace, **place)
    return trace.steps


@pytest.mark.parametrize("maker", [GlobalNoise, RareNoise, TorchNoise])
def test_what_is_drawn_from_process_wide_generators_follows_from_the_episode_wherever_it_is_played(maker):
    name = name_of(maker)
    alone = traced(name, num_envs=1)
    assert len(set(map(str, alone.values()))) == 3
    assert traced(name, num_envs=3) == traced(name, num_envs=2, pipeline=2) == alone
    assert traced(name, num_envs=2, **IN_WORKERS, envs_per_worker=2) == alone


def test_what_a_policy_draws_and_what_an_environment_draws_do_not_touch_each_other():
    class Drawing(RandomActionPolicy):
        def __init__(self) -> None:
            super().__init__()
            self.drawn: list[tuple[float, ...]] = []

        def get_action(self, env, observation):
            self.drawn.append((random.random(), np.random.random(), float(torch.rand(1))))
            return torch.zeros(env.num_envs, 1)

    found = []
    for maker in (Leaking, GlobalNoise, TorchNoise):
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        policy, trace = Drawing(), Trace()
        run(name_of(maker), num_envs=2, num_episodes=2, policy=policy, observer=trace)
        found.append(policy.drawn)
        assert trace.steps == {index: steps for index, steps in traced(name_of(maker)).items() if index < 2}
    assert found[0] == found[1] == found[2]


@PLACES
def test_an_environment_is_told_which_episode_starts_if_the_job_says_so(place):
    layouts = {}
    for num_envs in (1, 3):
        trace = Trace()
        records = run(TASK_SET, num_envs=num_envs, num_episodes=4, observer=trace, tell_episode=True, **place)
        layouts[num_envs] = {index: np.frombuffer(steps[0][0], np.float32) for index, steps in trace.steps.items()}
        assert [records[index].conditions["gym.episode_index"] for index in range(4)] == [0, 1, 2, 3]
    assert [layouts[1][index].tolist() for index in range(4)] == [[0, 2], [1, 2], [2, 2], [0, 2]]
    assert all(np.array_equal(layouts[1][index], layouts[3][index]) for index in range(4))


def test_an_environment_is_told_nothing_by_default():
    trace = Trace()
    records = run(TASK_SET, num_episodes=1, observer=trace)
    assert np.frombuffer(trace.steps[0][0][0], np.float32).tolist() == [2.0, 0.0]
    assert set(records[0].conditions) == {"gym.seed"}


@PLACES
def test_an_episode_has_the_words_that_its_reset_says(place):
    options = {"tell_episode": True, "instruction_key": "language", "task_description": "tidy"}
    records = run(TASK_SET, num_envs=2, num_episodes=3, **options, **place)
    told = [records[index].language_instruction for index in range(3)]
    assert told == ["put away the cube", "put away the mug", "put away the plate"]


def test_an_episode_may_have_the_words_of_an_attribute():
    records = run(TASK_SET, num_episodes=1, instruction_key="attribute_words")
    assert records[0].language_instruction == "tidy up"


def test_the_task_has_words_before_an_episode_starts():
    environment = build(TASK_SET, instruction_key="language", task_description="tidy")
    assert environment.instruction({"gym.seed": 3}) == "tidy"


@PLACES
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"instruction_key": "speech"}, "neither reset's info nor the environment has 'speech'"),
        ({"instruction_key": "language", "make_kwargs": {"words": ""}}, "'language' is 3, not an instruction in words"),
    ],
)
def test_an_instruction_that_is_missing_or_no_text_is_told(place, options, message):
    with pytest.raises((ArenaError, ValueError), match=message):
        build(TASK_SET, **options, **place)


TOLD = {"success_key": "episode.success", "metric_keys": ("episode.r.mean",), "instruction_key": "told.task"}


@PLACES
def test_an_episode_that_is_solved_where_it_starts_is_an_error_of_the_task(place):
    records = run(TELLING, num_envs=2, num_episodes=8, **TOLD, **place).values()
    ends = {(str(record.conditions["gym.seed"] % 2), record.termination, record.length) for record in records}
    assert ends == {("0", "solved_at_start", 0), ("1", "terminated", 3)}
    assert {record.success for record in records if record.length} == {True}


def test_a_start_that_is_solved_counts_for_nothing_where_the_last_step_decides():
    records = run(TELLING, num_episodes=4, end_on_success=False, **TOLD).values()
    assert {(record.termination, record.success) for record in records} == {("time_limit", False)}


def test_nested_entries_of_info_and_text_that_is_observed_are_found_by_their_names():
    for record in run(TELLING, num_episodes=4, **TOLD).values():
        assert record.language_instruction == f"sort {record.conditions['gym.seed']}"
        assert record.metrics == ({"episode.r.mean": 0.5} if record.length else {})


def test_the_names_of_nested_entries_are_told_where_a_key_does_not_exist():
    with pytest.raises(ArenaError, match=r"no 'succes'.*episode\.success"):
        run(TELLING, num_episodes=2, **{**TOLD, "success_key": "succes"})


def test_text_that_nobody_is_told_is_refused_with_the_way_out():
    with pytest.raises(ArenaError, match="observation 'note' is text; instruction_key: note makes it the instruction"):
        build(TELLING)


def test_a_dict_of_actions_is_one_vector_whose_numbers_have_names():
    environment = build(TELLING, **TOLD)
    assert environment.action_spec.names == ("arm.0", "arm.1", "gripper")
    started(environment, 1)
    step = environment.step(torch.tensor([[0.25, -2.0, 0.9]]))
    assert step.observation["policy"]["number"].tolist() == [[1.25, 0.0]]


def test_an_env_slot_that_has_finished_rests_until_it_is_reset():
    environment = build("gym:CartPole-v1", num_envs=2)
    started(environment, 1, 2)
    push = torch.tensor([[1.0], [0.0]])
    step = environment.step(push)
    for number in range(200):
        if bool(step.terminated[0]):
            break
        step = environment.step(push if number % 2 else torch.tensor([[1.0], [1.0]]))
    terminal = step.observation["policy"]["obs"][0].clone()
    step = environment.step(push)
    assert torch.equal(step.observation["policy"]["obs"][0], terminal)
    assert step.reward.tolist() == [0.0, 1.0]
    assert not step.terminated[0]
    observation = environment.reset(torch.tensor([0]), [{"gym.seed": 1}])
    assert not torch.equal(observation["policy"]["obs"][0], terminal)


def test_success_ends_an_episode_at_its_first_step():
    records = run(num_episodes=12, success_key="success")
    outcomes = {record.outcome for record in records.values()}
    assert outcomes == {Outcome.SUCCESS, Outcome.FAILURE}
    assert {record.length for record in records.values() if record.success} == {3}


def test_success_may_count_at_the_last_step_only():
    records = run(num_episodes=12, success_key="success", end_on_success=False)
    assert {record.length for record in records.values() if record.success} <= {3}
    assert sum(bool(record.success) for record in records.values()) < 6
    assert max(record.length for record in records.values()) > 3


def test_success_may_be_a_return():
    records = run("gym:CartPole-v1", num_episodes=12, success_reward_threshold=20)
    assert {record.success for record in records.values()} == {True, False}
    for record in records.values():
        assert record.success == (record.episode_return >= 20)


def test_success_that_nobody_measures_is_none():
    records = run()
    assert {record.success for record in records.values()} == {None}
    assert {record.outcome for record in records.values()} == {None}


def test_a_success_key_that_does_not_exist_is_told_with_those_that_do():
    with pytest.raises(ArenaError, match="no 'succes'; did you mean 'success'"):
        run(success_key="succes")


def test_a_success_that_is_neither_true_nor_false_is_refused():
    with pytest.raises(ArenaError, match=r"info\['half'\] is 0.5, neither true nor false"):
        run(success_key="half")


@PLACES
@pytest.mark.parametrize(
    ("misbehaviour", "error"),
    [
        ("raise", "OSError: the floor gave way"),
        ("nan_observation", "observation 'obs' holds NaN or infinity"),
        ("nan_reward", "the reward is nan"),
        ("no_reward", "ValueError: the reward is None, not a number"),
        ("other_shape", "ValueError: observation 'obs' has shape (2,), its space says (4,)"),
    ],
)
def test_a_misbehaving_environment_is_an_error_of_its_episode_alone(place, misbehaviour, error):
    wanted = {"misbehaviour": misbehaviour, "only_odd": True}
    records = run(num_envs=3, num_episodes=8, make_kwargs=wanted, success_key="success", **place)
    sound = run(num_envs=3, num_episodes=8, success_key="success")
    assert sorted(records) == list(range(8))
    errors = {index for index, record in records.items() if record.outcome is Outcome.ERROR}
    assert 0 < len(errors) < 8
    assert {records[index].error for index in errors} == {error}
    assert {records[index].success for index in errors} == {None}
    for index in set(records) - errors:
        assert records[index].length == sound[index].length
        assert records[index].episode_return == sound[index].episode_return


HUGE = (
    "observation 'obs'[0] is 1e+300 as float64, its space says float64 from -inf to inf; that is beyond float32, as "
    "which observations are shown"
)
FLOATS = "observation 'eye.front'[0, 0, 0] is 0.8 as float32, its space says uint8 from 0 to 255"


@pytest.mark.parametrize(
    ("place", "misbehaviour", "at_step", "error"),
    [
        ({}, "nan_observation", 0, "at the reset, observation 'obs' holds NaN or infinity"),
        ({}, "other_shape", 0, "at the reset, observation 'obs' has shape (2,), its space says (4,)"),
        ({}, "huge_observation", 0, f"at the reset, {HUGE}"),
        ({}, "huge_observation", 2, f"ValueError: {HUGE}"),
        ({}, "float_picture", 0, f"at the reset, {FLOATS}"),
        (IN_WORKERS, "float_picture", 0, f"at the reset, {FLOATS}"),
        (IN_WORKERS, "float_picture", 2, f"ValueError: {FLOATS}"),
        ({}, "huge_reward", 2, "the reward is -1e+300, beyond float32"),
        ({}, "half_an_end", 2, "ValueError: terminated is 0.5, neither true nor false"),
        ({}, "an_end_in_words", 2, "ValueError: terminated is 'False', not a number"),
    ],
)
def test_what_is_not_as_it_is_declared_is_an_error_of_its_episode_alone(place, misbehaviour, at_step, error):
    picture = misbehaviour == "float_picture"
    wanted = {"misbehaviour": misbehaviour, "at_step": at_step, "only_odd": True, "picture": picture}
    # One that looks at every picture: what nobody looks at is not read.
    records = run(num_envs=2, num_episodes=6, make_kwargs=wanted, observer=Observer(), **place)
    sound = run(num_envs=2, num_episodes=6, make_kwargs={"picture": picture})
    errors = {index for index, record in records.items() if record.outcome is Outcome.ERROR}
    assert errors == {index for index, record in sound.items() if record.length % 2}
    assert {(records[index].error, records[index].length) for index in errors} == {(error, at_step)}
    for index in records.keys() - errors:
        assert records[index].episode_return == sound[index].episode_return


@PLACES
def test_numbers_beyond_the_range_of_their_space_are_an_error_unless_a_job_keeps_them(place):
    told = {}
    for out_of_range in ("error", "keep"):
        wanted = {"shown": 5.0, "render_fps": 10}
        environment = build(RATED, make_kwargs=wanted, out_of_range=out_of_range, **place)
        observed = started(environment, 1)["policy"]["obs"].tolist()
        told[out_of_range] = (environment.start_errors([0]), str(observed))
        environment.close()
    assert told["keep"] == ({}, "[[5.0]]")
    error = "observation 'obs'[0] is 5.0 as float64, its space says float32 from -1 to 1"
    assert told["error"] == ({0: f"{error}; out_of_range: keep shows such numbers as they are"}, "[[nan]]")
    assert MetaWorldConfig().out_of_range == "keep"  # says of its goals that they are 0


@pytest.mark.parametrize(
    ("misbehaviour", "error"),
    [("die", "the worker died with exit code 3"), ("hang", "the worker did not answer within 1 s")],
)
def test_a_worker_that_is_lost_is_an_error_of_its_episode_alone(misbehaviour, error):
    wanted = {"misbehaviour": misbehaviour, "only_odd": True}
    records = run(num_envs=3, num_episodes=6, make_kwargs=wanted, **{**IN_WORKERS, "step_timeout_s": 1.0})
    assert sorted(records) == list(range(6))
    errors = [record.error for record in records.values() if record.outcome is Outcome.ERROR]
    assert 0 < len(errors) < 6
    assert set(errors) == {error}


def test_what_an_environment_prints_does_not_get_between_the_frames():
    records = run(num_envs=2, make_kwargs={"misbehaviour": "print"}, **IN_WORKERS)
    assert {record.outcome for record in records.values()} == {None}


def test_an_episode_without_end_is_truncated():
    records = run(make_kwargs={"endless": True}, max_episode_length=11)
    assert {record.length for record in records.values()} == {11}
    assert {record.outcome for record in records.values()} == {Outcome.TIMEOUT}


@PLACES
def test_pictures_are_camera_observations(place):
    environment = build(make_kwargs={"picture": True}, num_envs=2, **place)
    started(environment, 1, 2)
    step = environment.step(torch.zeros(2, 2))
    environment.close()
    picture = step.observation["camera_obs"]["eye.front"]
    assert picture.dtype == torch.uint8
    assert picture.shape == (2, 4, 5, 3)
    assert picture.unique().tolist() == [1]
    assert list(step.observation["policy"]) == ["numbers"]
    spec = environment.observation_spec["camera_obs"]
    assert isinstance(spec, Mapping)
    assert spec["eye.front"] == ArraySpec(shape=(4, 5, 3), dtype=torch.uint8)


@WHILE_STARTING
@pytest.mark.parametrize("name", [SEEN, SPARING])
def test_a_policy_that_looks_now_and_then_does_what_it_does_if_every_picture_is_drawn(name, place):
    expected = run(name, num_envs=3, policy=LooksNowAndThen(), observer=Observer(), **OPTIONS, **place)
    found = run(name, num_envs=3, policy=LooksNowAndThen(), **OPTIONS, **place)
    for index, record in expected.items():
        assert (found[index].episode_return, found[index].outcome) == (record.episode_return, record.outcome)
        assert record.metrics["drawn"] == record.length + 1
        looks = 1 + record.length // PERIOD
        assert found[index].metrics["drawn"] == (looks if name == SPARING else record.length + 1)


@PLACES
@pytest.mark.parametrize(("name", "all_drawn"), [(SEEN, True), (SPARING, False)])
def test_the_pictures_that_an_environment_drew_are_counted(name, all_drawn, place):
    environment = build(name, num_envs=3, **place)
    environment.draw_pictures_of([1])
    started(environment, 1, 2)
    for announced in ([], [0, 2]):
        environment.draw_pictures_of(announced)
        shown = environment.step(torch.zeros(3, 2)).observation["camera_obs"]["front"]
        assert isinstance(shown, Pictures)
        assert shown.env_ids == (*announced[:1], 2)
    environment.close()
    assert environment.pictures_drawn == (6 if all_drawn else 2)


def test_a_picture_that_was_left_out_cannot_be_filmed():
    environment = build(SPARING, num_envs=2)
    started(environment, 1, 2)
    environment.draw_pictures_of([0])
    environment.step(torch.zeros(2, 2))
    assert environment.film([0], ["front"])["front"].shape == (1, 6, 8, 3)
    with pytest.raises(UnannouncedPictureError, match="'front' of env slots 1 was not drawn"):
        environment.film([0, 1], ["front"])


@WHILE_STARTING
@pytest.mark.parametrize(("options", "num_films"), [({}, 6), ({"first_episodes": 2}, 2), ({"only_failures": True}, 1)])
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


@WHILE_STARTING
def test_films_of_some_episodes_have_the_pictures_of_those_drawn_and_no_others(tmp_path, place):
    films = VideoRecorder(tmp_path, "seen", VideoOptions(camera=True, first_episodes=2))
    options = {"metric_keys": ("drawn",), "num_envs": 2, "num_episodes": 6, **place}
    records = run(SPARING, policy=LooksNowAndThen(), observer=films, **options)
    films.close()
    for index, record in records.items():
        filmed, looked_at = record.length + 1, 1 + record.length // PERIOD
        assert record.metrics["drawn"] == (filmed if index < 2 else looked_at)


def test_films_of_the_viewport_alone_have_no_observed_picture_drawn(tmp_path):
    films = VideoRecorder(tmp_path, "seen", VideoOptions(viewport=True))
    options = {"make_kwargs": {"render_mode": "rgb_array"}, "metric_keys": ("drawn",)}
    records = run(SPARING, observer=films, **options)
    films.close()
    assert {record.metrics["drawn"] for record in records.values()} == {0}


@pytest.mark.parametrize("viewport", [True, False])
def test_the_viewport_is_rendered_for_the_frames_of_films_alone(tmp_path, viewport):
    films = VideoRecorder(tmp_path, "seen", VideoOptions(viewport=viewport))
    options = {"make_kwargs": {"render_mode": "rgb_array"}, "metric_keys": ("rendered", "drawn"), "control_dt": 0.1}
    records = run(SPARING, policy=LooksNowAndThen(), observer=films, **options)
    films.close()
    for record in records.values():
        # The frame that the last step leads to is rendered after that step.
        assert record.metrics["rendered"] == (record.length if viewport else 0)
        assert record.metrics["drawn"] == 1 + record.length // PERIOD


def test_an_env_slot_that_fails_shows_no_picture_of_another_step():
    environment = build(SPARING, num_envs=2, make_kwargs={"at_step": 2})
    started(environment, 1, 2)
    environment.draw_pictures_of([0])
    environment.step(torch.zeros(2, 2))
    environment.draw_pictures_of([0, 1])
    shown = environment.step(torch.zeros(2, 2)).observation["camera_obs"]["front"]
    assert shown.env_ids == (0,)


def test_a_reader_of_all_env_slots_is_served_after_one_that_looked_at_none():
    environment = build(SPARING, num_envs=2)
    wanted = [Episode(job="seen", episode_index=index, seed=1) for index in range(4)]
    rollout(environment, RandomActionPolicy(), wanted, [])
    shown = started(environment, 1)["camera_obs"]["front"]
    assert isinstance(shown, torch.Tensor)
    assert not shown[1].any()


@PLACES
def test_what_an_environment_renders_can_be_filmed_to_its_last_step(place):
    wanted = {"picture": True, "render_mode": "rgb_array", "misbehaviour": "raise", "at_step": 2}
    environment = build(make_kwargs=wanted, num_envs=2, **place)
    assert environment.filmable == ("eye.front", VIEWPORT)
    started(environment, 1, 2)
    environment.step(torch.zeros(2, 2))
    filmed = environment.film([1], environment.filmable)
    assert filmed[VIEWPORT].shape == (1, 48, 64, 3)
    assert np.unique(filmed[VIEWPORT]).tolist() == [40]
    assert np.unique(filmed["eye.front"]).tolist() == [1]
    assert environment.step(torch.zeros(2, 2)).diverged.all()
    assert np.array_equal(environment.film([1], [VIEWPORT])[VIEWPORT], filmed[VIEWPORT])
    assert environment.render_s > 0
    environment.close()


@pytest.mark.parametrize(("lies", "colours"), LAYOUTS.values(), ids=LAYOUTS)
def test_films_are_in_colours_and_policies_see_pictures_as_they_lie(lies, colours):
    environment = build(LAID, make_kwargs={"picture": lies.tolist()})
    observed = started(environment, 1)["camera_obs"]["obs"]
    assert np.array_equal(observed[0], lies)
    filmed = environment.film([0], environment.filmable)
    assert list(filmed) == ["obs", VIEWPORT]
    assert all(np.array_equal(pictures, colours[None]) for pictures in filmed.values())


def test_a_layout_that_is_not_certain_is_not_filmed_and_why_is_told():
    environment = build(LAID, make_kwargs={"picture": np.zeros((4, 6, 8)).tolist()})
    started(environment, 1)
    assert environment.filmable == (VIEWPORT,)
    assert "'obs' has shape (4, 6, 8), and the first four may be channels or pictures" in environment.filming_hint
    with pytest.raises(ArenaError, match=r"Laid-v0' renders has shape \(4, 6, 8\)"):
        environment.film([0], [VIEWPORT])


def test_a_camera_that_is_not_there_cannot_be_filmed():
    with pytest.raises(KeyError, match=r"no cameras viewport.*make_kwargs: {render_mode: rgb_array}"):
        build().film([0], [VIEWPORT])


def test_why_there_are_no_videos_is_told_with_what_would_make_them(tmp_path, caplog):
    recorder = VideoRecorder(tmp_path, "draw", VideoOptions(viewport=True))
    rollout(build(), RandomActionPolicy(), [Episode(job="draw", episode_index=0, seed=1)], [recorder])
    assert "job 'draw' has no videos" in caplog.text
    assert "make_kwargs: {render_mode: rgb_array} in its arena_env_args" in caplog.text


def test_numbers_out_of_info_become_metrics():
    records = run(metric_keys=("clock", "absent"))
    for record in records.values():
        assert record.metrics["clock"] == record.length
        assert np.isnan(record.metrics["absent"])


@pytest.mark.parametrize(
    ("said", "control_dt"),
    [
        ({"control_hz": 10, "render_fps": 10, "dt": 0.01}, 0.1),
        ({"control_freq": np.int64(20), "dt": 0.002}, 0.05),
        ({"control_timestep": 0.05, "control_freq": 20}, 0.05),
        ({"render_fps": 25}, 0.04),
        ({"render_fps": 67, "dt": 0.015}, 0.015),
        ({"control_hz": 0, "control_freq": "fast", "render_fps": 25}, 0.04),
    ],
)
def test_a_control_step_takes_what_an_environment_says_of_it(said, control_dt, caplog):
    assert build(RATED, make_kwargs=said).control_dt == pytest.approx(control_dt)
    assert not caplog.records


@pytest.mark.parametrize(("name", "control_dt"), [("Ant-v5", 0.05), ("Humanoid-v5", 0.015), ("Pendulum-v1", 0.05)])
def test_gymnasiums_own_environments_take_their_dt(name, control_dt):
    assert build(f"gym:{name}").control_dt == pytest.approx(control_dt)


@pytest.mark.parametrize(("dt", "said"), [(0.04, "0.04"), (np.float32(0.05), "0.05"), (np.array([0.06]), "0.06")])
def test_a_dt_alone_is_taken_with_a_warning_as_it_may_be_the_simulators(dt, said, caplog):
    assert build(RATED, make_kwargs={"dt": dt}).control_dt == pytest.approx(float(said))
    [record] = caplog.records
    assert f"says dt = {said} s alone: that is taken for a control step, but may be a step of" in record.getMessage()


def test_that_nothing_is_said_of_control_steps_is_told(caplog):
    assert build(RATED).control_dt == 1.0
    [record] = caplog.records
    assert "does not say how long a control step takes: 1 s is taken" in record.getMessage()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"control_freq": 20, "render_fps": 30}, "20 control steps .* with control_freq, and 30 with metadata"),
        ({"control_hz": 20, "control_timestep": 0.1}, "20 control steps .* control_hz, and 10 with control_timestep"),
        ({"render_fps": 20, "dt": 0.002}, r"500 control steps .* with dt, and 20 with metadata\['render_fps'\]"),
    ],
)
def test_two_rates_that_differ_are_an_error_that_names_both_and_the_option_that_settles_it(said, message):
    with pytest.raises(EnvironmentBuildError, match=f"{message}.*give control_dt"):
        build(RATED, make_kwargs=said)
    assert build(RATED, make_kwargs=said, control_dt=0.1).control_dt == 0.1


@pytest.mark.parametrize(("bits", "low", "high"), [(32, 2**31, 2**32), (63, 2**61, 2**63)])
def test_seeds_have_as_many_bits_as_asked_for(bits, low, high):
    environment = build(seed_bits=bits)
    generator = np.random.default_rng(0)
    seeds = [environment.draw_conditions(generator)["gym.seed"] for _ in range(100)]
    assert low < max(seeds) < high
    assert len(set(seeds)) == 100


def test_provenance_names_the_versions_of_the_interpreter_that_simulates():
    environment = build(**IN_WORKERS)
    environment.close()
    assert environment.provenance()["environment"] == f"gym:{ID}"
    assert environment.provenance()["numpy"] == np.__version__

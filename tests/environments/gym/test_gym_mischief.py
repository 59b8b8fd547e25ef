"""Whatever an environment made elsewhere does wrong is an error of its episode, or refused, and no success."""

import signal
from pathlib import Path

import pytest
import torch

from isaaclab_arena.environments.gym.env_slots import Failures
from isaaclab_arena.errors import ArenaError, EnvironmentBuildError, StorageError
from isaaclab_arena.interfaces.episode import Outcome
from tests.environments.gym.gym_mischief import ID, MischiefEnvironment
from tests.environments.gym.gym_running import IN_WORKERS, Trace, build, run

NAME = f"gym:{ID}"


def outcomes(mischief: str = "", **options) -> list[tuple[Outcome | None, int]]:
    records = run(
        NAME, num_envs=2, num_episodes=4, make_kwargs={"mischief": mischief}, success_key="success", **options
    )
    return [(record.outcome, record.length) for _, record in sorted(records.items())]


@pytest.fixture
def _where_it_was(monkeypatch):
    monkeypatch.chdir(Path.cwd())
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.usefixtures("_where_it_was")
@pytest.mark.parametrize(
    "mischief",
    [
        "",
        "print",
        "move",
        "steal signals",
        "doubles",
        "numpy success",
        "success in an array",
        "discrete action",
        "dict action",
        "tuple action",
    ],
)
def test_what_does_no_harm_to_an_episode_leaves_its_outcome(mischief):
    assert outcomes(mischief) == [(Outcome.SUCCESS, 3)] * 4


def test_an_episode_of_one_step_is_an_episode():
    assert outcomes("one step") == [(Outcome.SUCCESS, 1)] * 4


def test_an_episode_that_is_terminated_and_truncated_at_once_counts_as_terminated():
    assert outcomes("both ends") == [(Outcome.SUCCESS, 3)] * 4


@pytest.mark.parametrize("mischief", ["leave", "words"])
def test_what_an_environment_breaks_is_an_error_of_its_episode(mischief):
    assert outcomes(mischief) == [(Outcome.ERROR, 2)] * 4


@pytest.mark.parametrize("mischief", ["two successes", "success in words", "no success"])
def test_a_success_that_is_no_single_number_is_an_error_and_no_success(mischief):
    assert outcomes(mischief) == [(Outcome.ERROR, 3)] * 4


def test_half_a_success_is_refused():
    with pytest.raises(ArenaError, match="neither true nor false"):
        outcomes("half a success")


def test_an_environment_that_brings_its_process_down_costs_its_episode_only():
    records = run(NAME, num_envs=2, num_episodes=2, make_kwargs={"mischief": "segfault"}, **IN_WORKERS)
    assert {record.error for record in records.values()} == {f"the worker died by signal {int(signal.SIGSEGV)}"}


@pytest.mark.parametrize("mischief", ["text action", "sequence observation"])
def test_spaces_that_have_no_flat_form_are_refused_by_name(mischief):
    with pytest.raises(EnvironmentBuildError, match=r"Mischief/Env-v0' cannot be made.* not supported"):
        build(NAME, make_kwargs={"mischief": mischief})


def test_whatever_an_environment_raises_while_it_is_made_here_names_it(monkeypatch):
    def fail(self):
        raise StorageError("no disk")

    monkeypatch.setattr(MischiefEnvironment, "__init__", fail)
    with pytest.raises(EnvironmentBuildError, match=r"Mischief/Env-v0' cannot be made: StorageError: no disk"):
        build(NAME)


def test_an_environment_in_this_process_is_made_with_the_arguments_themselves(monkeypatch):
    made, make = [], MischiefEnvironment.__init__

    def keep(self, mischief):
        made.append(mischief)
        make(self)

    monkeypatch.setattr(MischiefEnvironment, "__init__", keep)
    given = object()
    build(NAME, make_kwargs={"mischief": given}).close()
    assert made == [given]


def test_an_action_space_without_bounds_has_none_and_is_clipped_by_nobody():
    assert build(NAME, make_kwargs={"mischief": "unbounded action"}).action_spec.low is None


@pytest.mark.parametrize(
    ("mischief", "group", "shape"),
    [("float picture", "policy", (1, 4, 4, 3)), ("empty picture", "camera_obs", (1, 0, 4, 3))],
)
def test_a_picture_of_another_kind_reaches_the_policy_as_it_is_and_is_never_filmed(mischief, group, shape):
    environment = build(NAME, make_kwargs={"mischief": mischief})
    observation = environment.reset(torch.tensor([0]), [{"gym.seed": 1}])
    assert observation[group]["obs"].shape == shape
    assert environment.filmable == ()


def test_an_environment_that_resets_itself_loses_neither_its_last_observation_nor_its_success():
    plain, automatic = Trace(), Trace()
    run(NAME, num_envs=2, observer=plain, success_key="success")
    records = run(NAME.replace("Env-v0", "Automatic-v0"), num_envs=2, observer=automatic, success_key="success")
    assert automatic.steps == plain.steps
    assert {record.outcome for record in records.values()} == {Outcome.SUCCESS}


def test_a_traceback_is_logged_once_and_then_counted(caplog):
    failures = Failures("Arm-v0")
    for slot in range(12):
        failures.tell(f"env slot {slot}", f"Traceback:\n  line 7\nRuntimeError: renderer {slot} lost")
    failures.tell("env slot 3", "Traceback:\n  line 8\nRuntimeError: renderer 3 lost")
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        "'Arm-v0' failed in env slot 0: Traceback:\n  line 7\nRuntimeError: renderer 0 lost",
        "'Arm-v0' failed in env slot 9 as before, 10 times by now: RuntimeError: renderer 9 lost",
        "'Arm-v0' failed in env slot 3: Traceback:\n  line 8\nRuntimeError: renderer 3 lost",
    ]

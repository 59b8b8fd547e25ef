import hashlib
import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.simulation.varied_steps import operations
from isaaclab_arena.environments.arena.builder import TableOptions, TableTask
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks.grasping import Reach
from isaaclab_arena.environments.variations.catalogue import footprints
from isaaclab_arena.environments.variations.overrides import enabled_variations
from isaaclab_arena.environments.variations.pictures import (
    blurred_pictures,
    compressed_pictures,
    quantisation_tables,
    tone_table,
)
from isaaclab_arena.environments.variations.senses import (
    NOISE_STEPS,
    ActionNoise,
    Disturbances,
    ObservationDelay,
    mixed,
    noise_of,
)
from isaaclab_arena.interfaces.environment_builder import Sampler, Variation
from isaaclab_arena.interfaces.episode import Conditions, point
from isaaclab_arena.interfaces.specs import CAMERAS, ArraySpec, Pictures
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy
from tests.environments.building import CPU, build, hold_still, play, steps_of
from tests.environments.variations.varying import (
    begin,
    build_varied,
    catalogue_of,
    conditions_of,
    everything,
    fixed,
    simulation,
)

OBJECT = "object/body"
NUM_EPISODES = 2

GRAVITY = Variation(
    asset="world",
    name="gravity",
    unit="m/s²",
    description="acceleration of everything that falls, along z",
    sampler=Sampler(low=(-12.0,), high=(-8.0,)),
    minimum=-30.0,
    maximum=0.0,
    nominal=(-9.81,),
    changes=lambda model, value: {("opt.gravity", 2): value},
)


class ReachAnywhere(Reach):
    """Is done on other planets too."""

    def __init__(self, embodiment: Embodiment) -> None:
        super().__init__(embodiment)
        self.spec = replace(self.spec, variations=(GRAVITY,))


def test_a_task_can_have_variations_of_its_own():
    builder, options = TableTask(make_task=lambda _, robot: ReachAnywhere(robot)), TableOptions()
    offered = builder.variations(options)
    assert GRAVITY in offered
    on = enabled_variations(offered, fixed("world.gravity", -9.81, -1.6))
    env = builder.build(options, num_envs=2, device=CPU, num_threads=1, variations=on)
    conditions = begin(env)
    assert [each["world.gravity"] for each in conditions] == [-9.81, -1.6]
    assert env.backend.model_field("opt.gravity")[:, 2].tolist() == [-9.81, -1.6]
    env.reset(torch.tensor([1]), [{key: value for key, value in conditions[1].items() if key != "world.gravity"}])
    assert env.backend.model_field("opt.gravity")[:, 2].tolist() == [-9.81, -9.81]


def values_of(env, field, name):
    model = simulation(env).model
    find = {"body": model.body, "cam": model.camera, "geom": model.geom}[field.partition("_")[0]]
    return env.backend.model_field(field)[:, find(name).id]


@pytest.mark.parametrize("name", ["lift_object", "open_drawer"])
def test_with_everything_varied_an_episode_ends_in_the_same_bits_in_any_batch(name):
    alone = play(build_varied(name, everything(name)), RandomActionPolicy(), NUM_EPISODES)
    together = play(build_varied(name, everything(name), num_envs=3), RandomActionPolicy(), NUM_EPISODES)
    assert {index: record.conditions for index, record in alone.records.items()} == {
        index: record.conditions for index, record in together.records.items()
    }
    assert alone.states == together.states


def test_variations_that_are_off_change_no_bit():
    off = {f"{variation.key}.enabled": False for variation in catalogue_of("lift_object")}
    plain, unvaried = build("lift_object"), build_varied("lift_object", off)
    assert plain.provenance() == unvaried.provenance()
    one, other = (play(env, RandomActionPolicy(), 1) for env in (plain, unvaried))
    assert one.states == other.states
    assert one.records[0].conditions == other.records[0].conditions


def test_mass_scales_inertia_presses_on_the_table_and_leaves_the_other_env_slots_alone():
    env = build_varied("lift_object", fixed("cube.mass", 0.4, 0.1), num_envs=2)
    forces = simulation(env).batch.bind("qfrc_constraint")
    begin(env)
    nominal = simulation(env).model
    assert values_of(env, "body_mass", OBJECT) == pytest.approx([0.4, 0.1])
    ratio = values_of(env, "body_inertia", OBJECT) / nominal.body_inertia[nominal.body(OBJECT).id]
    assert ratio == pytest.approx(np.repeat([[4.0], [1.0]], 3, axis=1))
    steps_of(env, hold_still(env), 10)
    # What rests is held up by contact forces equal to its weight.
    upwards = env.backend.names.joint_dof["object/free"].start + 2
    assert forces[:, upwards] == pytest.approx([0.4 * 9.81, 0.1 * 9.81], rel=0.02)


def test_a_larger_object_stands_on_the_table_and_not_in_it():
    # A position takes the place of the task's own draw, but for its height.
    overrides = {**fixed("cube.size", 1.0, 1.5), **fixed("cube.position", [0.45, 0.1])}
    env = build_varied("lift_object", overrides, num_envs=2)
    conditions = begin(env)
    assert [point(each["cube.position"]) for each in conditions] == [
        (0.45, 0.1, pytest.approx(height)) for height in (0.025, 0.0375)
    ]
    steps_of(env, hold_still(env), 10)
    assert env.backend.body_position(OBJECT)[:, 2].numpy() == pytest.approx([0.025, 0.0375], abs=5e-4)
    small, large = values_of(env, "geom_rbound", "object/shape")
    assert large == pytest.approx(1.5 * small)


def test_friction_decides_whether_a_grasp_holds():
    slippery_and_rough = build_varied("lift_object", fixed("cube.friction", 0.02, 1.0), num_envs=2)
    records = play(slippery_and_rough, ScriptedPolicy(), 2).records
    assert [records[index].success for index in range(2)] == [False, True]


def test_colour_light_and_cameras_vary_in_the_fields_that_renderers_read():
    overrides = {
        **fixed("cube.color", [0.1, 0.2, 0.9]),
        **fixed("light.direction", [0.0, 3.0, -4.0]),
        **fixed("light.intensity", 0.5),
        **fixed("robot_head_cam.position", [0.0, 0.0, 0.1]),
        **fixed("wrist_cam.rotation", [0.0, 0.0, 0.5]),
    }
    env = build_varied("lift_object", overrides)
    begin(env)
    model = simulation(env).model
    assert values_of(env, "geom_rgba", "object/shape")[0] == pytest.approx([0.1, 0.2, 0.9, 1.0])
    assert env.backend.model_field("light_dir")[0, 0] == pytest.approx([0.0, 0.6, -0.8])
    assert env.backend.model_field("light_diffuse")[0, 1] == pytest.approx(0.5 * model.light_diffuse[1])
    shift = values_of(env, "cam_pos", "robot_head_cam")[0] - model.camera("robot_head_cam").pos
    assert shift == pytest.approx([0.0, 0.0, 0.1])
    turned = values_of(env, "cam_quat", "robot/wrist_cam")[0]
    assert 2 * np.arccos(abs(turned @ model.camera("robot/wrist_cam").quat)) == pytest.approx(0.5)


def test_an_env_slot_that_starts_again_forgets_what_varied_before():
    env = build_varied("lift_object", {**fixed("cube.mass", 0.4), **fixed("cube.color", [0.1, 0.2, 0.9])})
    begin(env)
    env.reset(torch.tensor([0]), [build("lift_object").draw_conditions(np.random.default_rng(0))])
    for field in ("body_mass", "body_inertia", "body_subtreemass", "geom_rgba", "body_invweight0", "dof_M0"):
        assert np.array_equal(env.backend.model_field(field)[0], getattr(simulation(env).model, field))


def test_a_higher_table_lowers_the_robot_and_raises_what_it_sees():
    env, low = build_varied("lift_object", fixed("table.height", 0.05)), build("lift_object")
    [conditions] = begin(env)
    seen = env.step(hold_still(env)).observation["policy"]
    low.reset(torch.tensor([0]), [conditions])
    seen_before = low.step(hold_still(low)).observation["policy"]
    assert seen["object_pos"] - seen_before["object_pos"] == pytest.approx(torch.tensor([[0.0, 0.0, 0.05]]), abs=1e-5)
    assert seen["eef_pos"].numpy() == pytest.approx(seen_before["eef_pos"].numpy(), abs=1e-4)
    assert env.state()["articulation"]["robot"]["root_pose"][0, 2] == pytest.approx(-0.05)


def test_distractors_stand_clear_of_the_task_and_of_each_other():
    env = build_varied("pick_and_place", fixed("distractors.count", 3, 1), num_envs=2)
    conditions = begin(env)
    assert [each["distractors.count"] for each in conditions] == [3, 1]
    model, things = simulation(env).model, env.backend.body_position("object/body")[:, :2]
    spots = np.array([conditions[0][f"distractor_{index}.position"] for index in (1, 2, 3)])[:, :2]
    gaps = [np.linalg.norm(a - b) for i, a in enumerate(spots) for b in spots[:i]]
    assert min(gaps) > 0.1
    assert min(np.linalg.norm(spots - things[0].numpy(), axis=1)) > 0.1
    assert len(footprints(model, env.task)) == 2
    steps_of(env, hold_still(env), 20)
    poses = env.state()["rigid_object"]["distractor_1"]["root_pose"].numpy()
    assert poses[:, :2] == pytest.approx(
        np.array([point(each["distractor_1.position"])[:2] for each in conditions]), abs=2e-3
    )
    assert "distractor_2.position" not in conditions[1]
    assert env.backend.body_position("distractor_2/body")[1, 0] < -1


def test_actions_get_noise_of_the_strength_asked_for():
    env = build_varied("reach", fixed("action.noise", 0.01))
    [conditions] = begin(env)
    assert isinstance(conditions["action.noise_seed"], int)
    still, before = hold_still(env), env.backend.ctrl.clone()
    moves = []
    for _ in range(60):
        env.step(still)
        moves.append((env.backend.ctrl - before)[0, env.action_mode.arm_controls].numpy().copy())
    spec = env.action_spec
    spans = np.array(spec.high) - np.array(spec.low)
    assert np.std(moves, axis=0)[:2] == pytest.approx(0.01 * spans[:2], rel=0.35)


def test_a_delayed_env_slot_sees_the_past_and_its_neighbour_does_not():
    env, prompt = build_varied("reach", fixed("observation.delay", 2, 0), num_envs=2), build("reach", num_envs=2)
    conditions, action = begin(env), torch.zeros(env.action_space.shape)
    now = [prompt.reset(torch.arange(2), conditions)["policy"]["robot_joint_pos"]]
    for step in range(1, 5):
        now.append(prompt.step(action).observation["policy"]["robot_joint_pos"])
        seen = env.step(action).observation["policy"]["robot_joint_pos"]
        assert torch.equal(seen[0], now[max(0, step - 2)][0])
        assert torch.equal(seen[1], now[step][1])


@pytest.mark.parametrize("cameras", [{}, {"enable_cameras": True, "camera_size": 16}])
def test_a_control_step_takes_as_many_operations_for_any_number_of_env_slots(cameras):
    counts = []
    for num_envs in (2, 9):
        env = build_varied("lift_object", everything("lift_object", **cameras), num_envs=num_envs, **cameras)
        begin(env)
        # The first step of a process makes what later ones remember.
        steps_of(env, hold_still(env), 1)
        counts.append(operations(env, hold_still(env)))
    assert counts[0] == counts[1]
    assert (counts[0] > 400) == bool(cameras)


# Noise, blur and exposure of what is observed: the same for an episode whatever its neighbours do.

RGB = "head_rgb"
STRONG: Conditions = {
    "observation.noise": 0.1,
    "observation.noise_seed": 5,
    "picture.noise": 8.0,
    "picture.blur": 1.0,
    "picture.exposure": 0.5,
    "picture.jpeg_quality": 20,
}


ALL = torch.tensor([True, True, True])


def disturbing(*each: Conditions) -> Disturbances:
    made = Disturbances(len(each), CPU, most_blur=1.0)
    made.begin(torch.arange(len(each)), range(len(each)), each)
    return made


def observed(num_envs: int) -> dict:
    generator = np.random.default_rng(3)
    picture = torch.from_numpy(generator.integers(0, 256, (9, 8, 3), dtype=np.uint8))
    return {
        "policy": {"joint_pos": torch.ones(num_envs, 2), "eef_pos": torch.zeros(num_envs, 3)},
        CAMERAS: {RGB: picture.repeat(num_envs, 1, 1, 1), "head_depth": torch.ones(num_envs, 9, 8, 1)},
    }


def test_noise_has_mean_0_and_deviation_1_and_follows_from_its_key_alone():
    places = torch.arange(1, 100_001)
    noise = noise_of(torch.tensor([[7], [8]]), places)
    assert noise.mean(dim=1).abs().max() < 0.01
    assert (noise.std(dim=1) - 1).abs().max() < 0.01
    assert abs(float((noise[0] * noise[1]).mean())) < 0.01
    assert torch.equal(noise[1], noise_of(torch.tensor([[1], [2], [8]]), places)[2])
    # SplitMix64's first number of seed 0, as its author's program gives it.
    assert int(mixed(torch.tensor([0x9E3779B97F4A7C15 - 2**64]))) == 0xE220A8397B1DCDAF - 2**64


@pytest.mark.parametrize("other", [{"picture.noise": 30.0, "picture.noise_seed": 9, "picture.blur": 0.5}, {}])
def test_an_episode_sees_the_same_beside_any_others_and_depth_and_one_without_a_disturbance_keep_their_bits(other):
    alone, beside, plain = disturbing(STRONG), disturbing(other, STRONG), observed(2)
    for step in range(3):
        one = alone.disturbed(observed(1), ALL[:1])
        two = beside.disturbed(observed(2), torch.tensor([step != 1, True]))
        for group, terms in one.items():
            for name, seen in terms.items():
                assert torch.equal(seen[0], two[group][name][1]), name
                unchanged = torch.equal(two[group][name][0], plain[group][name][0])
                assert unchanged is (not other or name != RGB), name
        assert torch.equal(two[CAMERAS]["head_depth"], plain[CAMERAS]["head_depth"])


def test_noise_is_new_in_every_step_and_stays_while_an_env_slot_rests():
    made = disturbing(STRONG)
    first, rests, second = (made.disturbed(observed(1), torch.tensor([goes])) for goes in (True, False, True))
    for group, name in (("policy", "joint_pos"), (CAMERAS, RGB)):
        assert torch.equal(first[group][name], rests[group][name])
        assert not torch.equal(first[group][name], second[group][name])
    # A new episode begins with its own first noise, or has none.
    made.begin(torch.tensor([0]), [0], [STRONG])
    again = made.disturbed(observed(1), ALL[:1])["policy"]["joint_pos"]
    assert torch.equal(again, first["policy"]["joint_pos"])
    made.begin(torch.tensor([0]), [0], [{}])
    assert torch.equal(made.disturbed(observed(1), ALL[:1])[CAMERAS][RGB], observed(1)[CAMERAS][RGB])


def test_what_is_drawn_on_demand_is_seen_as_if_everything_were_drawn():
    each = [{**STRONG, "observation.noise_seed": seed} for seed in (5, 6, 7)]
    everything = disturbing(*each).disturbed(observed(3), ALL)
    some = observed(3)
    some[CAMERAS] = {RGB: Pictures((0, 2), observed(2)[CAMERAS][RGB])}
    seen = disturbing(*each).disturbed(some, ALL)[CAMERAS][RGB]
    assert seen.env_ids == (0, 2)
    assert torch.equal(seen[[0, 2]], everything[CAMERAS][RGB][[0, 2]])


def test_pictures_are_compressed_last_as_a_camera_does():
    bare, compressed = disturbing({**STRONG, "picture.jpeg_quality": 100}), disturbing(STRONG)
    one, other = (each.disturbed(observed(1), ALL[:1])[CAMERAS][RGB] for each in (bare, compressed))
    tables = torch.from_numpy(quantisation_tables(20))[None]
    assert torch.equal(other, compressed_pictures(one, tables))


@pytest.mark.parametrize(("stops", "grey"), [(0.0, 128), (1.0, 175), (-1.0, 93), (6.0, 255)])
def test_exposure_counts_in_light_and_not_in_colours(stops, grey):
    assert tone_table(stops, 1.0, 1.0)[128] == grey


def test_blur_keeps_an_even_picture_and_spreads_a_point():
    weights = torch.tensor([[0.25, 0.5, 0.25]])
    even = torch.full((1, 5, 5, 1), 77, dtype=torch.uint8)
    assert torch.equal(blurred_pictures(even, weights), even)
    point = torch.zeros(1, 5, 5, 1, dtype=torch.uint8)
    point[0, 2, 2] = 160
    assert blurred_pictures(point, weights)[0, 1:4, 1:4, 0].tolist() == [[10, 20, 10], [20, 40, 20], [10, 20, 10]]


# Noise and delay of each env slot for itself, in numbers.

SPEC = ArraySpec(shape=(2,), low=(-1.0, 0.0), high=(3.0, 0.5))
MAX_STEPS = 2 * NOISE_STEPS + 3


def imperfections_noise_of(strengths: list[float], seeds: list[int]) -> ActionNoise:
    noise = ActionNoise(SPEC, len(strengths), device=CPU)
    noise.begin(range(len(strengths)), strengths, seeds)
    return noise


def test_noise_is_a_share_of_each_actions_range_drawn_from_the_episodes_seed_to_the_bits_of_draws_one_by_one():
    noise = imperfections_noise_of([0.1, 0.0, 0.2], [5, 6, 7])
    streams = {slot: np.random.default_rng(seed) for slot, seed in ((0, 5), (2, 7))}
    for step in range(MAX_STEPS):
        action = torch.full((3, 2), 0.7 * step if step else -0.0)
        added = noise.added(action, ALL)
        for slot, strength in ((0, 0.1), (2, 0.2)):
            drawn = streams[slot].standard_normal(2) * np.array([4.0, 0.5]) * strength
            assert torch.equal(added[slot], action[slot] + torch.from_numpy(drawn).float())
        assert torch.equal(torch.signbit(added[1]), torch.signbit(action[1]))
        assert torch.equal(added[1], action[1])


def test_an_env_slot_goes_on_with_its_noise_however_long_others_run_and_whenever_they_begin():
    noise, alone = imperfections_noise_of([0.1, 0.2], [5, 6]), imperfections_noise_of([0.1], [5])
    first = torch.zeros(1, 2)
    for step in range(MAX_STEPS):
        if step in (7, NOISE_STEPS + 7):
            noise.begin([1], [0.3], [step])
            first = imperfections_noise_of([0.3], [step]).added(torch.zeros(1, 2), torch.tensor([True]))
        rests = step % 5 == 3
        added = noise.added(torch.zeros(2, 2), torch.tensor([not rests, True]))
        if step in (7, NOISE_STEPS + 7):
            assert torch.equal(added[1], first[0])
        expected = torch.zeros(2) if rests else alone.added(torch.zeros(1, 2), torch.tensor([True]))[0]
        assert torch.equal(added[0], expected)
    noise.begin([0], [0.0], [8])
    assert noise.added(torch.zeros(2, 2), torch.tensor([True, True]))[0].tolist() == [0.0, 0.0]


def delay_of(*delays: int) -> ObservationDelay:
    delay = ObservationDelay(len(delays), CPU)
    delay.begin(torch.arange(len(delays)), delays)
    return delay


def seen(delay: ObservationDelay, values: list[float], moved: list[int]) -> list[float]:
    observed = {"policy": {"clock": torch.tensor(values)[:, None]}}
    mask = torch.zeros(len(values), dtype=torch.bool)
    mask[moved] = True
    return delay.delayed(observed, mask)["policy"]["clock"][:, 0].tolist()


def test_an_observation_is_as_many_steps_old_as_its_delay_and_first_the_episodes_first():
    delay = delay_of(0, 1, 2, 3)
    told = [seen(delay, [float(step)] * 4, [0, 1, 2, 3]) for step in range(6)]
    assert [column[0] for column in told] == [0, 1, 2, 3, 4, 5]
    assert [column[1] for column in told] == [0, 0, 1, 2, 3, 4]
    assert [column[2] for column in told] == [0, 0, 0, 1, 2, 3]
    assert [column[3] for column in told] == [0, 0, 0, 0, 1, 2]


def test_neither_steps_nor_resets_nor_longer_delays_of_neighbours_age_an_observation():
    delay = delay_of(0, 1, 2)
    for step in range(5):
        seen(delay, [step, 10.0 + step, 20.0 + step], [0, 1, 2])
    assert seen(delay, [5.0, 15.0, 25.0], [0]) == [5.0, 13.0, 22.0]
    delay.begin(torch.tensor([0]), [4])
    assert seen(delay, [0.0, 14.0, 24.0], [0]) == [0.0, 13.0, 22.0]
    told = [seen(delay, [step, 10.0 + step, 20.0 + step], [0, 1, 2]) for step in range(5, 10)]
    assert [column[0] for column in told] == [0, 0, 0, 0, 5]
    assert [column[1] for column in told] == [14, 15, 16, 17, 18]
    assert [column[2] for column in told] == [23, 24, 25, 26, 27]


HEAD = "robot_head_cam_rgb"


# Pictures after JPEG: close to what a library makes of them, and the same bits wherever they are computed.


def scene(height: int, width: int) -> np.ndarray:
    """Return a picture with edges, slopes and colours, made of whole numbers."""
    y, x = np.mgrid[:height, :width]
    table = np.stack([120 + x, 90 + y, 200 - x // 2], axis=-1)
    table[(x - 20) ** 2 + (y - 24) ** 2 < 90] = (200, 30, 30)
    table[(x + y) % 17 == 0] //= 2
    return table.clip(0, 255).astype(np.uint8)


def compressed(pictures: np.ndarray, *qualities: int) -> np.ndarray:
    tables = torch.from_numpy(np.stack([quantisation_tables(quality) for quality in qualities]))
    return compressed_pictures(torch.from_numpy(pictures), tables).numpy()


def by_pillow(picture: np.ndarray, quality: int) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(io.BytesIO(file.getvalue())))


@pytest.mark.parametrize("size", [(64, 64), (45, 83)], ids=str)
def test_it_looks_like_what_a_library_reads_back_also_beside_pictures_of_other_qualities(size):
    def apart(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.abs(one.astype(int) - other).mean())

    qualities, picture = (1, 10, 28, 50, 82, 95), scene(*size)
    together = compressed(np.stack([picture] * len(qualities)), *qualities)
    for seen, quality in zip(together, qualities, strict=True):
        read = by_pillow(picture, quality)
        # Libraries round their transforms a little differently: a mean difference of 1 of 255.
        assert apart(seen, read) < min(1.0, apart(picture, read) / 3)
    assert np.array_equal(together[2], compressed(picture[None], 28)[0])
    lost = [apart(seen, picture) for seen in together]
    assert lost == sorted(lost, reverse=True)


def test_the_pixels_are_the_same_on_every_machine():
    digest = hashlib.sha256(compressed(scene(50, 70)[None], 28).tobytes()).hexdigest()
    assert digest == "538fe7e71c6872f09fba3d5a0aa7dce0db2a7f280122ac5c3b7d54057686d2c1"


def test_pictures_show_colour_light_camera_and_disturbances_films_what_is_there_and_the_physics_none_of_it():
    red, blue, here, aside = [0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0, 0, 0], [0.2, 0, 0]
    overrides = {
        **fixed("cube.color", red, blue, red, red, red),
        **fixed("light.intensity", 1.0, 1.0, 0.3, 1.0, 1.0),
        **fixed("robot_head_cam.position", here, here, here, aside, here),
        **fixed("picture.exposure", 0.0, 0.0, 0.0, 0.0, 1.0),
        **fixed("picture.noise", 0.0, 0.0, 0.0, 0.0, 12.0),
    }
    cameras = {"enable_cameras": True, "camera_size": 64, "camera_segmentation": True}
    env = build_varied("lift_object", overrides, num_envs=5, **cameras)
    same = build("lift_object").draw_conditions(np.random.default_rng(0))
    env.reset(torch.arange(5), [{**conditions_of(env, index), **same} for index in range(5)])
    step = steps_of(env, hold_still(env), 1)[0].observation
    seen = step["camera_obs"]
    pictures = seen[HEAD].numpy().astype(float)
    shows_cube = seen["robot_head_cam_segmentation"].numpy()[..., 0] == simulation(env).model.body("object/body").id
    colours = [pictures[env_id][shows_cube[env_id]].mean(axis=0) for env_id in range(2)]
    assert colours[0][0] > 2 * colours[0][2]
    assert colours[1][2] > 2 * colours[1][0]
    assert pictures[2].mean() < 0.85 * pictures[0].mean()
    assert np.array_equal(shows_cube[0], shows_cube[2])
    assert not np.array_equal(shows_cube[0], shows_cube[3])
    assert pictures[4].mean() > pictures[0].mean() + 20
    filmed = env.film([0, 4], [HEAD])[HEAD]
    assert np.array_equal(filmed[0], filmed[1])
    assert np.array_equal(filmed[0], pictures[0])
    states = [state["integration_state"] for state in env.episode_states(range(5))]
    assert all(np.array_equal(state, states[0]) for state in states)
    assert all(torch.equal(value, value[:1].expand_as(value)) for value in step["policy"].values())

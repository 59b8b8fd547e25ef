"""Pictures of all worlds at once, held to those that are rendered one by one."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from isaaclab_arena.sim.backend import StartState, moved_camera, painted
from isaaclab_arena.sim.scene import ScenePart, compose_scene
from isaaclab_arena.sim.warp_backend import WarpBackend
from isaaclab_arena.sim.warp_cameras import BatchCameras, Camera, RayTracers
from tests.sim.warp.test_launching import Worker, between

PARTS = (
    ScenePart(prefix="robot", asset="robots/panda.xml"),
    ScenePart(prefix="object", asset="objects/cube.xml", position=(0.5, 0.0, 0.025)),
)
WIDTH, HEIGHT = 48, 32

# Poses in single precision move an edge by a hair, which a pixel on it shows; a pixel inside a surface does not.
SAME_PIXELS, CLOSE = 0.99, 2


@pytest.fixture(scope="module")
def model():
    return compose_scene("scenes/table.xml", PARTS)


@pytest.fixture(scope="module")
def cameras(model):
    names = [model.camera(index).name for index in range(model.ncam)]
    return [Camera(name=name, width=WIDTH, height=HEIGHT, depth=True, segmentation=True) for name in names]


@pytest.fixture(scope="module")
def backend(model, cameras):
    backend = WarpBackend(model, num_envs=2, device=torch.device("cpu"))
    changes = [
        [],
        [
            *painted(model, "object/body", (0.0, 0.0, 1.0)),
            *moved_camera(model, cameras[0].name, shift=(0.05, 0.0, 0.0), turn=(0.0, 0.0, 0.0)),
        ],
    ]
    backend.vary(torch.arange(2), changes)
    starts = [
        StartState(joint_positions={"object/free": (0.4 + 0.1 * env_id, 0.0, 0.03, 1, 0, 0, 0)}) for env_id in range(2)
    ]
    backend.reset(torch.arange(2), starts)
    return backend


def test_all_worlds_at_once_look_as_they_do_one_by_one(backend, cameras):
    together = BatchCameras(backend, cameras).render()
    alone = RayTracers(backend.model, cameras).render([0, 1], backend.visible_world)
    for camera in cameras:
        for env_id in range(2):
            picture = alone[env_id][camera.name]
            assert picture.depth is not None
            assert picture.segmentation is not None
            colours = together[camera.name][env_id].numpy().astype(int)
            assert (np.abs(colours - picture.rgb) <= CLOSE).all(axis=-1).mean() > SAME_PIXELS
            depth = together[f"{camera.name}:depth"][env_id].numpy()
            assert np.isclose(depth, picture.depth, atol=1e-3).mean() > SAME_PIXELS
            seen = together[f"{camera.name}:segmentation"][env_id].numpy()
            assert (seen == picture.segmentation).mean() > SAME_PIXELS


def test_each_world_shows_its_own_colours_and_camera(backend, cameras):
    pictures = BatchCameras(backend, cameras).render()
    colours = pictures[cameras[0].name]
    assert colours.shape == (2, HEIGHT, WIDTH, 3)
    assert colours.dtype == torch.uint8
    assert not torch.equal(colours[0], colours[1])


@pytest.mark.parametrize("env_ids", [[0, 1, 2], [2], [1, 2]])
def test_a_few_worlds_at_a_time_look_as_they_do_together(model, cameras, env_ids):
    backend = WarpBackend(model, num_envs=3, device=torch.device("cpu"))
    blue = [*painted(model, "object/body", (0.0, 0.0, 1.0))]
    shifted = [*moved_camera(model, cameras[0].name, shift=(0.05, 0.0, 0.0), turn=(0.0, 0.0, 0.0))]
    backend.vary(torch.arange(3), [[], blue, shifted])
    backend.reset(torch.arange(3), [StartState()] * 3)
    together = BatchCameras(backend, cameras, shadows=True).render(torch.tensor(env_ids))
    few = BatchCameras(backend, cameras, shadows=True, at_once=2).render(torch.tensor(env_ids))
    assert few.keys() == together.keys()
    for name, pictures in together.items():
        assert torch.equal(few[name], pictures), name
    if len(env_ids) == 3:
        shown = few[cameras[0].name]
        assert not torch.equal(shown[0], shown[1])
        assert not torch.equal(shown[0], shown[2])


@pytest.mark.parametrize("at_once", [None, 1])
def test_replayed_pictures_have_the_bits_of_launches(model, cameras, at_once):
    replaying, launching = (WarpBackend(model, num_envs=2, device=torch.device("cpu")) for _ in range(2))
    drawers = [BatchCameras(each, cameras, at_once=at_once) for each in (replaying, launching)]
    for number in range(3):
        changes = [[], painted(model, "object/body", (0.0, 0.5 * number, 1.0))]
        place = StartState(joint_positions={"object/free": (0.4 + 0.05 * number, 0.0, 0.1 * number, 1, 0, 0, 0)})
        for each in (replaying, launching):
            each.vary(torch.arange(2), changes)
            each.reset(torch.arange(2), [place, place])
        launching.launcher.forget_graphs()
        replayed, launched = (each.render() for each in drawers)
        assert replayed.keys() == launched.keys()
        for name, pictures in replayed.items():
            assert torch.equal(pictures, launched[name]), name


def test_pictures_are_drawn_in_a_stream_in_which_no_other_thread_is_in_their_way(model, cameras):
    backend, worker = WarpBackend(model, num_envs=2, device=torch.device("cpu")), Worker()
    backend.launcher = worker.launcher
    pictures = BatchCameras(backend, cameras[:1])
    for _ in range(2):
        assert worker.noted(lambda: pictures.render(torch.tensor([1]))) == between("independent")


class CopiedColours(TorchDispatchMode):
    """Counts worlds whose colours are put in order, which copies them."""

    num_worlds = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.flip.default:
            self.num_worlds += len(args[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("at_once", [None, 2])
def test_only_worlds_that_are_wanted_are_copied(model, cameras, at_once):
    backend = WarpBackend(model, num_envs=3, device=torch.device("cpu"))
    pictures = BatchCameras(backend, cameras[:1], at_once=at_once)
    with CopiedColours() as copied:
        pictures.render(torch.tensor([1]))
    assert copied.num_worlds == 1

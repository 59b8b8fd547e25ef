"""Pictures of many worlds of a `WarpBackend` at once: rendered where they live, and left there as tensors."""

from collections.abc import Mapping, Sequence
from itertools import count

import mujoco_warp
import torch
import warp

from isaaclab_arena.sim.warp.backend import WarpBackend
from isaaclab_arena.sim.warp.cameras import Camera, render_context
from isaaclab_arena.sim.warp.few_worlds import FewWorlds
from isaaclab_arena.sim.warp.kernels import one_compiler_at_a_time

_BYTES_PER_PIXEL = 4
_NUMBERS = count()
"""Tells the graphs of several `BatchCameras` of one backend apart."""


class BatchCameras:
    """Renders worlds with the ray tracer that `RayTracers` uses for worlds on the CPU.

    Args:
        backend: The worlds, whose own colours, lights and camera poses show.
        cameras: Which cameras are rendered, and how.
        shadows: Whether lights cast shadows.
        at_once: Worlds that are rendered at once, which decides how much memory it takes; by default all.
    """

    def __init__(
        self, backend: WarpBackend, cameras: Sequence[Camera], *, shadows: bool = False, at_once: int | None = None
    ) -> None:
        self._backend = backend
        self._cameras = tuple(cameras)
        self._kind = f"pictures {next(_NUMBERS)}"
        self._few = None if at_once is None or at_once >= backend.num_envs else FewWorlds(backend, at_once)
        num_worlds = backend.num_envs if self._few is None else self._few.num_worlds
        with backend.launcher.compiling():
            self._context = context = render_context(backend.model, cameras, num_worlds=num_worlds, shadows=shadows)
        # Where each camera's pixels begin, read once: to read it back for every picture would be to wait for the GPU.
        self._starts = [
            tuple(map(int, starts))
            for starts in zip(context.rgb_adr.numpy(), context.depth_adr.numpy(), context.seg_adr.numpy(), strict=True)
        ]
        self._geom_body = torch.tensor(backend.model.geom_bodyid, dtype=torch.int32, device=backend.device)
        # The first pictures compile what takes them.
        with one_compiler_at_a_time():
            self.render(torch.arange(num_worlds, device=backend.device))

    def render(self, env_ids: torch.Tensor | None = None) -> Mapping[str, torch.Tensor]:
        """Render worlds as they are.

        Args:
            env_ids: Which ones, None for all. Shape: (n,), int64.

        Returns:
            ``<camera>`` to colours, uint8, shape (n, height, width, 3); and where they were asked for
            ``<camera>:depth`` [m], float32, and ``<camera>:segmentation``, index of the body that is seen, -1 for none,
            int32, both of shape (n, height, width, 1). On the backend's device.
        """
        if self._few is None:
            return self._shot(*self._backend.warp_worlds, slice(None) if env_ids is None else env_ids)
        if env_ids is None:
            env_ids = torch.arange(self._backend.num_envs, device=self._backend.device)
        parts: dict[str, list[torch.Tensor]] = {}
        for part in env_ids.split(self._few.num_worlds):
            for name, each in self._shot(*self._few.show(part), slice(len(part))).items():
                parts.setdefault(name, []).append(each)
        return {name: torch.cat(each) for name, each in parts.items()}

    def _shot(
        self, model: mujoco_warp.Model, data: mujoco_warp.Data, wanted: torch.Tensor | slice
    ) -> Mapping[str, torch.Tensor]:
        """Take pictures of all worlds that there is memory for, and return those of some of them.

        Args:
            model: The model of these worlds.
            data: Their state.
            wanted: Which of them are returned; no others are copied.
        """
        context = self._context

        def launch() -> None:
            mujoco_warp.refit_bvh(model, data, context)
            mujoco_warp.render(model, data, context)

        self._backend.launcher.replay(self._kind, launch)
        colours = warp.to_torch(context.rgb_data.view(warp.int32))[wanted].view(torch.uint8)
        num_worlds = len(colours)
        pictures = {}
        for camera, (rgb_start, depth_start, seen_start) in zip(self._cameras, self._starts, strict=True):
            shape, pixels = (num_worlds, camera.height, camera.width), camera.height * camera.width
            # A pixel is one number, 0xAARRGGBB, which lies in memory from blue to alpha.
            first = rgb_start * _BYTES_PER_PIXEL
            packed = colours[:, first : first + pixels * _BYTES_PER_PIXEL].reshape(*shape, _BYTES_PER_PIXEL)
            pictures[camera.name] = packed[..., :3].flip(-1)
            if camera.depth:
                depth = warp.to_torch(context.depth_data)[wanted, depth_start : depth_start + pixels]
                pictures[f"{camera.name}:depth"] = depth.reshape(*shape, 1).clone()
            if camera.segmentation:
                geoms = warp.to_torch(context.seg_data)[wanted, seen_start : seen_start + pixels, 0]
                bodies = torch.where(geoms >= 0, self._geom_body[geoms.clamp(min=0).long()], -1)
                pictures[f"{camera.name}:segmentation"] = bodies.reshape(*shape, 1).to(torch.int32)
        return pictures

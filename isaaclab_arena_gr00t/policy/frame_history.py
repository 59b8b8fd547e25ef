"""What env slots looked like some control steps ago, for models that are shown more than the present."""

from collections.abc import Mapping, Sequence

import torch

from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.interfaces.pictures import SomePictures
from isaaclab_arena_gr00t.modality import PRESENT
from isaaclab_arena_gr00t.observations import Shown, pictures, shown_now, state_values
from isaaclab_arena_gr00t.wiring import CAMERA_GROUP, Wiring

_STATE = "state"


class FrameHistory:
    """The last frames of every env slot, as many as the earliest of some steps needs.

    Frames are pushed once per control step, for the env slots that are looked at then. An env slot that begins anew has
    looked as it does now for ever. One that makes no step keeps its frames. Pictures are large, so they are kept in
    place and not as a value.

    Args:
        steps: Which frames are asked for: 0 is the one that was pushed last, -15 the one 15 before it.
        num_envs: Number of env slots.
    """

    def __init__(self, steps: Sequence[int], num_envs: int) -> None:
        self._steps = tuple(steps)
        self._length = 1 - min(steps)
        self._newest = torch.zeros(num_envs, dtype=torch.int64)
        self._begins = torch.ones(num_envs, dtype=torch.bool)
        self._known = torch.zeros((num_envs, self._length), dtype=torch.bool)
        self._kept: dict[str, torch.Tensor] = {}

    def restart(self, env_ids: torch.Tensor) -> None:
        """Forget what these env slots looked like before the next frame."""
        self._begins[env_ids.to(self._begins.device)] = True

    def push(
        self, frames: Mapping[str, torch.Tensor], env_ids: Sequence[int], stepping: Sequence[int] | None = None
    ) -> None:
        """Take the next frame of some env slots; that of the others that make a step is never asked for.

        Args:
            frames: Shape of each: (len(env_ids), ...), always the same but for the number of env slots.
            env_ids: The env slots.
            stepping: Env slots that make a step, those of ``env_ids`` among them; None for all.
        """
        moved = torch.tensor(range(len(self._newest)) if stepping is None else list(stepping), dtype=torch.int64)
        self._newest[moved] = (self._newest[moved] + 1) % self._length
        self._known[moved, self._newest[moved]] = False
        pushed = torch.tensor(list(env_ids), dtype=torch.int64)
        begins, newest = self._begins[pushed], self._newest[pushed]
        self._known[pushed, newest] = True
        self._known[pushed[begins]] = True
        for key, frame in frames.items():
            if key not in self._kept:
                self._kept[key] = frame.new_zeros((len(self._begins), self._length, *frame.shape[1:]))
            kept = self._kept[key]
            device = frame.device
            kept[pushed.to(device, non_blocking=True), newest.to(device, non_blocking=True)] = frame
            # By numbers and not by a mask, whose length a GPU would have to tell.
            first = frame[begins.nonzero()[:, 0].to(device, non_blocking=True), None]
            anew = pushed[begins].to(device, non_blocking=True)
            kept[anew] = first.expand(-1, self._length, *frame.shape[1:])
        self._begins[pushed] = False

    def frames(self, env_ids: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the frames of some env slots. Shape of each: (len(env_ids), number of steps, ...).

        Raises:
            ValueError: If one of them was never pushed.
        """
        slots = torch.tensor(list(env_ids), dtype=torch.int64)[:, None]
        places = (self._newest[slots] + torch.tensor(self._steps)) % self._length
        if not bool(self._known[slots, places].all()):
            raise ValueError(f"the frames of steps {self._steps} of env slots {list(env_ids)} were not all pushed")
        return {key: _picked(kept, slots, places) for key, kept in self._kept.items()}


def _picked(kept: torch.Tensor, slots: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return frames of env slots, wherever they are kept."""
    return kept[slots.to(kept.device, non_blocking=True), places.to(kept.device, non_blocking=True)]


class ShownHistory:
    """What a model is shown of every env slot, at the steps that its wiring names.

    Of what it is shown at the present step only, nothing is kept.

    Args:
        wiring: Where everything is.
        num_envs: Number of env slots.
    """

    def __init__(self, wiring: Wiring, num_envs: int) -> None:
        self.wiring = wiring
        self._video = None if wiring.video_steps == PRESENT else FrameHistory(wiring.video_steps, num_envs)
        self._state = None if wiring.state_steps == PRESENT else FrameHistory(wiring.state_steps, num_envs)
        self.num_envs = num_envs

    def restart(self, env_ids: torch.Tensor) -> None:
        """Forget what these env slots showed before."""
        for history in (self._video, self._state):
            if history is not None:
                history.restart(env_ids)

    def push(self, observation: Observation, stepping: Sequence[int]) -> None:
        """Take up what env slots show; once in every control step that they make, whoever is asked for in it."""
        if self._video is not None:
            drawn = _drawn(observation[CAMERA_GROUP], self.wiring, stepping)
            self._video.push(pictures(observation, self.wiring, drawn) if drawn else {}, drawn, stepping)
        state = None if self._state is None else state_values(observation, self.wiring, list(stepping))
        if self._state is not None and state is not None:
            self._state.push({_STATE: state}, stepping, stepping)

    def shown(self, observation: Observation, env_ids: Sequence[int]) -> Shown:
        """Return what a model is shown of some env slots, of which ``observation`` is what was pushed last.

        Args:
            observation: Nested dict of tensors, batched by environment.
            env_ids: The env slots, in the order in which the model is to get them; one may be named several times.
        """
        if self._video is None and self._state is None:
            return shown_now(observation, self.wiring, env_ids)
        slots = list(env_ids)
        if self._video is None:
            video = {key: values[:, None] for key, values in pictures(observation, self.wiring, slots).items()}
        else:
            video = self._video.frames(slots)
        if self._state is None:
            state = state_values(observation, self.wiring, slots)
            return Shown(video=video, state=None if state is None else state[:, None])
        return Shown(video=video, state=self._state.frames(slots).get(_STATE))


def _drawn(cameras: Mapping[str, torch.Tensor | SomePictures], wiring: Wiring, env_ids: Sequence[int]) -> Sequence[int]:
    """Return those of some env slots whose pictures are there."""
    shown = [cameras[name] for name in wiring.cameras.values()]
    some = next((each for each in shown if isinstance(each, SomePictures)), None)
    return list(env_ids) if some is None else [env_id for env_id in some.env_ids if env_id in set(env_ids)]

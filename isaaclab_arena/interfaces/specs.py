"""The arrays of environments and policies: shapes, bounds and names, trees of them, chunks of actions, and pictures."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import numpy as np
import torch
from torch.nn import functional

from isaaclab_arena.errors import UnannouncedPictureError, did_you_mean

if TYPE_CHECKING:
    import gymnasium


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """One array, without its leading ``num_envs`` dimension.

    Attributes:
        shape: Shape in one env slot.
        dtype: Element type.
        low: Lowest value of each element, flattened, or None where unbounded.
        high: Highest value of each element, flattened, or None where unbounded.
        names: One name per element of the last dimension, for example joint names.
        choices: How many whole numbers each element may be, halfway between ``low`` and ``high``; 0 for any number.
        unit: Unit of the elements, for example ``rad``.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    names: tuple[str, ...] | None = None
    choices: tuple[int, ...] | None = None
    unit: str | None = None

    def space(self, *batch: int) -> "gymnasium.spaces.Box":
        """Return it as a space of Gymnasium, with dimensions of a batch before its own. Shape: (*batch, *shape)."""
        import gymnasium  # noqa: PLC0415  takes a while, and specs are read without it

        shape = (*batch, *self.shape)
        low = np.float32(-np.inf) if self.low is None else np.asarray(self.low, np.float32).reshape(self.shape)
        high = np.float32(np.inf) if self.high is None else np.asarray(self.high, np.float32).reshape(self.shape)
        return gymnasium.spaces.Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), dtype=np.float32)


ObservationSpec: TypeAlias = Mapping[str, "ArraySpec | ObservationSpec"]
"""Nested dict of `ArraySpec`: group, then term."""

Observation: TypeAlias = dict[str, Any]
"""Nested dict of tensors whose first dimension is ``num_envs``: group (``policy``, ``camera_obs``), then term."""

StateTree: TypeAlias = dict[str, Any]
"""Nested dict of tensors whose first dimension is ``num_envs``: the simulator's state, for recordings."""

HoldAction: TypeAlias = tuple[float | None, ...] | str | None
"""The action that keeps a robot at its target: a number for each element, None for an element that stays as it was in
the last action; ``last`` for all of the last action; None for an environment that declares nothing."""

HOLDS_LAST = "last"
"""The `HoldAction` of an environment whose actions are targets."""

VIEWPORT = "viewport"
"""The camera that shows a person the whole scene; no policy sees it."""


class SideBySide(dict[str, torch.Tensor]):
    """Terms of an observation that lie side by side in memory, so that one copy keeps all of them.

    Args:
        together: All terms. Shape: (num_envs, width).
        widths: Name to width of each term, in order.
    """

    def __init__(self, together: torch.Tensor, widths: Mapping[str, int]) -> None:
        super().__init__(zip(widths, together.split_with_sizes(list(widths.values()), dim=1), strict=True))
        self.together = together

    def clone(self) -> "SideBySide":
        """Return a copy, side by side too."""
        return SideBySide(self.together.clone(), {name: term.shape[1] for name, term in self.items()})


# Chunks of actions: those that a policy's network predicts at once.


@dataclass(frozen=True, kw_only=True)
class ChunkTraits:
    """Facts about a policy whose chunks its caller plays."""

    played: int  # actions of a chunk that the policy itself plays before it asks its network again
    predicted: int  # actions that the network predicts, at least as many
    can_continue: bool = False  # the network can be given a `Continuation`
    # Whose pictures a query shows: 0 is the present step, -1 the one before; none for no pictures.
    picture_steps: tuple[int, ...] = (0,)


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """The actions that new chunks continue: those that are planned already, from the step of the query on."""

    actions: torch.Tensor  # zeros if none is planned; shape (n, predicted, action_dim), float32
    # 1 for an action that is played in any case, 0 if none is planned; shape (n, predicted), float32.
    weights: torch.Tensor

    def of(self, places: Sequence[int]) -> Self:
        """Return the continuation of some of the chunks, by their places; one may be named several times."""
        return replace(self, actions=self.actions[list(places)], weights=self.weights[list(places)])


# The layout of pictures in arrays, and the pictures of some env slots.

CAMERAS = "camera_obs"
"""The group of an observation that holds the pictures of cameras."""

CAMERAS_OFF = (
    "the environment shows no pictures; in arena_env_args, enable_cameras: true adds those of its cameras, and "
    "make_kwargs those that an environment of gym: can observe"
)
"""The message for a camera that is wanted without the group, with the way out."""


def no_camera(camera: str, cameras: Collection[str]) -> str:
    """Return the message for a missing camera, with the way out; ``cameras`` are those that there are."""
    if not cameras:
        return f"'{camera}' is needed, and {CAMERAS_OFF}"
    return f"the environment has no camera '{camera}'{did_you_mean(camera, cameras)}"


_Array = TypeVar("_Array", torch.Tensor, np.ndarray)


@dataclass(frozen=True, kw_only=True)
class PictureLayout:
    """The layout of a picture in its array, as far as its shape and type are certain."""

    # Environments show and recordings keep pictures as they are. Adapters, exports and films have colours.
    height: int
    width: int
    channels: str  # their place: ``last``, ``first``, or ``none`` for a grey picture without any
    num_channels: int  # 3 for colours, 1 for grey, 4 for colours and opacity

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one picture in colours."""
        return self.height, self.width, 3

    def colours(self, pictures: _Array) -> _Array:
        """Return pictures (*batch, *shape of one), uint8, in colours: (*batch, height, width, 3), contiguous."""
        # Grey pictures get three equal channels, opacity is left out, and pictures in that layout stay as they are.
        if self.channels == "last" and self.num_channels == 3:
            return pictures
        if self.channels == "none":
            pictures = pictures[..., None]
        elif self.channels == "first":
            pictures = pictures.swapaxes(-3, -2).swapaxes(-2, -1)
        pictures = pictures[..., [0, 0, 0]] if self.num_channels == 1 else pictures[..., :3]
        return np.ascontiguousarray(pictures) if isinstance(pictures, np.ndarray) else pictures.contiguous()

    def restored(self, colours: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
        """Return changed `colours` of `pictures` in their layout; grey is the first channel, opacity stays."""
        if self.num_channels == 4:
            colours = torch.cat((colours, pictures[..., 3:]), dim=-1)
        elif self.num_channels == 1:
            colours = colours[..., :1]
        if self.channels == "none":
            return colours[..., 0]
        return colours.movedim(-1, -3) if self.channels == "first" else colours


def picture_layout(shape: Sequence[int], dtype: torch.dtype | np.dtype) -> PictureLayout:
    """Return the layout of a picture; ValueError, without the camera's name, if it is none in bytes or is uncertain."""
    shape = tuple(shape)
    if str(dtype).removeprefix("torch.") != "uint8":
        raise ValueError(f"is not a colour picture: {dtype} of shape {shape}")
    if len(shape) not in (2, 3) or 0 in shape:
        raise ValueError(f"has shape {shape}, which is not a single picture; give it as (height, width, 3)")
    first, last = shape[0], shape[-1]
    if len(shape) == 2:
        return PictureLayout(height=first, width=last, channels="none", num_channels=1)
    if last == 3 or (last in (1, 4) and first not in (1, 3, 4)):
        return PictureLayout(height=first, width=shape[1], channels="last", num_channels=last)
    if first in (1, 3) and last not in (1, 4):
        return PictureLayout(height=shape[1], width=last, channels="first", num_channels=first)
    are_several = first == 4 and last not in (1, 4)
    doubt = "the first four may be channels or pictures" if are_several else "it is not certain where its channels are"
    raise ValueError(f"has shape {shape}, and {doubt}; give it as (height, width, 3)")


def in_colours(pictures: _Array) -> _Array:
    """Return one camera's pictures (n, *shape of one), uint8, in colours; ValueError as in `picture_layout`."""
    return picture_layout(pictures.shape[1:], pictures.dtype).colours(pictures)


def resized_with_padding(images: torch.Tensor, *, height: int, width: int) -> torch.Tensor:
    """Resize pictures (n, any, any, channels) uint8 to fit (n, height, width, channels), centred on black [px]."""
    # Shrinking averages over areas, enlarging is bilinear. Each result depends on its own picture alone. Pictures that
    # already have the size are returned as they are, not copied.
    now_height, now_width = images.shape[1:3]
    if (now_height, now_width) == (height, width):
        return images
    # The largest size of the same aspect that fits, at least one pixel each way.
    scale = min(height / now_height, width / now_width)
    inner_height = max(1, min(height, round(now_height * scale)))
    inner_width = max(1, min(width, round(now_width * scale)))
    planes = images.permute(0, 3, 1, 2).to(torch.float32)
    if inner_height <= now_height and inner_width <= now_width:
        scaled = functional.interpolate(planes, size=(inner_height, inner_width), mode="area")
    else:
        scaled = functional.interpolate(planes, size=(inner_height, inner_width), mode="bilinear", align_corners=False)
    top, left = (height - inner_height) // 2, (width - inner_width) // 2
    padded = torch.zeros((len(images), height, width, images.shape[3]), dtype=torch.uint8, device=images.device)
    inner = scaled.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    padded[:, top : top + inner_height, left : left + inner_width] = inner
    return padded


@dataclass(frozen=True, eq=False)
class Pictures:
    """One camera's pictures of some env slots, read by env slot: ``pictures[env_ids]``.

    There is no picture of any other env slot, so no reader can see one that is out of date. Indexing by an env slot or
    by several copies their pictures; another env slot raises `UnannouncedPictureError`.

    Attributes:
        env_ids: The env slots, each once.
        frames: Their pictures, in the same order. Shape: (len(env_ids), height, width, channels).
        camera: Term of ``camera_obs``, for messages.
        reader: The reader, for messages.
    """

    env_ids: tuple[int, ...]
    frames: torch.Tensor
    camera: str = "a camera"
    reader: str = "a reader"

    @cached_property
    def _place_of(self) -> dict[int, int]:
        return {env_id: place for place, env_id in enumerate(self.env_ids)}

    def __getitem__(self, env_ids: Any) -> torch.Tensor:
        wanted = env_ids.cpu().numpy() if isinstance(env_ids, torch.Tensor) else np.asarray(env_ids)
        slots = np.flatnonzero(wanted) if wanted.dtype == bool else wanted.astype(np.int64)
        place_of = self._place_of
        missing = [env_id for env_id in slots.flatten().tolist() if env_id not in place_of]
        if missing:
            raise UnannouncedPictureError(
                f"{self.reader} looks at '{self.camera}' of env slots {', '.join(map(str, missing))} without having "
                "announced it, so these pictures were not drawn; docs/how_to/cameras.md says how pictures are announced"
            )
        if slots.ndim == 0:
            return self.frames[place_of[int(slots)]].clone()
        places = torch.tensor([place_of[env_id] for env_id in slots.tolist()], dtype=torch.int64)
        return self.frames[places.to(self.frames.device, non_blocking=True)]


def pictures_of(shown: torch.Tensor | Pictures) -> Pictures:
    """Return a term of ``camera_obs`` as `Pictures`, also if it is the tensor of all env slots."""
    return shown if isinstance(shown, Pictures) else Pictures(tuple(range(len(shown))), shown)


class DrawnPictures:
    """The pictures of a batch that are drawn on demand: the announced ones, and those that are out of date."""

    def __init__(self, num_envs: int) -> None:
        self.announced: Sequence[int] | None = None  # env slots whose pictures are read next, None for all
        # Env slots that have moved since their last pictures. Shape: (num_envs,), bool.
        self.outdated = np.ones(num_envs, bool)
        self.num_drawn = 0  # one for each env slot and term of ``camera_obs``

    def named(self) -> np.ndarray:
        """Return the mask of announced env slots, and forget the announcement. Shape: (num_envs,), bool."""
        announced, self.announced = self.announced, None
        named = np.zeros_like(self.outdated)
        named[slice(None) if announced is None else list(announced)] = True
        return named

    def shown(self, kept: Mapping[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor | Pictures]:
        """Return copies of kept pictures, each (num_envs, height, width, channels); `Pictures` if some are outdated."""
        if not self.outdated.any():
            return {name: pictures.to(device, copy=True) for name, pictures in kept.items()}
        # Only current pictures are returned, so a stale one cannot be read.
        current = np.flatnonzero(~self.outdated)
        env_ids, slots = tuple(current.tolist()), torch.from_numpy(current)
        return {
            name: Pictures(env_ids, pictures[slots.to(pictures.device, non_blocking=True)].to(device), name)
            for name, pictures in kept.items()
        }

"""The layout of pictures in arrays, and the pictures that a reader gets."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self, TypeVar

import numpy as np
import torch

from isaaclab_arena.errors import UnannouncedPictureError, did_you_mean

CAMERAS = "camera_obs"
"""The group of an observation that holds the pictures of cameras."""

CAMERAS_OFF = "the environment shows no pictures; set enable_cameras: true in arena_env_args, if it has cameras"
"""The message for a camera that is wanted without the group, with the way out."""


def no_camera(camera: str, cameras: Collection[str]) -> str:
    """Return the message for a camera that is missing, with the way out.

    Args:
        camera: The camera that is wanted.
        cameras: Those that the environment observes.
    """
    if not cameras:
        return f"'{camera}' is to be seen, and {CAMERAS_OFF}"
    return f"the environment has no camera '{camera}'{did_you_mean(camera, cameras)}"


_Array = TypeVar("_Array", torch.Tensor, np.ndarray)


@dataclass(frozen=True, kw_only=True)
class PictureLayout:
    """The layout of a picture in its array, as far as its shape and type are certain.

    Environments show and recordings keep pictures as they are. Adapters, exports and films have colours from `colours`.

    Attributes:
        height: Rows.
        width: Columns.
        channels: Place of the channels: ``last``, ``first``, or ``none`` for a grey picture without any.
        num_channels: 3 for colours, 1 for grey, 4 for colours and opacity.
    """

    height: int
    width: int
    channels: str
    num_channels: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one picture in colours."""
        return self.height, self.width, 3

    def colours(self, pictures: _Array) -> _Array:
        """Return pictures in colours: grey ones with three equal channels, opacity left out.

        Args:
            pictures: In this layout. Shape: (*batch, *shape of one), uint8.

        Returns:
            Shape: (*batch, height, width, 3), uint8, contiguous; the argument itself if it has that layout already.
        """
        if self.channels == "last" and self.num_channels == 3:
            return pictures
        if self.channels == "none":
            pictures = pictures[..., None]
        elif self.channels == "first":
            pictures = pictures.swapaxes(-3, -2).swapaxes(-2, -1)
        pictures = pictures[..., [0, 0, 0]] if self.num_channels == 1 else pictures[..., :3]
        return np.ascontiguousarray(pictures) if isinstance(pictures, np.ndarray) else pictures.contiguous()


def picture_layout(shape: Sequence[int], dtype: torch.dtype | np.dtype) -> PictureLayout:
    """Return the layout of a camera's pictures in their arrays.

    Args:
        shape: Of one picture.
        dtype: Of its elements.

    Raises:
        ValueError: If it is no picture in bytes, or its layout is uncertain; the message gives the reason, without the
            camera's name.
    """
    shape = tuple(shape)
    if str(dtype).removeprefix("torch.") != "uint8":
        raise ValueError(f"is no colour picture: {dtype} of shape {shape}")
    if len(shape) not in (2, 3) or 0 in shape:
        raise ValueError(f"has shape {shape}, which is no single picture; show it as (height, width, 3)")
    first, last = shape[0], shape[-1]
    if len(shape) == 2:
        return PictureLayout(height=first, width=last, channels="none", num_channels=1)
    if last == 3 or (last in (1, 4) and first not in (1, 3, 4)):
        return PictureLayout(height=first, width=shape[1], channels="last", num_channels=last)
    if first in (1, 3) and last not in (1, 4):
        return PictureLayout(height=shape[1], width=last, channels="first", num_channels=first)
    are_several = first == 4 and last not in (1, 4)
    doubt = "the first four may be channels or pictures" if are_several else "it is not certain where its channels are"
    raise ValueError(f"has shape {shape}, and {doubt}; show it as (height, width, 3)")


def in_colours(pictures: _Array) -> _Array:
    """Return pictures of one camera in colours; see `PictureLayout.colours`.

    Args:
        pictures: Shape: (n, *shape of one), uint8.

    Raises:
        ValueError: See `picture_layout`.
    """
    return picture_layout(pictures.shape[1:], pictures.dtype).colours(pictures)


class PartialImages:
    """The pictures of some env slots, read like those of all: ``pictures[env_ids]``.

    It holds no picture of any other env slot, so no reader can see one that is out of date.

    Args:
        name: Term of ``camera_obs``.
        drawn: The pictures. Shape: (n, height, width, channels).
        places: Position in ``drawn`` of each env slot's picture, -1 for none. Shape: (num_envs,), int64.
        reader: The reader of the pictures, for messages.
    """

    def __init__(self, name: str, drawn: torch.Tensor, places: np.ndarray, *, reader: str = "a reader") -> None:
        self._name, self._drawn, self._places, self._reader = name, drawn, places, reader

    @property
    def env_ids(self) -> list[int]:
        """Env slots whose pictures are here, ascending."""
        return np.flatnonzero(self._places >= 0).tolist()

    @property
    def shape(self) -> torch.Size:
        """Shape of the pictures of all env slots: (num_envs, height, width, channels)."""
        return torch.Size((len(self._places), *self._drawn.shape[1:]))

    def seen_by(self, reader: str, announced: np.ndarray) -> Self:
        """Return the pictures that a reader may see.

        Args:
            reader: The reader, for messages.
            announced: Env slots whose pictures it has announced. Shape: (num_envs,), bool.
        """
        return type(self)(self._name, self._drawn, np.where(announced, self._places, -1), reader=reader)

    def padded(self, num_envs: int, *, reader: str) -> Self:
        """Return them with black pictures of further env slots at the end.

        Args:
            num_envs: Number of env slots in the result.
            reader: The reader, for messages.
        """
        drawn = torch.cat((self._drawn, self._drawn.new_zeros(1, *self.shape[1:])))
        black = np.full(num_envs - len(self), len(self._drawn))
        return type(self)(self._name, drawn, np.concatenate((self._places, black)), reader=reader)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, env_ids: Any) -> torch.Tensor:
        """Return the pictures of some env slots, copied.

        Args:
            env_ids: One of them, a slice, several, or a mask of all.

        Raises:
            UnannouncedPictureError: If one of them was not announced.
        """
        wanted = env_ids.cpu().numpy() if isinstance(env_ids, torch.Tensor) else env_ids
        places = self._places[wanted]
        if (places < 0).any():
            self._refuse(np.arange(len(self))[wanted][places < 0])
        if np.ndim(places) == 0:
            return self._drawn[int(places)].clone()
        return self._drawn[torch.from_numpy(places).to(self._drawn.device, non_blocking=True)]

    def __getattr__(self, name: str) -> Any:
        if hasattr(torch.Tensor, name):
            self._refuse(np.flatnonzero(self._places < 0))
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse(np.flatnonzero(self._places < 0))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        """Refuse every operation of torch on the pictures of all env slots."""
        del function, types
        given = (*args, *(kwargs or {}).values())
        several = [each for arg in given for each in (arg if isinstance(arg, list | tuple) else [arg])]
        all_of = next(each for each in several if isinstance(each, cls))
        all_of._refuse(np.flatnonzero(all_of._places < 0))

    def _refuse(self, env_ids: np.ndarray) -> NoReturn:
        numbers = ", ".join(map(str, np.atleast_1d(env_ids).tolist()))
        raise UnannouncedPictureError(
            f"{self._reader} looks at '{self._name}' of env slots {numbers} without having announced it, so these "
            "pictures were not drawn; docs/how_to/cameras.md says how pictures are announced"
        )


def partial_images(name: str, pictures: torch.Tensor | PartialImages) -> PartialImages:
    """Return a camera's pictures as `PartialImages`, also if they are those of every env slot.

    Args:
        name: Term of ``camera_obs``.
        pictures: The value of the term.
    """
    if isinstance(pictures, PartialImages):
        return pictures
    return PartialImages(name, pictures, np.arange(len(pictures)))

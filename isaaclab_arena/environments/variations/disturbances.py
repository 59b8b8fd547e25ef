"""Disturb what policies observe: noise on numbers, and exposure, blur, noise and compression of pictures.

Noise depends on the episode, the quantity and the control step only. It is computed from these and not drawn in turn.
So it is the same whoever else looks, and a step takes as many operations for any number of env slots.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from isaaclab_arena.device_reads import on_device
from isaaclab_arena.environments.variations.compression import (
    NO_COMPRESSION,
    compressed_pictures,
    quantisation_tables,
)
from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.interfaces.pictures import CAMERAS, SomePictures

_STATE = "policy"
_RGB = "_rgb"
_GAMMA = 2.2
_ODD = -0x61C8864680B583EB
_FIRST, _SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
_SQRT_3 = math.sqrt(3.0)


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What happens to the observations of one episode; by default nothing.

    Attributes:
        seed: What its noise follows from, 0 to 2**63 - 1.
        state_noise: Standard deviation of the noise on each observed number, in the number's unit.
        picture_noise: Standard deviation of the noise on each colour, of 255.
        blur: Standard deviation of the blur [pixels].
        exposure: Stops by which pictures are brighter, or darker where it is below 0.
        quality: JPEG quality of pictures, 1 to 99; 100 for pictures that are not compressed.
    """

    seed: int = 0
    state_noise: float = 0.0
    picture_noise: float = 0.0
    blur: float = 0.0
    exposure: float = 0.0
    quality: int = NO_COMPRESSION


_NOTHING = Disturbance()


class Disturbances:
    """Disturbs the observations of each env slot as its episode wants it; an env slot without any keeps its bits.

    Args:
        num_envs: Number of env slots.
        device: Where observations live.
        most_blur: The strongest blur of any episode [pixels].
    """

    def __init__(self, num_envs: int, device: torch.device, *, most_blur: float) -> None:
        self._slots = [Disturbance()] * num_envs
        self._radius = math.ceil(3.0 * most_blur)
        self._steps = torch.full((num_envs,), -1, dtype=torch.int64, device=device)
        self._seeds = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._strengths = {
            name: torch.zeros(num_envs, device=device) for name in ("state_noise", "picture_noise", "blur")
        }
        self._tables = torch.arange(256, dtype=torch.uint8, device=device).repeat(num_envs, 1)
        self._weights = torch.zeros(num_envs, 2 * self._radius + 1, device=device)
        self._is_compressed = torch.zeros(num_envs, device=device)
        self._quantisation = torch.ones(num_envs, 2, 8, 8, dtype=torch.float64, device=device)
        self._columns: torch.Tensor | None = None
        self._are_on = dict.fromkeys((*self._strengths, "exposure", "quality"), False)

    def begin(self, env_ids: torch.Tensor, disturbances: Sequence[Disturbance]) -> None:
        """Start env slots; their next observation is their first.

        Args:
            env_ids: The env slots. Shape: (n,), int64.
            disturbances: What happens in each of them.
        """
        env_ids = env_ids.to(self._steps.device)
        self._steps[env_ids] = -1
        kept = [*self._strengths.values(), self._is_compressed, self._seeds]
        wanted = [[getattr(each, name) for each in disturbances] for name in self._strengths]
        wanted += [[each.quality != NO_COMPRESSION for each in disturbances], [each.seed for each in disturbances]]
        own = [torch.tensor(values, dtype=to.dtype) for to, values in zip(kept, wanted, strict=True)]
        kept += [self._tables, self._weights, self._quantisation]
        own.append(torch.from_numpy(np.stack([exposure_table(each.exposure) for each in disturbances])))
        weights = np.stack([blur_weights(each.blur, self._radius) for each in disturbances])
        own.append(torch.from_numpy(weights).to(self._weights.dtype))
        own.append(torch.from_numpy(np.stack([quantisation_tables(each.quality) for each in disturbances])))
        for to, values in zip(kept, on_device(own, env_ids.device), strict=True):
            to[env_ids] = values
        for name, is_on in self._are_on.items():
            self._are_on[name] = is_on or any(getattr(each, name) != getattr(_NOTHING, name) for each in disturbances)

    def disturbed(self, observation: Observation, moved: torch.Tensor) -> Observation:
        """Return what policies see of an observation.

        Args:
            observation: What is observed now.
            moved: Env slots that began or made a step. Shape: (num_envs,), bool.
        """
        self._steps += moved.to(self._steps.device)
        if not any(self._are_on.values()):
            return observation
        seen = dict(observation)
        if self._are_on["state_noise"]:
            seen[_STATE] = self._noisy(seen[_STATE])
        if CAMERAS in seen:
            terms = seen[CAMERAS].items()
            seen[CAMERAS] = {
                name: self._picture(number, name, shown) if name.endswith(_RGB) else shown
                for number, (name, shown) in enumerate(terms)
            }
        return seen

    def _noisy(self, terms: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return numbers with their noise, which is computed for all terms at once: on a GPU each operation costs."""
        device = self._steps.device
        sizes = [now[0].numel() for now in terms.values()]
        if self._columns is None:
            number = [number for number, size in enumerate(sizes) for _ in range(size)]
            place = [place for size in sizes for place in range(1, size + 1)]
            self._columns = torch.tensor([number, place], device=device)
        numbers, places = self._columns
        keys = mixed(mixed(self._seeds[:, None] ^ numbers) + (self._steps * _ODD)[:, None])
        noise = _spread(mixed(keys + places * _ODD)) * self._strengths["state_noise"][:, None]
        own = noise.split(sizes, dim=1)
        # An env slot without noise keeps its bits: to add 0 is to change -0.
        is_noisy = self._strengths["state_noise"] > 0
        return {
            name: torch.where(is_noisy.reshape(-1, *(1,) * (now.dim() - 1)), now + each.reshape(now.shape).to(now), now)
            for each, (name, now) in zip(own, terms.items(), strict=True)
        }

    def _picture(self, number: int, name: str, shown: torch.Tensor | SomePictures) -> torch.Tensor | SomePictures:
        if not any(self._are_on[change] for change in ("picture_noise", "blur", "exposure", "quality")):
            return shown
        # No picture has the number of a term of the state.
        keys = self._keys(-1 - number)
        if isinstance(shown, SomePictures):
            env_ids = shown.env_ids
            places = np.full(len(shown), -1)
            places[env_ids] = np.arange(len(env_ids))
            slots = torch.tensor(env_ids, dtype=torch.int64, device=self._steps.device)
            return SomePictures(name, self._drawn(shown[env_ids], slots, keys), places)
        return self._drawn(shown, torch.arange(len(self._steps), device=self._steps.device), keys)

    def _drawn(self, pictures: torch.Tensor, slots: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return pictures as they are seen. Shapes: (n, height, width, 3), (n,), (num_envs,)."""
        if self._are_on["exposure"]:
            pictures = torch.gather(self._tables[slots], 1, pictures.flatten(1).long()).reshape(pictures.shape)
        if self._are_on["blur"]:
            blurred = blurred_pictures(pictures, self._weights[slots])
            pictures = torch.where(_of_slots(self._strengths["blur"], slots) > 0, blurred, pictures)
        if self._are_on["picture_noise"] and len(pictures):
            strength = _of_slots(self._strengths["picture_noise"], slots)
            noise = noise_of(keys[slots], pictures[0].numel()).reshape(pictures.shape)
            pictures = torch.where(strength > 0, _as_colours(pictures + strength * noise), pictures)
        if self._are_on["quality"]:
            compressed = compressed_pictures(pictures, self._quantisation[slots])
            pictures = torch.where(_of_slots(self._is_compressed, slots) > 0, compressed, pictures)
        return pictures

    def _keys(self, number: int) -> torch.Tensor:
        """Return what the noise of a term follows from in each env slot now. Shape: (num_envs,), int64."""
        return mixed(mixed(self._seeds ^ number) + self._steps * _ODD)


def noise_of(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Return numbers of mean 0 and standard deviation 1, nearly normal: sums of four uniform ones.

    Args:
        keys: What they follow from. Shape: (n,), int64.
        count: How many for each key.

    Returns:
        Shape: (n, count), float32, the same bits on every device.
    """
    return _spread(mixed(keys[:, None] + torch.arange(1, count + 1, device=keys.device) * _ODD))


def _spread(bits: torch.Tensor) -> torch.Tensor:
    """Return nearly normal numbers made of the four parts of whole ones. Any shape, int64 to float32."""
    parts = torch.zeros_like(bits)
    for part in range(4):
        parts += _shifted(bits, 16 * part) & 0xFFFF
    return (parts.to(torch.float32) / 65535.0 - 2.0) * _SQRT_3


def mixed(numbers: torch.Tensor) -> torch.Tensor:
    """Return whole numbers that tell nothing of those they come from, by the end of SplitMix64. Any shape, int64."""
    numbers = (numbers ^ _shifted(numbers, 30)) * _FIRST
    numbers = (numbers ^ _shifted(numbers, 27)) * _SECOND
    return numbers ^ _shifted(numbers, 31)


def exposure_table(stops: float) -> np.ndarray:
    """Return what becomes of each of 256 brightnesses in 2**stops times the light. Shape: (256,), uint8."""
    if stops == 0.0:
        return np.arange(256, dtype=np.uint8)
    light = (np.arange(256) / 255.0) ** _GAMMA * 2.0**stops
    return np.rint(255.0 * np.minimum(light, 1.0) ** (1.0 / _GAMMA)).astype(np.uint8)


def blur_weights(deviation: float, radius: int) -> np.ndarray:
    """Return the weights of a Gaussian blur, which sum to 1.

    Args:
        deviation: Its standard deviation [pixels]; 0 for none.
        radius: How far it reaches [pixels].

    Returns:
        Shape: (2 * radius + 1,).
    """
    away = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (away / deviation) ** 2) if deviation > 0.0 else (away == 0).astype(float)
    return weights / weights.sum()


def blurred_pictures(pictures: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return pictures blurred along both sides; at an edge its own pixels go on.

    Args:
        pictures: Shape: (n, height, width, channels), uint8.
        weights: Of each picture. Shape: (n, 2 * radius + 1).
    """
    blurred = pictures.to(torch.float32)
    for side in (1, 2):
        length, reach = blurred.shape[side], weights.shape[1] // 2
        # Sums in this order have the same bits for any number of pictures, which those of a convolution may not have.
        total = torch.zeros_like(blurred)
        for away in range(-reach, reach + 1):
            places = torch.arange(length, device=blurred.device).add(away).clamp(0, length - 1)
            total = total + weights[:, away + reach].reshape(-1, 1, 1, 1) * blurred.index_select(side, places)
        blurred = total
    return _as_colours(blurred)


def _as_colours(values: torch.Tensor) -> torch.Tensor:
    return values.round().clamp(0, 255).to(torch.uint8)


def _of_slots(strengths: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    return strengths[slots].reshape(-1, 1, 1, 1)


def _shifted(numbers: torch.Tensor, places: int) -> torch.Tensor:
    """Return whole numbers shifted right, with zeros from the left, as numbers without a sign are."""
    return (numbers >> places) & ((1 << (64 - places)) - 1) if places else numbers

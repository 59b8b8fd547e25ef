"""Disturbances of observations and actions: noise, delay, blur, compression."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from isaaclab_arena.device_reads import on_device
from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.interfaces.pictures import CAMERAS, SomePictures
from isaaclab_arena.interfaces.specs import ArraySpec

# Show pictures as they are after JPEG: what quantising loses, in exact arithmetic, without writing any file.
#
# Packing the quantised numbers into bytes loses nothing, so it is left out. Whole numbers below 2**53 are exact as
# float64 in any order of summation. So the pixels are the same on every machine and device and beside any other
# pictures, and a step takes as many operations for any number of them.

NO_COMPRESSION = 100
"""The quality that stands for pictures that are not compressed at all."""

_SIDE = 8
_BITS = 13
_LUMINANCE = (
    *(16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29),
    *(51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92, 49, 64, 78, 87, 103, 121),
    *(120, 101, 72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMINANCE = (
    *(17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99),
    *(99, 99, 99, 99, *(99,) * 32),
)
_HALF = 1 << 15
_TO_Y = (19595, 38470, 7471)
_TO_CB = (-11059, -21709, 32768)
_TO_CR = (32768, -27439, -5329)
_CR_TO_RED, _CB_TO_GREEN, _CR_TO_GREEN, _CB_TO_BLUE = 91881, 22554, 46802, 116130


def quantisation_tables(quality: int) -> np.ndarray:
    """Return the steps in which JPEG keeps the frequencies of brightness and of colour.

    Args:
        quality: 1 to 100, as programs count that use the tables of the standard.

    Returns:
        Shape: (2, 8, 8), float64 whole numbers.
    """
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    base = np.array([_LUMINANCE, _CHROMINANCE]).reshape(2, _SIDE, _SIDE)
    return np.clip((base * scale + 50) // 100, 1, 255).astype(np.float64)


def compressed_pictures(pictures: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Return pictures as JPEG shows them, with colour at half the resolution, as cameras and datasets have it.

    Args:
        pictures: Shape: (n, height, width, 3), uint8.
        tables: Steps of each picture, of `quantisation_tables`. Shape: (n, 2, 8, 8), float64.
    """
    height, width = pictures.shape[1:3]
    red, green, blue = _padded(pictures).to(torch.int64).unbind(-1)
    brightness = _weighted(red, green, blue, _TO_Y, _HALF)
    # The least bit less than a half, as libjpeg has it, keeps white from becoming 256.
    colours = [_weighted(red, green, blue, to, (128 << 16) + _HALF - 1) for to in (_TO_CB, _TO_CR)]
    brightness = _quantised(brightness, tables[:, 0])
    bluish, reddish = (_upsampled(_quantised(_downsampled(each), tables[:, 1])) - 128 for each in colours)
    shown = torch.stack(
        (
            brightness + ((_CR_TO_RED * reddish + _HALF) >> 16),
            brightness + ((-_CB_TO_GREEN * bluish - _CR_TO_GREEN * reddish + _HALF) >> 16),
            brightness + ((_CB_TO_BLUE * bluish + _HALF) >> 16),
        ),
        dim=-1,
    )
    return shown[:, :height, :width].clamp(0, 255).to(torch.uint8)


def _padded(pictures: torch.Tensor) -> torch.Tensor:
    """Return pictures with whole blocks of colour: their last line and column are repeated."""
    for side in (1, 2):
        length = pictures.shape[side]
        places = torch.arange(-(-length // (2 * _SIDE)) * 2 * _SIDE, device=pictures.device).clamp(max=length - 1)
        pictures = pictures.index_select(side, places)
    return pictures


def _weighted(
    red: torch.Tensor, green: torch.Tensor, blue: torch.Tensor, weights: tuple[int, int, int], more: int
) -> torch.Tensor:
    return (weights[0] * red + weights[1] * green + weights[2] * blue + more) >> 16


def _downsampled(plane: torch.Tensor) -> torch.Tensor:
    """Return means of two by two; halves go down and up in turn. Shapes: (n, h, w) -> (n, h / 2, w / 2)."""
    total = plane[:, ::2, ::2] + plane[:, ::2, 1::2] + plane[:, 1::2, ::2] + plane[:, 1::2, 1::2]
    bias = 1 + torch.arange(total.shape[2], device=plane.device) % 2
    return (total + bias) >> 2


def _upsampled(plane: torch.Tensor) -> torch.Tensor:
    """Return a plane of twice the size, three parts of the nearest and one of the next, along both sides."""
    before, after = _neighbours(plane, 1)
    lines = torch.stack((3 * plane + before, 3 * plane + after), dim=2).flatten(1, 2)
    before, after = _neighbours(lines, 2)
    return torch.stack(((3 * lines + before + 8) >> 4, (3 * lines + after + 7) >> 4), dim=3).flatten(2, 3)


def _neighbours(plane: torch.Tensor, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what stands before and after each place along a side; at an end it stands for itself."""
    length = plane.shape[side]
    places = torch.arange(length, device=plane.device)
    before, after = (places - 1).clamp(min=0), (places + 1).clamp(max=length - 1)
    return plane.index_select(side, before), plane.index_select(side, after)


def _quantised(plane: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Return a plane of which each frequency of a block is a whole number of steps.

    Args:
        plane: Shape: (n, height, width), int64, 0 to 255.
        steps: Shape: (n, 8, 8), float64.
    """
    num, height, width = plane.shape
    blocks = plane.reshape(num, height // _SIDE, _SIDE, width // _SIDE, _SIDE).transpose(2, 3).to(torch.float64) - 128.0
    cosines = torch.from_numpy(_cosines()).to(plane.device)
    steps = steps[:, None, None]
    kept = (cosines @ blocks @ cosines.T / (4.0**_BITS * steps)).round() * steps
    back = ((cosines.T @ kept @ cosines) / 4.0**_BITS).round() + 128.0
    return back.clamp(0, 255).to(torch.int64).transpose(2, 3).reshape(num, height, width)


def _cosines() -> np.ndarray:
    """Return the matrix of the cosine transform of 8 numbers, times 2**13, rounded. Shape: (8, 8)."""
    frequency, place = np.arange(_SIDE)[:, None], np.arange(_SIDE)[None]
    scale = np.where(frequency == 0, np.sqrt(1 / _SIDE), np.sqrt(2 / _SIDE))
    return np.rint(2**_BITS * scale * np.cos((2 * place + 1) * frequency * np.pi / (2 * _SIDE)))


# Add noise to a policy's actions, and delay to its observations.

NOISE_STEPS = 64
"""Control steps whose noise is drawn at once. That of whole episodes would be gigabytes for thousands of env slots."""


class ActionNoise:
    """Adds noise to actions, drawn from a stream of the episode's own, so that no other env slot can change it.

    Noise is drawn for some control steps at a time, and a step takes as many operations for any number of env slots. An
    env slot that rests goes on with its noise; on a GPU, where nobody waits to learn who rests, only with that of its
    next episode.

    Args:
        spec: What an action looks like; elements without bounds have a range of 1.
        num_envs: Number of env slots.
        device: Where actions are.
    """

    def __init__(self, spec: ArraySpec, num_envs: int, *, device: torch.device) -> None:
        size = spec.shape[0]
        low = np.zeros(size) if spec.low is None else np.asarray(spec.low)
        high = np.ones(size) if spec.high is None else np.asarray(spec.high)
        self._range = np.where(np.isfinite(high - low), high - low, 1.0)
        self._shape = (num_envs, NOISE_STEPS, size)
        self._noise: torch.Tensor | None = None
        self._is_noisy = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self._num_steps = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._all_slots = torch.arange(num_envs, device=device)
        self._streams: dict[int, tuple[np.random.Generator, float]] = {}
        self._draws = np.zeros(num_envs, bool)
        self._num_used = np.zeros(num_envs, np.int64)

    def begin(self, env_ids: Sequence[int], strengths: Sequence[float], seeds: Sequence[int]) -> None:
        """Start the noise of env slots.

        Args:
            env_ids: The env slots.
            strengths: Standard deviation in each of them, as a share of each element's range.
            seeds: Seed of each one's stream.
        """
        are_noisy = [strength > 0 for strength in strengths]
        if self._noise is None:
            if not any(are_noisy):
                return
            self._noise = torch.zeros(self._shape, dtype=torch.float64, device=self._is_noisy.device)
        begun = torch.tensor([*env_ids]), torch.tensor(are_noisy)
        slots, is_noisy = on_device(begun, self._is_noisy.device)
        self._num_steps[slots] = 0
        self._is_noisy[slots] = is_noisy
        self._num_used[[*env_ids]], self._draws[[*env_ids]] = 0, are_noisy
        for env_id, strength, seed in zip(env_ids, strengths, seeds, strict=True):
            self._streams[env_id] = np.random.default_rng(seed), strength
        self._draw(self._noise, [env_id for env_id, is_noisy in zip(env_ids, are_noisy, strict=True) if is_noisy])

    def added(self, action: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        """Return the actions with noise on those of running env slots.

        Args:
            action: Shape: (num_envs, action_dim).
            running: Shape: (num_envs,), bool.
        """
        if self._noise is None:
            return action
        noise = self._noise[self._all_slots, self._num_steps % NOISE_STEPS].to(action)
        self._num_steps += running
        moved = running.numpy() if running.is_cpu else np.ones_like(self._draws)
        self._num_used += moved
        used_up = np.flatnonzero(self._draws & moved & (self._num_used % NOISE_STEPS == 0))
        self._draw(self._noise, used_up.tolist())
        return torch.where((running & self._is_noisy)[:, None], action + noise, action)

    def _draw(self, noise: torch.Tensor, env_ids: Sequence[int]) -> None:
        """Draw what the next control steps of env slots need."""
        if not env_ids:
            return
        drawn = np.empty((len(env_ids), *self._shape[1:]))
        for own, env_id in zip(drawn, env_ids, strict=True):
            stream, strength = self._streams[env_id]
            own[:] = stream.standard_normal(own.shape) * self._range * strength
        slots, there = on_device((torch.tensor(env_ids), torch.from_numpy(drawn)), noise.device)
        noise[slots] = there


class ObservationDelay:
    """Hands out what was observed some control steps ago; before that, the first observation of the episode.

    Every env slot counts its own observations, so that neither the resets nor the steps of its neighbours count for it.
    Nothing is remembered before an episode has a delay.

    Args:
        num_envs: Number of env slots.
        device: Where observations are.
    """

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._delay = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._latest = torch.full((num_envs,), -1, dtype=torch.int64, device=device)
        self._all_slots = torch.arange(num_envs, device=device)
        self._depth = 1
        self._past: dict[tuple[str, str], torch.Tensor] = {}

    @property
    def is_none(self) -> bool:
        """Whether policies see every env slot as it is now."""
        return self._depth == 1

    def begin(self, env_ids: torch.Tensor, delays: Sequence[int]) -> None:
        """Start env slots with delays [control steps]; their next observation is their first.

        Args:
            env_ids: The env slots. Shape: (n,), int64.
            delays: The delay in each of them.
        """
        depth = 1 + max(delays, default=0)
        if depth > self._depth:
            self._deepen(depth)
        env_ids = env_ids.to(self._delay.device)
        self._delay[env_ids] = torch.tensor(delays).to(env_ids.device, non_blocking=True)
        self._latest[env_ids] = -1

    def delayed(self, observation: Observation, moved: torch.Tensor) -> Observation:
        """Return what policies see now.

        Args:
            observation: What is observed now, in all env slots.
            moved: Env slots that began or made a step; the others are given what they were given last.
                Shape: (num_envs,), bool.
        """
        if self.is_none:
            return observation
        moved = moved.to(self._delay.device)
        self._latest += moved
        kept_at = self._latest % self._depth
        shown_at = (self._latest - self._delay).clamp(min=0) % self._depth
        is_delayed = self._delay > 0

        def shown(group: str, name: str, now: torch.Tensor) -> torch.Tensor:
            if (group, name) not in self._past:
                self._past[group, name] = now.new_zeros(self._depth, *now.shape)
            past, slots, shape = self._past[group, name], self._all_slots, (-1, *(1,) * (now.dim() - 1))
            past[kept_at, slots] = torch.where(moved.reshape(shape), now, past[kept_at, slots])
            return torch.where(is_delayed.reshape(shape), past[shown_at, slots], now)

        return {
            group: {name: shown(group, name, now) for name, now in terms.items()}
            for group, terms in observation.items()
        }

    def _deepen(self, depth: int) -> None:
        """Remember more observations of every env slot, and keep those that are remembered."""
        kept = self._latest - torch.arange(self._depth, device=self._latest.device)[:, None]
        for term, past in self._past.items():
            deeper = past.new_zeros(depth, *past.shape[1:])
            deeper[kept % depth, self._all_slots] = past[kept % self._depth, self._all_slots]
            self._past[term] = deeper
        self._depth = depth


# Disturb what policies observe: noise on numbers, and exposure, blur, noise and compression of pictures.
#
# Noise depends on the episode, the quantity and the control step only. It is computed from these and not drawn in
# turn. So it is the same whoever else looks, and a step takes as many operations for any number of env slots.

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

"""Changes between an environment and its policy: noise on actions, late, noisy and disturbed observations."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional

from isaaclab_arena.distributed.devices import on_device
from isaaclab_arena.environments.variations.overrides import DRAWN_WITH, SEEDS
from isaaclab_arena.environments.variations.pictures import (
    blurred_pictures,
    compressed_pictures,
    quantisation_tables,
    seen_from,
    tone_table,
)
from isaaclab_arena.errors import EnvironmentBuildError
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.environment_builder import (
    Background,
    EnvironmentBuilder,
    EnvironmentWrapper,
    Sampler,
    Variation,
    background_of,
)
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue, Episode, number, point
from isaaclab_arena.interfaces.specs import CAMERAS, ArraySpec, Pictures, picture_layout
from isaaclab_arena.nested import leaves

_LOG = logging.getLogger(__name__)

# The variations, for any environment.

JOLT_STEPS = 5
LAST_JOLT_STEP = 50
"""The last control step at which a jolt may begin."""
NO_COMPRESSION = 100  # the quality that stands for pictures that are not compressed at all


def uniform_variation(
    asset: str,
    name: str,
    unit: str,
    description: str,
    span: tuple[float, float] | tuple[tuple[float, ...], tuple[float, ...]],
    limits: tuple[float, float],
    nominal: float | tuple[float, ...],
    **more: Any,
) -> Variation:
    """Return a uniform variation of one number, or of as many as its ends have."""
    low, high, unchanged = (end if isinstance(end, tuple) else (float(end),) for end in (*span, nominal))
    more |= {"minimum": limits[0], "maximum": limits[1], "sizes": (len(low),), "nominal": unchanged}
    variation = Variation(
        asset=asset, name=name, unit=unit, description=description, sampler=Sampler(low=low, high=high), **more
    )
    drawn_with = DRAWN_WITH.get(variation.key)
    return variation if drawn_with is None else replace(variation, companions=(drawn_with,))


def sense_variations() -> Iterator[Variation]:
    """Yield the variations of actions, observations and pictures, which need nothing of an environment's inside."""
    vary = partial(uniform_variation, between=True)
    words = "standard deviation of the action noise, as a share of each action's range"
    yield vary("action", "noise", "", words, (0.0, 0.005), (0.0, 1.0), 0.0)
    words, control_steps = "age of the observations", (0, 100)
    yield vary("observation", "delay", "control steps", words, (0, 3), control_steps, 0, integer=True)
    words = "standard deviation of the noise on each observed number, in its own unit"
    yield vary("observation", "noise", "", words, (0.0, 0.005), (0.0, 1.0), 0.0)
    words = "standard deviation of the noise on each colour"
    yield vary("picture", "noise", "of 255", words, (0.0, 10.0), (0.0, 255.0), 0.0)
    words = "standard deviation of a Gaussian blur"
    yield vary("picture", "blur", "pixels", words, (0.0, 1.0), (0.0, 20.0), 0.0)
    words = "light on the sensor: 1 is twice as much, -1 half"
    yield vary("picture", "exposure", "stops", words, (-1.0, 1.0), (-6.0, 6.0), 0.0)
    words = "contrast: 1 changes nothing, 0 leaves grey"
    yield vary("picture", "contrast", "", words, (0.5, 1.5), (0.0, 10.0), 1.0)
    words = "factor on each colour: 1 changes nothing, 0 is black"
    yield vary("picture", "brightness", "", words, (0.5, 1.0), (0.0, 10.0), 1.0)
    words = "places by which the cameras of an env slot pass their pictures on, in the order of their names"
    yield vary("picture", "exchanged", "cameras", words, (0, 1), (0, 100), 0, integer=True)
    words = "how far pictures move right and down, as shares of their size"
    yield vary("picture", "offset", "", words, ((-0.05, -0.05), (0.05, 0.05)), (-1.0, 1.0), (0.0, 0.0))
    words = "how far pictures turn clockwise about their middle"
    yield vary("picture", "tilt", "rad", words, (-0.1, 0.1), (-math.pi, math.pi), 0.0)
    words = "share of each picture behind a grey rectangle, at another place in each camera and episode"
    yield vary("picture", "occlusion", "", words, (0.0, 0.1), (0.0, 1.0), 0.0)
    words = "share of pictures that do not arrive, so that the last one is seen again"
    yield vary("picture", "dropped", "", words, (0.0, 0.3), (0.0, 1.0), 0.0)
    words, best = f"quality of pictures that went through JPEG; {NO_COMPRESSION} for none that did", NO_COMPRESSION
    yield vary("picture", "jpeg_quality", "", words, (50, 95), (1, 100), float(best), integer=True)
    words = "share of the instruction's words that arrive; 0 leaves none"
    yield vary("instruction", "words", "", words, (0.0, 1.0), (0.0, 1.0), 1.0)
    words = "share of the instruction's words with two letters in the wrong order"
    yield vary("instruction", "misspelt", "", words, (0.0, 1.0), (0.0, 1.0), 0.0)
    words = "control steps at the start in which the robot holds still, whatever its policy says"
    yield vary("action", "idle", "control steps", words, (0, 10), (0, 1000), 0, integer=True)
    words = f"a push of {JOLT_STEPS} control steps at a drawn moment: added to each action, as a share of its range"
    yield vary("action", "jolt", "", words, (0.0, 0.02), (0.0, 1.0), 0.0)


def offered_variations(
    builder: EnvironmentBuilder, config: Any, asked: Mapping[str, Any] | None = None
) -> tuple[Variation, ...]:
    """Return the variations of an environment: those inside it, and those between it and its policy.

    Those inside are left out where an environment would be made for them, and a job's ``asked`` names none of them.
    """
    between = {each.key for each in sense_variations()}
    named = {".".join(".".join(path).split(".")[:2]) for path, _ in leaves(asked or {})}
    is_quick = asked is not None and named <= between and builder.variations_take_time
    inside = () if is_quick else builder.variations(config)
    known = {each.key for each in inside}
    return (*inside, *(each for each in sense_variations() if each.key not in known))


def build_varied(
    builder: Any, config: Any, *, variations: Sequence[Variation], num_envs: int, device: torch.device, num_threads: int
) -> Environment:
    """Build an environment with its variations that are on; EnvironmentBuildError if it cannot have one."""
    # A builder from elsewhere may not know of variations.
    inside, between = (tuple(each for each in variations if each.between is side) for side in (False, True))
    more = {"variations": inside} if inside else {}
    environment = builder.build(config, num_envs=num_envs, device=device, num_threads=num_threads, **more)
    if not between:
        return environment
    try:
        return SensedEnvironment(environment, between, has_cameras=getattr(config, "enable_cameras", False))
    except EnvironmentBuildError:
        environment.close()
        raise


def drawn(variations: Sequence[Variation], conditions: Conditions, episode: Episode) -> dict[str, ConditionValue]:
    """Return an episode's conditions with the values of variations, each from a stream of its own."""
    varied: dict[str, ConditionValue] = dict(conditions)
    for variation in variations:
        stream = episode.variation_generator(variation.key)
        value, before = variation.draw(stream, episode.episode_index), varied.get(variation.key)
        if isinstance(value, tuple) and isinstance(before, tuple) and len(value) < len(before):
            # A position without a height keeps the task's height.
            value = (*value, *before[len(value) :])
        varied[variation.key] = value
        if variation.key in SEEDS:
            varied[SEEDS[variation.key]] = episode.noise_seed
    return varied


# Change the words of a task.


def heard(instruction: str, conditions: Conditions) -> str:
    """Return the words that arrive: some misspelt, some missing, as an episode's conditions say."""
    words, told = instruction.split(), conditions
    generator = np.random.default_rng(round(number(told.get("instruction.words_seed", 0))))
    order, slips = generator.permutation(len(words)), generator.random((len(words), 2))
    num_kept = round(number(told.get("instruction.words", 1.0)) * len(words))
    misspelt = number(told.get("instruction.misspelt", 0.0))
    found = []
    for place in sorted(order[:num_kept].tolist()):
        word, (chance, where) = words[place], slips[place]
        # Two neighbouring letters of a word change places, never its first one.
        at = 1 + int(where * (len(word) - 2))
        if chance < misspelt and len(word) > 3:
            word = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        found.append(word)
    return " ".join(found)


# Add noise to a policy's actions, and delay to its observations.

NOISE_STEPS = 64
"""Control steps whose noise is drawn at once. That of whole episodes would be gigabytes for thousands of env slots."""


class ActionNoise:
    """Adds noise to actions, from a stream of each episode, so no other env slot can change it."""

    def __init__(self, spec: ArraySpec, num_envs: int, *, device: torch.device) -> None:
        # Elements without bounds have a range of 1.
        size = spec.shape[0]
        low = np.zeros(size) if spec.low is None else np.asarray(spec.low)
        high = np.ones(size) if spec.high is None else np.asarray(spec.high)
        self.span = np.where(np.isfinite(high - low), high - low, 1.0)
        self._shape = (num_envs, NOISE_STEPS, size)
        self._noise: torch.Tensor | None = None
        self._is_noisy = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self._num_steps = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._all_slots = torch.arange(num_envs, device=device)
        # Noise is drawn for `NOISE_STEPS` at a time, so a step costs the same for any num_envs. A resting env slot
        # keeps its place in the noise. On a GPU that would need a synchronisation, so there the next episode restarts
        # it.
        self._streams: dict[int, tuple[np.random.Generator, float]] = {}
        self._draws = np.zeros(num_envs, bool)
        self._num_used = np.zeros(num_envs, np.int64)

    def begin(self, env_ids: Sequence[int], strengths: Sequence[float], seeds: Sequence[int]) -> None:
        """Start the noise of env slots: standard deviations as shares of each element's range, and stream seeds."""
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
        """Return ``action`` (num_envs, action_dim) with noise on the env slots of ``running`` (num_envs,), bool."""
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
        """Draw the noise of the env slots' next `NOISE_STEPS` control steps."""
        if not env_ids:
            return
        drawn = np.empty((len(env_ids), *self._shape[1:]))
        for own, env_id in zip(drawn, env_ids, strict=True):
            stream, strength = self._streams[env_id]
            own[:] = stream.standard_normal(own.shape) * self.span * strength
        slots, there = on_device((torch.tensor(env_ids), torch.from_numpy(drawn)), noise.device)
        noise[slots] = there


class ObservationDelay:
    """Returns the observation of some control steps ago, or the episode's first one before that."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        # Each env slot counts its own observations, so resets and steps of others do not count for it. Nothing is
        # stored until an episode has a delay.
        self._delay = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._latest = torch.full((num_envs,), -1, dtype=torch.int64, device=device)
        self._all_slots = torch.arange(num_envs, device=device)
        self._depth = 1
        self.is_none = True  # no env slot has had a delay
        self._past: dict[tuple[str, str], torch.Tensor] = {}

    def begin(self, env_ids: torch.Tensor, delays: Sequence[int]) -> None:
        """Start env slots (n,), int64, with delays [control steps]; their next observation is their first."""
        depth = 1 + max(delays, default=0)
        if depth > self._depth:
            # The history grows, and keeps the stored observations of every env slot.
            kept = self._latest - torch.arange(self._depth, device=self._latest.device)[:, None]
            for term, past in self._past.items():
                deeper = past.new_zeros(depth, *past.shape[1:])
                deeper[kept % depth, self._all_slots] = past[kept % self._depth, self._all_slots]
                self._past[term] = deeper
            self._depth, self.is_none = depth, False
        env_ids = env_ids.to(self._delay.device)
        self._delay[env_ids] = torch.tensor(delays).to(env_ids.device, non_blocking=True)
        self._latest[env_ids] = -1

    def delayed(self, observation: Observation, moved: torch.Tensor) -> Observation:
        """Return the delayed observation; env slots outside ``moved`` (num_envs,), bool, repeat their last one."""
        if self.is_none:
            return observation
        moved = moved.to(self._delay.device)
        self._latest += moved
        kept_at = self._latest % self._depth
        shown_at = (self._latest - self._delay).clamp(min=0) % self._depth
        is_delayed = self._delay > 0
        # A ring of ``depth`` observations per term; the episode's first one stands for all before it.
        shown: Observation = {group: {} for group in observation}
        for group, terms in observation.items():
            for name, now in terms.items():
                if (group, name) not in self._past:
                    self._past[group, name] = now.new_zeros(self._depth, *now.shape)
                past, slots, shape = self._past[group, name], self._all_slots, (-1, *(1,) * (now.dim() - 1))
                past[kept_at, slots] = torch.where(moved.reshape(shape), now, past[kept_at, slots])
                shown[group][name] = torch.where(is_delayed.reshape(shape), past[shown_at, slots], now)
        return shown


# Disturb the policies' observations: noise on numbers, and exposure, blur, noise and compression of pictures.
#
# Noise depends on the episode, the quantity and the control step only. It is computed from these and not drawn in turn.
# So other readers do not change it, and the number of operations of a step does not depend on num_envs.

_ODD = -0x61C8864680B583EB


_UNDISTURBED = {
    "observation.noise": 0.0,
    "picture.noise": 0.0,
    "picture.blur": 0.0,
    "picture.exposure": 0.0,
    "picture.contrast": 1.0,
    "picture.brightness": 1.0,
    "picture.exchanged": 0.0,
    "picture.tilt": 0.0,
    "picture.occlusion": 0.0,
    "picture.dropped": 0.0,
    "picture.jpeg_quality": NO_COMPRESSION,
}
"""Conditions that disturb an episode's observations, each to its value without an effect."""
_TONES = ("picture.exposure", "picture.contrast", "picture.brightness")


class Disturbances:
    """Disturbs the observations of each env slot; an undisturbed env slot keeps its bits."""

    def __init__(self, num_envs: int, device: torch.device, *, most_blur: float) -> None:
        self._radius = math.ceil(3.0 * most_blur)  # [pixels]
        self._steps = torch.full((num_envs,), -1, dtype=torch.int64, device=device)
        self._seeds = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._strengths = {
            name: torch.zeros(num_envs, device=device)
            for name in ("observation.noise", "picture.noise", "picture.blur", "picture.dropped", "picture.exchanged")
        }
        self._tables = torch.arange(256, dtype=torch.uint8, device=device).repeat(num_envs, 1)
        self._weights = torch.zeros(num_envs, 2 * self._radius + 1, device=device)
        self._is_compressed = torch.zeros(num_envs, device=device)
        self._quantisation = torch.ones(num_envs, 2, 8, 8, dtype=torch.float64, device=device)
        self._columns: torch.Tensor | None = None
        self._are_on = dict.fromkeys(_UNDISTURBED, False)
        # By camera: the pixel that each pixel shows, one row per env slot, and the pictures that were shown last.
        self._views: dict[int, torch.Tensor] = {}
        self._sizes: dict[int, tuple[int, int]] = {}
        self._shown: dict[int, torch.Tensor] = {}
        self._conditions: dict[int, Conditions] = {}  # of the episodes in env slots

    def begin(self, env_ids: torch.Tensor, slots: Sequence[int], conditions: Sequence[Conditions]) -> None:
        """Start env slots (n,), int64, disturbed by their conditions; their next observation is their first."""
        # ``slots`` are the same numbers on the host: a read of ``env_ids`` would wait for the GPU.
        self._steps[env_ids] = -1
        asked = {name: [number(own.get(name, nothing)) for own in conditions] for name, nothing in _UNDISTURBED.items()}
        qualities = [round(quality) for quality in asked["picture.jpeg_quality"]]
        asked["picture.jpeg_quality"] = [*map(float, qualities)]
        keys = [seed for seed in SEEDS.values() if seed.startswith(("observation.", "picture."))]
        seeds = [next((own[key] for key in keys if key in own), 0) for own in conditions]
        kept = [*self._strengths.values(), self._is_compressed, self._seeds]
        wanted = [
            *(asked[name] for name in self._strengths),
            [each != NO_COMPRESSION for each in qualities],
            # A float would lose the last digits of a seed.
            [seed if isinstance(seed, int) else round(number(seed)) for seed in seeds],
        ]
        own = [torch.tensor(values, dtype=to.dtype) for to, values in zip(kept, wanted, strict=True)]
        kept += [self._tables, self._weights, self._quantisation]
        tones = zip(*(asked[name] for name in _TONES), strict=True)
        own.append(torch.from_numpy(np.stack([tone_table(*tone) for tone in tones])))
        # The weights of each Gaussian blur sum to 1.
        away, blurs = np.arange(-self._radius, self._radius + 1), []
        for blur in asked["picture.blur"]:
            weights = np.exp(-0.5 * (away / blur) ** 2) if blur > 0.0 else (away == 0).astype(float)
            blurs.append(weights / weights.sum())
        own.append(torch.from_numpy(np.stack(blurs)).to(self._weights.dtype))
        own.append(torch.from_numpy(np.stack([quantisation_tables(quality) for quality in qualities])))
        for to, values in zip(kept, on_device(own, env_ids.device), strict=True):
            to[env_ids] = values
        # A disturbance that no episode has had costs nothing in a step.
        for name, nothing in _UNDISTURBED.items():
            self._are_on[name] |= any(each != nothing for each in asked[name])
        self._are_on["picture.tilt"] |= any("picture.offset" in own for own in conditions)
        self._conditions |= zip(slots, conditions, strict=True)
        for camera in self._views:
            self._look(camera, slots)

    def disturbed(self, observation: Observation, moved: torch.Tensor) -> Observation:
        """Return the disturbed observation; ``moved`` (num_envs,), bool, are env slots that began or made a step."""
        self._steps += moved.to(self._steps.device)
        if not any(self._are_on.values()):
            return observation
        seen = dict(observation)
        if self._are_on["observation.noise"]:
            # Noise is computed for all terms at once: on a GPU each operation costs.
            terms = seen["policy"]
            sizes = [now[0].numel() for now in terms.values()]
            if self._columns is None:
                number = [number for number, size in enumerate(sizes) for _ in range(size)]
                place = [place for size in sizes for place in range(1, size + 1)]
                self._columns = torch.tensor([number, place], device=self._steps.device)
            numbers, places = self._columns
            keys = mixed(mixed(self._seeds[:, None] ^ numbers) + (self._steps * _ODD)[:, None])
            noise = noise_of(keys, places) * self._strengths["observation.noise"][:, None]
            # An env slot without noise keeps its bits: adding 0 would change -0.
            is_noisy, noisy = self._strengths["observation.noise"] > 0, {}
            for each, (name, now) in zip(noise.split(sizes, dim=1), terms.items(), strict=True):
                is_changed = is_noisy.reshape(-1, *(1,) * (now.dim() - 1))
                is_changed = is_changed & now.is_floating_point()
                noisy[name] = torch.where(is_changed, now + each.reshape(now.shape).to(now), now)
            seen["policy"] = noisy
        if CAMERAS in seen and any(self._are_on[each] for each in _UNDISTURBED if each != "observation.noise"):
            cameras = seen[CAMERAS]
            if self._are_on["picture.exchanged"]:
                cameras = self._exchanged(cameras)
            seen[CAMERAS] = {name: self._picture(number, shown) for number, (name, shown) in enumerate(cameras.items())}
        return seen

    def _exchanged(self, cameras: Mapping[str, Any]) -> dict[str, Any]:
        """Return the cameras, of one size, each with the pictures of the one so many places after it."""
        names = sorted(cameras)
        first, in_order = cameras[names[0]], [cameras[name] for name in names]
        slots = torch.tensor(first.env_ids, dtype=torch.int64) if isinstance(first, Pictures) else slice(None)
        stack = torch.stack([each.frames if isinstance(each, Pictures) else each for each in in_order])
        places, rows = self._strengths["picture.exchanged"][slots].long(), torch.arange(stack.shape[1])
        shown = {}
        for place, name in enumerate(names):
            frames = stack[(place + places) % len(names), rows.to(stack.device)]
            shown[name] = replace(first, frames=frames, camera=name) if isinstance(first, Pictures) else frames
        return {name: shown[name] for name in cameras}

    def _picture(self, number: int, shown: torch.Tensor | Pictures) -> torch.Tensor | Pictures:
        """Return a camera's disturbed pictures, also if only some env slots have one; depths stay as they are."""
        if isinstance(shown, Pictures):
            slots, frames = torch.tensor(shown.env_ids, dtype=torch.int64, device=self._steps.device), shown.frames
        else:
            slots, frames = torch.arange(len(self._steps), device=self._steps.device), shown
        try:
            layout = picture_layout(frames.shape[1:], frames.dtype)
        except ValueError:
            return shown
        pictures = layout.colours(frames)
        if self._are_on["picture.tilt"] or self._are_on["picture.occlusion"]:
            views = self._view(number, layout.height, layout.width)[slots, :, None].expand(-1, -1, 3)
            # One more pixel is the grey one that covers the others.
            pixels = functional.pad(pictures.flatten(1, 2), (0, 0, 0, 1), value=127)
            pictures = torch.gather(pixels, 1, views).reshape(pictures.shape)
        if any(self._are_on[name] for name in _TONES):
            pictures = torch.gather(self._tables[slots], 1, pictures.flatten(1).long()).reshape(pictures.shape)
        if self._are_on["picture.blur"]:
            blurred = blurred_pictures(pictures, self._weights[slots])
            strength = self._strengths["picture.blur"][slots, None, None, None]
            pictures = torch.where(strength > 0, blurred, pictures)
        if self._are_on["picture.noise"] and len(pictures):
            # Negative numbers: no picture shares the number of a term of the state.
            keys = mixed(mixed(self._seeds ^ (-1 - number)) + self._steps * _ODD)
            strength = self._strengths["picture.noise"][slots, None, None, None]
            places = torch.arange(1, pictures[0].numel() + 1, device=keys.device)
            noise = noise_of(keys[slots, None], places).reshape(pictures.shape)
            noisy = (pictures + strength * noise).round().clamp(0, 255).to(torch.uint8)
            pictures = torch.where(strength > 0, noisy, pictures)
        if self._are_on["picture.jpeg_quality"]:
            compressed = compressed_pictures(pictures, self._quantisation[slots])
            pictures = torch.where(self._is_compressed[slots, None, None, None] > 0, compressed, pictures)
        if self._are_on["picture.dropped"]:
            # A camera that drops a picture shows its last one; the first of an episode always arrives.
            chance = (
                _shifted(mixed(mixed(self._seeds ^ (-1001 - number)) + self._steps * _ODD), 48) & 0xFFFF
            ) / 65536.0
            is_dropped = (chance < self._strengths["picture.dropped"]) & (self._steps > 0)
            last = self._shown.setdefault(number, pictures.new_zeros(len(self._steps), *pictures.shape[1:]))
            pictures = torch.where(is_dropped[slots, None, None, None], last[slots], pictures)
            last[slots] = pictures
        pictures = layout.restored(pictures, frames)
        return replace(shown, frames=pictures) if isinstance(shown, Pictures) else pictures

    def _view(self, camera: int, height: int, width: int) -> torch.Tensor:
        """Return the pixel that each pixel of a camera shows, (num_envs, height * width), int64."""
        if camera not in self._views:
            plain = torch.arange(height * width, device=self._steps.device)
            self._views[camera], self._sizes[camera] = plain.repeat(len(self._steps), 1), (height, width)
            self._look(camera, list(self._conditions))
        return self._views[camera]

    def _look(self, camera: int, env_ids: Sequence[int]) -> None:
        """Let a camera show env slots as their conditions say."""
        seen = []
        for own in (self._conditions[env_id] for env_id in env_ids):
            occlusion, shift = number(own.get("picture.occlusion", 0.0)), point(own.get("picture.offset", (0.0, 0.0)))
            # Each camera is covered at another place.
            seed = [round(number(own.get("picture.occlusion_seed", 0))), camera]
            place = np.random.default_rng(seed).random(2).tolist()
            turn = number(own.get("picture.tilt", 0.0))
            seen.append(seen_from(*self._sizes[camera], shift=shift, turn=turn, occlusion=occlusion, place=place))
        if seen:
            slots, views = on_device((torch.tensor(env_ids), torch.from_numpy(np.stack(seen))), self._steps.device)
            self._views[camera][slots] = views


def noise_of(keys: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return a nearly normal number for each key and place, int64. Shape of both, float32, equal on all devices."""
    # The four 16-bit parts are summed, and scaled to mean 0 and standard deviation 1.
    bits = mixed(keys + places * _ODD)
    parts = torch.zeros_like(bits)
    for part in range(4):
        parts += _shifted(bits, 16 * part) & 0xFFFF
    return (parts.to(torch.float32) / 65535.0 - 2.0) * math.sqrt(3.0)


def mixed(numbers: torch.Tensor) -> torch.Tensor:
    """Return hashed numbers: the finaliser of SplitMix64. Any shape, int64."""
    numbers = (numbers ^ _shifted(numbers, 30)) * -0x40A7B892E31B1A47
    numbers = (numbers ^ _shifted(numbers, 27)) * -0x6B2FB644ECCEEE15
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: torch.Tensor, places: int) -> torch.Tensor:
    """Return a logical right shift of int64: zeros come in from the left."""
    return (numbers >> places) & ((1 << (64 - places)) - 1) if places else numbers


# All of these around an environment.


def _check(real: Environment, variations: Sequence[Variation], *, has_cameras: bool) -> None:
    """Refuse variations that an environment cannot have; EnvironmentBuildError names the first."""
    # ``has_cameras``: the job asks for pictures, so variations of pictures must not be without effect.
    keys = [each.key for each in variations]
    cameras = cast("Mapping[str, ArraySpec]", real.observation_spec.get(CAMERAS, {}))
    # What takes away the sense of pictures must reach all of them, or a control would see.
    spans = {each.key: each.sampler.span for each in variations}
    whole = {key for key in keys if key == "picture.exchanged" or (key, spans[key][1]) == ("picture.brightness", (0,))}
    for key in keys:
        if key.startswith("picture.") and not cameras:
            if has_cameras or key in whole:
                raise EnvironmentBuildError(f"variation '{key}' changes pictures, and the environment shows none")
            _LOG.warning("variation '%s' has no effect: the environment shows no pictures", key)
        for camera, spec in cameras.items() if key.startswith("picture.") else ():
            # Depths and other numbers stay as they are; pictures in bytes must not stay so unsaid.
            if spec.dtype == torch.uint8 or key in whole:
                try:
                    picture_layout(spec.shape, spec.dtype)
                except ValueError as error:
                    raise EnvironmentBuildError(f"variation '{key}': camera '{camera}' {error}") from None
        if key == "picture.exchanged" and (len(cameras) < 2 or len({each.shape for each in cameras.values()}) > 1):
            told = ", ".join(f"{name} {tuple(each.shape)}" for name, each in cameras.items())
            raise EnvironmentBuildError(f"variation '{key}' needs several cameras of one size; there are {told}")
        if key in ("action.noise", "action.jolt") and real.action_spec.choices is not None:
            raise EnvironmentBuildError(f"variation '{key}' needs numbers, and the actions here are choices")
        if key == "action.idle" and not isinstance(real.hold_action, tuple):
            message = "needs an action that keeps the robot still, and the environment declares none as numbers"
            raise EnvironmentBuildError(f"variation '{key}' {message} (Environment.hold_action)")


class SensedEnvironment(EnvironmentWrapper, Background):
    """Any environment, whose policy acts and sees through the variations between them."""

    # The senses of env slots are not part of them.
    snapshot: Any = None
    restore_snapshot: Any = None

    def __init__(self, real: Environment, variations: Sequence[Variation], *, has_cameras: bool) -> None:
        super().__init__(real)
        _check(real, variations, has_cameras=has_cameras)
        keys = [each.key for each in variations]
        spans = {each.key: each.sampler.span for each in variations}
        if "instruction.words" in spans and not any(spans["instruction.words"][1]):
            # A policy may take its words from here alone.
            self.task_description = ""
        self._variations, self._work = tuple(variations), background_of(real)
        self._noise = ActionNoise(real.action_spec, real.num_envs, device=real.device)
        self._is_moved = any(key in ("action.idle", "action.jolt") for key in keys)
        held = real.hold_action if isinstance(real.hold_action, tuple) else ()
        # Shape (action_dim,): the action that holds still, NaN for an element that follows the policy.
        self._held = torch.tensor([math.nan if each is None else each for each in held], device=real.device)
        self._steps, self._idle, self._jolt_step = torch.zeros(3, real.num_envs, dtype=torch.int64, device=real.device)
        self._jolt = torch.zeros(real.num_envs, *real.action_spec.shape, device=real.device)
        self._delay = ObservationDelay(real.num_envs, real.device)
        blurs = (max(each.sampler.span[1]) for each in variations if each.key == "picture.blur")
        self._disturbances = Disturbances(real.num_envs, real.device, most_blur=max(blurs, default=0.0))
        self._running = torch.zeros(real.num_envs, dtype=torch.bool, device=real.device)
        # A late picture is drawn before its reader can announce it.
        self._draws_all = "observation.delay" in keys or "picture.dropped" in keys
        self.steps_while_starting = 0 if self._work is None else self._work.steps_while_starting

    @property
    def background(self) -> Background | None:
        """The wrapper itself, if the environment's steps are made elsewhere."""
        return None if self._work is None else self

    def draw_pictures_of(self, env_ids: Sequence[int] | None) -> None:
        """Announce the env slots that are read next."""
        self.real.draw_pictures_of(None if self._draws_all else env_ids)

    def close(self) -> None:
        """Close the environment."""
        self.real.close()

    def vary_conditions(self, conditions: Conditions, episode: Episode) -> Conditions:
        """Add the episode's variations to those of the environment."""
        return drawn(self._variations, self.real.vary_conditions(conditions, episode), episode)

    def instruction(self, conditions: Conditions) -> str:
        """Return the words that arrive of an episode's instruction."""
        instruction = self.real.instruction(conditions)
        return heard(instruction, conditions) if "instruction.words_seed" in conditions else instruction

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """Start new episodes in the env slots ``env_ids`` (n,)."""
        slots = self._begin(env_ids, conditions)
        # A read of ``env_ids`` waits for a GPU, so the environment gets them from here.
        return self._begun(slots, self.real.reset(torch.tensor(slots), conditions))

    def restore(
        self, env_ids: torch.Tensor, conditions: Sequence[Conditions], states: Sequence[Mapping[str, np.ndarray]]
    ) -> Observation:
        """Restart recorded episodes; see `Environment.restore`."""
        slots = self._begin(env_ids, conditions)
        return self._begun(slots, self.real.restore(torch.tensor(slots), conditions, states))

    def step(self, action: torch.Tensor) -> Step:
        """Make one step in every running env slot. Shape of ``action``: (num_envs, action_dim)."""
        return self._stepped(self.real.step(self._acted(action)))

    def try_step(self, action: torch.Tensor) -> Step:
        """Make one step, or none; see `Environment.try_step`."""
        if type(self.real).step_again is Environment.step_again:
            return self.step(action)
        return self._stepped(self.real.try_step(self._acted(action)))

    def step_again(self) -> Step:
        """Make the step that `try_step` did not make."""
        return self._stepped(self.real.step_again())

    def begin_step(self, action: torch.Tensor) -> None:
        """Begin a step elsewhere. Shape of ``action``: (num_envs, action_dim)."""
        self._elsewhere.begin_step(self._acted(action))

    def finish_step(self) -> Step:
        """Wait for the step that was begun."""
        return self._stepped(self._elsewhere.finish_step())

    def begin_reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> None:
        """Begin to start episodes elsewhere."""
        self._elsewhere.begin_reset(torch.tensor(self._begin(env_ids, conditions)), conditions)

    def finish_reset(self, env_ids: Sequence[int]) -> Observation:
        """Wait for the resets of these env slots."""
        return self._begun(env_ids, self._elsewhere.finish_reset(env_ids))

    @property
    def _elsewhere(self) -> Background:
        if self._work is None:
            raise TypeError("the environment makes its steps itself")
        return self._work

    def _begin(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> list[int]:
        """Start the senses of env slots, and return these."""
        slots, env_ids = env_ids.tolist(), env_ids.to(self._running.device)
        self._running[env_ids] = False
        strengths = [number(own.get("action.noise", 0.0)) for own in conditions]
        self._noise.begin(slots, strengths, [round(number(own.get("action.noise_seed", 0))) for own in conditions])
        self._delay.begin(env_ids, [round(number(own.get("observation.delay", 0))) for own in conditions])
        self._disturbances.begin(env_ids, slots, conditions)
        if self._is_moved:
            self._steps[env_ids] = 0
            spans = self._noise.span.tolist()
            idle, moments, jolts = [], [], []
            for own in conditions:
                idle.append(round(number(own.get("action.idle", 0))))
                # The same moment and direction for every strength.
                generator = np.random.default_rng(round(number(own.get("action.jolt_seed", 0))))
                moments.append(idle[-1] + int(generator.integers(0, LAST_JOLT_STEP + 1)))
                signs, strength = generator.integers(0, 2, len(spans)) * 2 - 1, number(own.get("action.jolt", 0.0))
                jolts.append([strength * span * sign for span, sign in zip(spans, signs.tolist(), strict=True)])
            own = torch.tensor(idle), torch.tensor(moments), torch.tensor(jolts, dtype=self._jolt.dtype)
            idle, moments, jolts = on_device(own, self._running.device)
            self._idle[env_ids], self._jolt_step[env_ids], self._jolt[env_ids] = idle, moments, jolts
        return slots

    def _acted(self, action: torch.Tensor) -> torch.Tensor:
        """Return the actions that arrive, shape (num_envs, action_dim)."""
        action = self._noise.added(action, self._running)
        if not self._is_moved:
            return action
        since = self._steps - self._jolt_step
        is_jolted = (since >= 0) & (since < JOLT_STEPS)
        action = torch.where(is_jolted[:, None], action + self._jolt.to(action), action)
        is_idle = (self._steps < self._idle)[:, None]
        if len(self._held):
            action = torch.where(is_idle & self._held.isfinite(), self._held.to(action), action)
        self._steps += self._running
        return action

    def _begun(self, slots: Sequence[int], observation: Observation) -> Observation:
        moved = torch.zeros_like(self._running)
        [env_ids] = on_device((torch.tensor(list(slots)),), moved.device)
        moved[env_ids] = True
        self._running |= moved
        return self._seen(observation, moved)

    def _stepped(self, step: Step) -> Step:
        moved = self._running if step.made is None else self._running & step.made
        seen = self._seen(step.observation, moved)
        self._running &= ~(step.terminated | step.truncated | step.diverged)
        return replace(step, observation=seen)

    def _seen(self, observation: Observation, moved: torch.Tensor) -> Observation:
        """Return the policy's observation; ``moved`` (num_envs,), bool, are env slots that began or made a step."""
        return self._delay.delayed(self._disturbances.disturbed(observation, moved), moved)

"""Environments made elsewhere, behind Gymnasium's interface, as one `Environment`."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from isaaclab_arena.config.options import Count, Positive
from isaaclab_arena.environments.gym.env_slots import EnvSlots, SlotReset, SlotSteps, SlotWords
from isaaclab_arena.errors import ArenaError, Problem, UnannouncedPictureError, did_you_mean
from isaaclab_arena.interfaces import specs
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.environment_builder import Background, Variation
from isaaclab_arena.interfaces.episode import SEED_CONDITION, Conditions, Episode, number, point
from isaaclab_arena.workers import RequestError, WorkerError, WorkerOptions


@dataclass(frozen=True, kw_only=True)
class GymConfig(WorkerOptions):
    """Options of every environment made elsewhere, beside those of its workers.

    Attributes:
        make_kwargs: Keyword arguments for the environment's maker.
        success_key: Entry of ``info`` that is true when the task is solved; ``episode.success`` for a nested one.
        success_reward_threshold: Return from which on an episode is a success, instead of a key.
        end_on_success: Whether an episode ends at the first step whose ``success_key`` is true; otherwise its last step
            counts.
        max_episode_length: Control steps until truncation; needed where the environment's registration has none.
        metric_keys: Entries of ``info`` that are kept as metrics.
        task_description: The instruction of policies; the environment's name by default.
        instruction_key: Entry of the ``info`` of a reset, or else text that it observes, or else attribute of the
            environment, that holds the instruction of this episode, instead of ``task_description``.
        tell_episode: Whether ``reset`` is given ``options`` with the episode's index and conditions.
        control_dt: Time between two control steps [s], whatever the environment says; by default what it says.
        out_of_range: Whether observed numbers that lie beyond the bounds of their space, by more than a tenth of its
            range, are an ``error`` of their episode, or kept as they are (``keep``). What a cast would change is an
            error in any case.
        seed_bits: Seeds are below two to this power; many environments take no more than 32 bits.
        seeded: Whether an environment that starts differently from the same seed is refused.
        enable_cameras: Accepted for job files; pictures that an environment observes are always there.
        steps_per_message: Accepted for runs of earlier versions, without effect.
    """

    make_kwargs: dict[str, Any] = field(default_factory=dict)
    success_key: str | None = None
    success_reward_threshold: float | None = None
    end_on_success: bool = True
    max_episode_length: Count | None = None
    metric_keys: tuple[str, ...] = ()
    task_description: str | None = None
    instruction_key: str | None = None
    tell_episode: bool = False
    control_dt: Positive | None = None
    out_of_range: Literal["error", "keep"] = "error"
    seed_bits: Literal[32, 63] = 32
    seeded: bool = True
    enable_cameras: bool = False
    steps_per_message: Count = 1

    def maker_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for the environment's maker."""
        return self.make_kwargs

    def problems_with(self, found: Mapping[str, Any]) -> Iterator[Problem]:
        """Yield the problems of the options with the source's facts ``found``; by default none."""
        del found
        yield from ()


# Keep the last pictures of each env slot, and mark the outdated ones.


class SlotPictures(specs.DrawnPictures):
    """The group ``camera_obs`` of a batch of single environments, which may skip pictures."""

    def __init__(self, terms: Mapping[str, specs.ArraySpec], num_envs: int, *, always_drawn: bool) -> None:
        # An env slot that was never reset has black pictures. ``always_drawn``: the environments cannot skip pictures.
        super().__init__(num_envs)
        self.outdated[:] = False
        self._arrays = {name: np.zeros((num_envs, *spec.shape), np.uint8) for name, spec in terms.items()}
        self._always_drawn = always_drawn

    def __len__(self) -> int:
        """Return the number of terms."""
        return len(self._arrays)

    def wanted(self, moving: Iterable[int], resting: np.ndarray) -> set[int]:
        """Return the announced env slots among those about to move, and forget the announcement."""
        if not self:
            return set()
        named = self.named()
        # A skipped last picture of a resting env slot can never be drawn. It becomes black if announced, so that a
        # reader of all env slots does not fail: no policy acts on it.
        black = self.outdated & resting & named
        for pictures in self._arrays.values():
            pictures[black] = 0
        self.outdated &= ~black
        return {env_id for env_id in moving if named[env_id]}

    def put(self, env_id: int, drawn: Mapping[str, np.ndarray] | None) -> None:
        """Store an env slot's pictures after its move; None: none were drawn, and the earlier ones are outdated."""
        self.outdated[env_id] = drawn is None
        if drawn is not None:
            for name, pictures in self._arrays.items():
                pictures[env_id] = drawn[name]
        if drawn is not None or self._always_drawn:
            self.num_drawn += len(self._arrays)

    def observed(self, device: torch.device) -> dict[str, torch.Tensor | specs.Pictures]:
        """Return the group's terms; see `DrawnPictures.shown`."""
        return self.shown({name: torch.from_numpy(each) for name, each in self._arrays.items()}, device)

    def of(self, name: str, env_ids: Sequence[int]) -> np.ndarray:
        """Return pictures (len(env_ids), height, width, channels); UnannouncedPictureError if one is outdated."""
        outdated = [env_id for env_id in env_ids if self.outdated[env_id]]
        if outdated:
            raise UnannouncedPictureError(
                f"'{name}' of env slots {', '.join(map(str, outdated))} was not drawn, and this environment cannot do "
                "so afterwards; docs/how_to/cameras.md says how pictures are announced"
            )
        return self._arrays[name][list(env_ids)]


# Present single Gymnasium environments as one `Environment`.

INDEX_CONDITION = "gym.episode_index"

RENDER_HINT = "; what it renders can be filmed with make_kwargs: {render_mode: rgb_array} in its arena_env_args"


class GymEnvironment(Environment, Background):
    """A batch of single Gymnasium environments, one per env slot, without automatic reset."""

    returns_own_tensors = True

    def __init__(
        self,
        slots: EnvSlots,
        config: GymConfig,
        device: torch.device,
        *,
        control_dt: float,
        task_name: str,
        task_description: str,
        facts: Mapping[str, str],
        variations: Sequence[Variation] = (),
    ) -> None:
        # Each environment gets its episode's seed at its reset and steps only while that episode runs. So an episode
        # does not depend on the other env slots. ``task_name`` is the last part of its name, and ``task_description``
        # the default instruction; ``facts`` are its full name and versions, its renderer, and the rules of a benchmark.
        self.num_envs = num_envs = slots.num_envs
        self.device = device
        self.control_dt, self.task_name, self.task_description = control_dt, task_name, task_description
        described = slots.description
        self.max_episode_length = config.max_episode_length or described["max_episode_length"]
        self.reproducible = config.seeded and not described["nondeterministic"]
        low, high = tuple(described["action_low"]), tuple(described["action_high"])
        is_bounded = bool(np.isfinite([*low, *high]).any())
        self.action_spec = specs.ArraySpec(
            shape=(len(low),),
            low=low if is_bounded else None,
            high=high if is_bounded else None,
            names=None if described["action_names"] is None else tuple(described["action_names"]),
            choices=tuple(described["action_choices"]) if any(described["action_choices"]) else None,
        )
        numbers: dict[str, specs.ArraySpec] = {}
        cameras: dict[str, specs.ArraySpec] = {}
        for name, term in described["observation"].items():
            dtype = torch.uint8 if term["image"] else torch.float32
            (cameras if term["image"] else numbers)[name] = specs.ArraySpec(shape=tuple(term["shape"]), dtype=dtype)
        self.observation_spec = {"policy": numbers, specs.CAMERAS: cameras} if cameras else {"policy": numbers}
        self._layouts: dict[str, specs.PictureLayout] = {}
        unclear = ""
        for name, spec in cameras.items():
            try:
                self._layouts[name] = specs.picture_layout(spec.shape, spec.dtype)
            except ValueError as reason:
                unclear += f"; '{name}' {reason}"
        self.steps_while_starting = slots.steps_while_starting
        renders = described["renders"]
        self.filmable = (*self._layouts, *((specs.VIEWPORT,) if renders else ()))
        self.films_only_drawn = bool(self._layouts)
        self.filming_hint = unclear + ("" if renders else RENDER_HINT)
        held = described["hold_action"]
        self.hold_action = held if held is None or isinstance(held, str) else tuple(held)
        self._render_s = 0.0
        self._viewports: dict[int, np.ndarray] = {}
        self._lost: set[int] = set()
        self._starts: dict[int, tuple[Conditions, SlotWords]] = {}  # of the present episodes
        self._starting: dict[int, tuple[Conditions, bool]] = {}
        self._slots = slots
        self._moving: tuple[list[int], set[int]] = [], set()  # env slots of the begun step; those with pictures
        self._config, self._facts, self._variations = config, facts, tuple(variations)
        self._pictures = SlotPictures(cameras, num_envs, always_drawn=not described["draws_on_demand"])
        self._running = np.zeros(num_envs, bool)
        self._return = np.zeros(num_envs, np.float64)
        metric_keys = dict.fromkeys((*config.metric_keys, *described["metric_keys"]))
        self._metrics = {key: np.full(num_envs, np.nan, np.float32) for key in metric_keys}

    @property
    def background(self) -> Background | None:
        """The environment itself, if workers make its steps."""
        return self if self._slots.steps_elsewhere else None

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Draw the seed of an episode, from which its environment draws everything else."""
        return {SEED_CONDITION: int(generator.integers(0, 2**self._config.seed_bits, dtype=np.uint64))}

    def vary_conditions(self, conditions: Conditions, episode: Episode) -> Conditions:
        """Add the conditions that every episode has, its variations, and its index if the environment receives it."""
        stated = {**conditions, **self._slots.description["conditions"], **self.drawn_variations(episode)}
        return {**stated, INDEX_CONDITION: episode.episode_index} if self._config.tell_episode else stated

    def drawn_variations(self, episode: Episode) -> Conditions:
        """Draw the variations of an episode's model, each from a stream of its own."""
        draws = ((each, episode.variation_generator(each.key)) for each in self._variations)
        return {each.key: each.draw(stream, episode.episode_index) for each, stream in draws}

    def slot_reset(self, conditions: Conditions) -> SlotReset:
        """Return the seed and options of an environment's reset; KeyError if the conditions lack the seed or index."""
        seed = int(str(conditions[SEED_CONDITION]))
        if not self._config.tell_episode:
            return {"seed": seed, "options": None}
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in conditions.items()}
        return {"seed": seed, "options": {"episode_index": plain[INDEX_CONDITION], "conditions": plain}}

    def instruction(self, conditions: Conditions) -> str:
        """Return an episode's instruction; an environment's own words are known only after the reset."""
        told = (words["instruction"] for started, words in self._starts.values() if started == conditions)
        return next(told, None) or self.task_description

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """Start new episodes in the env slots ``env_ids`` (n,)."""
        self.begin_reset(env_ids, conditions)
        return self.finish_reset(env_ids.tolist())

    def begin_reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> None:
        """Begin to start episodes in the env slots ``env_ids`` (n,)."""
        slots = env_ids.tolist()
        resets = {
            slot: {**self.slot_reset(each), **self._changed(each)} for slot, each in zip(slots, conditions, strict=True)
        }
        self._lost.difference_update(slots)
        resting = ~self._running
        resting[slots] = False
        # An episode may have ended without its environment: the policy finished, or time was up.
        self._running[slots] = False
        seen = self._pictures.wanted(slots, resting)
        self._slots.begin_reset(resets, seen)
        self._starting.update({slot: (each, slot in seen) for slot, each in zip(slots, conditions, strict=True)})

    def _changed(self, conditions: Conditions) -> SlotReset:
        """Return the changes of an episode's model, if there are any."""
        changes = {}
        for each in self._variations:
            value = conditions[each.key]
            parts = point(value) if isinstance(value, list | tuple) else (number(value),)
            if parts != each.nominal:
                changes[each.key] = list(parts)
        return {"changes": changes} if changes else {}

    def finish_reset(self, env_ids: Sequence[int]) -> Observation:
        """Return the first observation of the episodes in env slots."""
        words = self._slots.finish_reset(env_ids)
        slots = list(env_ids)
        self._running[slots] = [words[slot]["error"] is None for slot in slots]
        for slot in slots:
            conditions, is_seen = self._starting.pop(slot)
            if self._pictures:
                self._pictures.put(slot, self._slots.pictures(slot) if is_seen else None)
            self._starts[slot] = conditions, words[slot]
        self._return[slots] = 0.0
        for values in self._metrics.values():
            values[slots] = np.nan
        return self._observation()

    def solved_at_start(self, env_ids: Sequence[int]) -> Sequence[bool]:
        """Return True for env slots whose reset ``info`` says that the task is solved."""
        starts, key = self._starts, self._config.success_key if self._config.end_on_success else None
        return [key is not None and slot in starts and starts[slot][1]["info"].get(key) == 1.0 for slot in env_ids]

    def start_errors(self, env_ids: Sequence[int]) -> Mapping[int, str]:
        """Return the mismatch of a reset's observation with its space, by env slot."""
        told = {slot: self._starts[slot][1]["error"] for slot in env_ids if slot in self._starts}
        return {slot: error for slot, error in told.items() if error is not None}

    def step(self, action: torch.Tensor) -> Step:
        """Make one step in every running env slot. Shape of ``action``: (num_envs, action_dim)."""
        self.begin_step(action)
        return self.finish_step()

    def begin_step(self, action: torch.Tensor) -> None:
        """Begin a step. Shape of ``action``: (num_envs, action_dim)."""
        actions = action.to("cpu", torch.float32).numpy()
        running = np.flatnonzero(self._running).tolist()
        self._moving = running, self._pictures.wanted(running, ~self._running)
        self._slots.begin_step(actions, *self._moving)

    def finish_step(self) -> Step:
        """Return the step that was begun."""
        moving, seen = self._moving
        steps, config = self._slots.finish_step(), self._config
        for slot in moving if self._pictures else ():
            if slot not in steps.failures:
                self._pictures.put(slot, self._slots.pictures(slot) if slot in seen else None)

        # An env slot whose step failed or is not finite leaves its episode as diverged, without reward and success.
        self._lost.update(steps.failures)
        with np.errstate(over="ignore"):
            rewards = steps.rewards.astype(np.float32)
        errors = {}
        for slot in self._unsound(rewards):
            beyond = ", beyond float32" if np.isfinite(steps.rewards[slot]) else ""
            errors[slot] = f"the reward is {steps.rewards[slot]}{beyond}"
        for name, values in self._slots.numbers.items():
            for slot in self._unsound(values):
                errors.setdefault(slot, f"observation '{name}' holds NaN or infinity")
        errors |= steps.failures
        moved = self._running.copy()
        if errors:
            moved[list(errors)] = False

        # The other env slots add the step to their returns and metrics, by which it is judged.
        np.add(self._return, steps.rewards, out=self._return, where=moved)
        for key, values in self._metrics.items():
            is_there, found = steps.entry(key)
            values[moved] = np.where(is_there, found, np.nan)[moved]
        success = self._solved(steps, moved)
        # A return may fall again, so its threshold ends no episode.
        terminated = moved & (steps.terminated | (success & (config.success_key is not None and config.end_on_success)))
        truncated = moved & steps.truncated & ~terminated
        diverged = self._running & ~moved
        self._running = moved & ~(terminated | truncated)
        is_measured = config.success_key is not None or config.success_reward_threshold is not None
        return Step(
            observation=self._observation(),
            reward=self._tensor(np.where(moved, steps.rewards, 0.0).astype(np.float32)),
            terminated=self._tensor(terminated),
            truncated=self._tensor(truncated),
            success=self._tensor(success) if is_measured else None,
            diverged=self._tensor(diverged),
            metrics={key: self._tensor(values.copy()) for key, values in self._metrics.items()},
            errors=errors,
        )

    def _solved(self, steps: SlotSteps, moved: np.ndarray) -> np.ndarray:
        """Return the env slots solved by a step, (num_envs,), bool; ArenaError for a missing or unclear key."""
        threshold, key = self._config.success_reward_threshold, self._config.success_key
        if threshold is not None:
            return moved & (self._return >= threshold)
        if key is None:
            return np.zeros_like(moved)
        is_there, values = steps.entry(key)
        # Only the last step of an episode has to have the key.
        missing = moved & ~is_there
        if missing.any() and (missing := missing & (steps.terminated | steps.truncated)).any():
            names = steps.info_names.get(int(np.argmax(missing)), ())
            hint = did_you_mean(key, names) or "; it is empty"
            raise ArenaError(f"success_key: the info of an episode's last step has no '{key}'{hint}")
        is_there &= moved
        unclear = is_there & (values != 0.0) & (values != 1.0)
        if unclear.any():
            value = values[np.argmax(unclear)]
            raise ArenaError(f"success_key: info['{key}'] is {value:g}, neither true nor false")
        return is_there & (values == 1.0)

    def expert_actions(self, task: str, observations: np.ndarray) -> np.ndarray:
        """Return the scripted Meta-World expert's actions (n, 4), float32, for ``observations`` (n, 39)."""
        # It runs in one worker, in the interpreter that has Meta-World. ImportError: not installed there. LookupError:
        # no such expert. ArenaError: it fails.
        workers = self._slots.workers
        try:
            # Any worker gives the same answer; one with a reset under way would answer late.
            worker = next((worker for worker in workers if not worker.starting), workers[0])
            return worker.asked({"request": "expert", "task": task}, {"observations": observations})["actions"]
        except (RequestError, WorkerError) as error:
            if isinstance(error, RequestError) and error.as_here is not None:
                raise error.as_here from error
            raise ArenaError(f"the expert for '{task}' failed: {error}{error.details}") from error

    def provenance(self) -> Mapping[str, str]:
        """Return the environment's name, the versions of its interpreter's packages, and its facts."""
        return dict(self._facts)

    def draw_pictures_of(self, env_ids: Sequence[int] | None) -> None:
        """Announce the env slots to draw next. Resting ones are not drawn again."""
        self._pictures.announced = env_ids

    @property
    def pictures_drawn(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]  others keep a number
        """Pictures of ``camera_obs`` drawn so far, wanted or not."""
        return self._pictures.num_drawn

    def film(self, env_ids: Sequence[int], cameras: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Return the env slots' observed pictures, and for `VIEWPORT` rendered ones."""
        # KeyError: unknown camera. UnannouncedPictureError: the picture was skipped. ArenaError: the rendered frame is
        # not a picture.
        unknown = set(cameras) - set(self.filmable)
        if unknown:
            known = ", ".join(self.filmable) or "nothing"
            names = ", ".join(sorted(unknown))
            raise KeyError(f"no cameras {names}; this environment can film {known}{self.filming_hint}")
        began_s = time.perf_counter()
        observed = {name: self._pictures.of(name, env_ids) for name in cameras if name != specs.VIEWPORT}
        pictures = {name: self._layouts[name].colours(each) for name, each in observed.items()}
        if specs.VIEWPORT in cameras:
            rendered = []
            for slot in env_ids:
                # A lost environment cannot render, so its last frame stays.
                if slot not in self._lost:
                    frame = self._slots.render(slot)
                    try:
                        self._viewports[slot] = specs.picture_layout(frame.shape, frame.dtype).colours(frame)
                    except ValueError as reason:
                        raise ArenaError(f"what '{self._facts['environment']}' renders {reason}") from None
                rendered.append(self._viewports[slot])
            pictures[specs.VIEWPORT] = np.stack(rendered)
        self._render_s += time.perf_counter() - began_s
        return pictures

    @property
    def render_s(self) -> float:
        """Time spent on filming so far [s]; an environment's own rendering is part of its step."""
        return self._render_s

    def close(self) -> None:
        """Close the single environments."""
        self._slots.close()

    def _unsound(self, values: np.ndarray) -> list[int]:
        """Return the running env slots with NaN or infinity in ``values`` (num_envs, ...)."""
        sound = np.isfinite(values)
        if sound.all():
            return []
        return np.flatnonzero(self._running & ~sound.reshape(len(values), -1).all(axis=1)).tolist()

    def _observation(self) -> Observation:
        observation: Observation = {
            "policy": {name: self._tensor(values.copy()) for name, values in self._slots.numbers.items()}
        }
        if self._pictures:
            observation[specs.CAMERAS] = self._pictures.observed(self.device)
        return observation

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)

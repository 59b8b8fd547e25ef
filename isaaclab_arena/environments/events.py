"""What happened in an episode: facts of a task, moment after moment, and the events read from them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias, TypeVar

import numpy as np
import torch

from isaaclab_arena.device_reads import on_cpu
from isaaclab_arena.interfaces.episode import EVENTS, SETBACKS, EpisodeEvents
from isaaclab_arena.sim.backend import ModelNames, NamedState
from isaaclab_arena.sim.scene.scene import Robot

# Find the spans of moments in which something holds.

Span: TypeAlias = tuple[int, int]
"""First and last moment."""


def spans(holds: np.ndarray, *, shortest: int = 1, gap: int = 0) -> list[Span]:
    """Return the spans in which something holds, in order.

    Args:
        holds: Shape: (moments,), bool.
        shortest: Moments that a span has at least.
        gap: Moments without it that do not end a span.
    """
    if not holds.any():
        return []
    edges = _turns(holds)
    found: list[Span] = []
    for begun, end in zip(edges[::2], edges[1::2], strict=True):
        goes_on = bool(found) and begun - found[-1][1] - 1 <= gap
        found.append((found.pop()[0] if goes_on else begun, end - 1))
    return [(first, last) for first, last in found if last - first + 1 >= shortest]


def ends(holds: np.ndarray, *, shortest: int, gap: int) -> list[Span]:
    """Return the moments in which something that had held does not any more; see `spans`."""
    found = spans(holds, shortest=shortest, gap=gap)
    return [(last + 1, last + 1) for _, last in found if last + 1 < len(holds)]


def visits(distance: np.ndarray, *, reach: float, left: float) -> list[Span]:
    """Return the spans that begin within ``reach`` and last until the distance is more than ``left``."""
    near = distance <= reach
    if not near.any():
        return []
    # What lies between the two changes nothing.
    told = np.flatnonzero(near | (distance > left))
    moments = [*told.tolist(), len(distance)]
    edges = [moments[turn] for turn in _turns(near[told])]
    return [(begun, end - 1) for begun, end in zip(edges[::2], edges[1::2], strict=True)]


def _turns(holds: np.ndarray) -> list[int]:
    """Return where something begins to hold and where it ends, in turn; what holds at the end ends after it."""
    inner = (np.flatnonzero(holds[1:] != holds[:-1]) + 1).tolist()
    return [*([0] if holds[0] else []), *inner, *([len(holds)] if holds[-1] else [])]


# Sum up an episode, in the same way for every kind of task.

GROWTH = 0.02
LATE = 0.2


def summed_up(
    progress: np.ndarray, found: Mapping[str, list[Span]], decisive: str | None, *, solved: bool, max_steps: int
) -> EpisodeEvents:
    """Return what happened in an episode.

    Args:
        progress: How far it had come up to each moment. Shape: (moments,).
        found: Event to the spans in which it happened.
        decisive: The event that a failure is put down to, None where none explains it: a failure that lasted to the
            time limit has stalled then.
        solved: Whether it succeeded.
        max_steps: Control steps after which it would have run out of time.
    """
    if not solved and decisive is None and len(progress) > max_steps:
        decisive = "stalled"
        found = {**found, decisive: [(max_steps, max_steps)]}
    seen = {name: (found[name][0][0], len(found[name])) for name in EVENTS if found.get(name)}
    return EpisodeEvents(progress=round(float(progress[-1]), 4), decisive=decisive, seen=seen)


def last_growth(progress: np.ndarray) -> int:
    """Return the moment from which on an episode came no further worth mentioning. Shape: (moments,)."""
    return int(np.argmax(progress >= progress[-1] - GROWTH))


def ran_out_of_time(progress: np.ndarray, max_steps: int) -> bool:
    """Return whether the time limit came while an episode was getting on. Shape: (moments,)."""
    last = len(progress) - 1
    return bool(last >= max_steps and progress[-1] - progress[last - round(LATE * last)] >= GROWTH)


# Read the states of one episode by name, moment after moment, as tasks read those of many env slots.

MOMENT_FIELDS = ("qpos", "qvel", "ctrl", "sensordata", "site_xpos")
"""What of a state can be kept of each moment."""

_Array = TypeVar("_Array", np.ndarray, torch.Tensor)


class Moments(NamedState):
    """The states of one episode; where a `NamedState` has env slots, it has moments.

    Args:
        names: Where named things are.
        parts: ``qpos`` of each moment, and whatever else of `MOMENT_FIELDS` is kept. Shape of each: (moments, width).
        standing: Positions of the bodies at the end, for those that do not move [m]. Shape: (nbody, 3).
    """

    def __init__(self, names: ModelNames, parts: Mapping[str, torch.Tensor], standing: torch.Tensor) -> None:
        self.names, self.device = names, torch.device("cpu")
        self._standing = standing
        for name, part in parts.items():
            setattr(self, name, part.reshape(len(part), -1, 3) if name == "site_xpos" else part)

    def __len__(self) -> int:
        return len(self.qpos)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what is not kept; anything else is found without this."""
        raise AttributeError(f"moments have no '{name}'; a task names what they are to keep of a state: moment_fields")

    def body_position(self, body: str) -> torch.Tensor:
        """Return where a thing is that is loose or does not move [m]. Shape: (moments, 3)."""
        pose = self._pose(body)
        return self._standing[self.names.bodies[body]].expand(len(self), 3) if pose is None else pose[:, :3]

    def body_orientation(self, body: str) -> torch.Tensor:
        """Return how a loose thing is turned. Shape: (moments, 4).

        Raises:
            KeyError: If it has no free joint.
        """
        pose = self._pose(body)
        if pose is None:
            raise KeyError(f"{body} is not loose")
        return pose[:, 3:]

    def _pose(self, body: str) -> torch.Tensor | None:
        joint = self.names.free_joints.get(body)
        return None if joint is None else self.joint_position(joint)


class MomentRing:
    """Keeps the last moments of all env slots, with one write per control step.

    Args:
        state: The simulation.
        num_envs: Number of env slots.
        capacity: Control steps of the longest episode.
        fields: What of a state is kept: ``qpos``, and more of `MOMENT_FIELDS`.
    """

    def __init__(
        self, state: NamedState, *, num_envs: int, capacity: int, fields: Sequence[str] = MOMENT_FIELDS
    ) -> None:
        self._state = state
        kept = {name: getattr(state, name) for name in fields}
        # Views of the simulation's own memory, which it renews with every step.
        self._parts = [field.view(num_envs, -1) if field.ndim == 3 else field for field in kept.values()]
        self._widths = {name: part.shape[1] for name, part in zip(kept, self._parts, strict=True)}
        width = sum(self._widths.values())
        self._steps = state.qpos.new_empty((capacity, num_envs, width))
        # Right after the physics each call costs several times what it does elsewhere, so the views are made here, and
        # where it can NumPy copies, which takes half of torch's time.
        self._each_step = self._steps.unbind(0)
        self._starts = state.qpos.new_empty((num_envs, width))
        self._on_host = self._steps.is_cpu
        self._host_parts = [part.numpy() for part in self._parts if part.shape[1]] if self._on_host else []
        self._each_host_step = [step.numpy() for step in self._each_step] if self._on_host else []
        self._first = [0] * num_envs
        self._next = 0

    def start(self, env_ids: Sequence[int]) -> None:
        """Begin episodes in env slots that were just reset."""
        for env_id in env_ids:
            self._first[env_id] = self._next
        if self._on_host:
            starts = self._starts.numpy()
            for env_id in env_ids:
                np.concatenate([part[env_id] for part in self._host_parts], out=starts[env_id])
        else:
            slots = torch.tensor(env_ids, dtype=torch.int64).to(self._starts.device, non_blocking=True)
            self._starts[slots] = torch.cat(self._parts, dim=1)[slots]

    def keep(self) -> None:
        """Keep the moment after a control step."""
        place = self._next % len(self._each_step)
        if self._on_host:
            np.concatenate(self._host_parts, axis=1, out=self._each_host_step[place])
        else:
            torch.cat(self._parts, dim=1, out=self._each_step[place])
        self._next += 1

    def take_back(self) -> None:
        """Forget the last control step, because it is made again."""
        self._next -= 1

    def moments(self, env_ids: Sequence[int]) -> list[Moments]:
        """Return the moments of the episodes in some env slots, each with its start first, read from a GPU together."""
        there = [self._state.xpos[env_id] for env_id in env_ids]
        if self._on_host:
            starts, steps, read = self._starts.numpy(), self._steps.numpy(), iter(there)
            numbers = [_by_number([starts[env_id : env_id + 1], *self._since(env_id, steps)]) for env_id in env_ids]
        else:
            kept = [(self._starts[env_id : env_id + 1], *self._since(env_id, self._steps)) for env_id in env_ids]
            read = iter(on_cpu([*(part for parts in kept for part in parts), *there]))
            numbers = [_by_number([next(read).numpy() for _ in parts]) for parts in kept]
        names, widths = list(self._widths), list(self._widths.values())
        return [
            Moments(self._state.names, dict(zip(names, each.split(widths, dim=1), strict=True)), standing)
            for each, standing in zip(numbers, read, strict=True)
        ]

    def _since(self, env_id: int, steps: _Array) -> list[_Array]:
        """Return the control steps of an env slot's episode in order, in up to two parts. Shape of each: (n, width)."""
        first = self._first[env_id]
        begin, end = first % len(steps), self._next % len(steps)
        if self._next == first:
            return []
        if begin < end:
            return [steps[begin:end, env_id]]
        return [part for part in (steps[begin:, env_id], steps[:end, env_id]) if len(part)]


def _by_number(parts: Sequence[np.ndarray]) -> torch.Tensor:
    """Return parts as one, with each number's moments beside one another, as facts are told number by number.

    NumPy copies them in this thread; torch would wake others for it, which takes longer than the copying.
    """
    copied = np.empty((parts[0].shape[1], sum(map(len, parts))), parts[0].dtype)
    at = 0
    for part in parts:
        copied[:, at : at + len(part)] = part.T
        at += len(part)
    return torch.from_numpy(copied).T


# State the facts of an arm: how far its hand is from where it started, and whether something blocks it.

STRAIN_RAD = 0.1
AT_LIMIT_RAD = 1e-3
STANDS_M = 0.005
STANDS_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class ArmFacts:
    """What an arm does in each moment. Shape of each: (moments,).

    Attributes:
        travel_m: How far the hand is from where it started [m].
        blocked: Whether the arm is asked for more than it does while the hand stands, bool.
    """

    travel_m: torch.Tensor
    blocked: torch.Tensor


def arm_facts(moments: NamedState, robot: Robot) -> ArmFacts:
    """Return what the arm does.

    It is blocked where a joint is more than `STRAIN_RAD` from where it is told to be, or told to be at its limit, while
    the hand stands: over the last `STANDS_STEPS` control steps it made less than `STANDS_M`.
    """
    # NumPy, because a call of torch takes longer than what it does here.
    hand = moments.site_position(robot.tcp_site).numpy()
    joints, _ = moments.joint_indices(robot.arm_joints)
    told = moments.ctrl.numpy()[:, moments.actuator_indices(robot.arm_actuators).numpy()]
    strain = np.abs(told - moments.qpos.numpy()[:, joints.numpy()]).max(axis=1)
    stands = np.zeros(len(hand), dtype=bool)
    later = hand[1 + STANDS_STEPS :]
    stands[1 + STANDS_STEPS :] = _length(later - hand[1 : 1 + len(later)]) < STANDS_M
    low, high = (np.array(limit, told.dtype) for limit in (robot.joint_low, robot.joint_high))
    at_limit = ((told - low < AT_LIMIT_RAD) | (high - told < AT_LIMIT_RAD)).any(axis=1)
    blocked = ((strain > STRAIN_RAD) | at_limit) & stands
    return ArmFacts(travel_m=torch.from_numpy(_length(hand - hand[:1])), blocked=torch.from_numpy(blocked))


def _length(vectors: np.ndarray) -> np.ndarray:
    """Return the lengths of vectors, as `sim.math.rotation.norm` does to the bit. Shape: (moments, 3) -> (moments,)."""
    x, y, z = vectors.T
    return np.sqrt(x * x + y * y + z * z)


# Define what a task says of the moments of an episode, from which its events are read.


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One episode of a task in numbers, moment after moment: its start, and then the end of each control step.

    Every tensor has shape (moments,), on the CPU. What a task does not know is None, and has no event.

    Attributes:
        stages: What has to be done one after the other, each from 0 to 1. A stage above 0 says that those before it are
            done.
        arm: What the arm does.
        hand_m: How far the hand is from what it has to go to [m].
        reach_m: Distance at which it has come there [m].
        taken: Whether the hand holds or moves what it went to, bool.
        carried: Whether the hand holds something above what it stood on, or has begun to pull a handle, bool; None
            where nothing is to be held.
        delivered: Whether the thing lies where it belongs, so that letting go of it is right, bool.
        strayed_m: How far the thing has gone from where it should be, without the hand holding it [m].
        wrong_object: Whether another thing is held, or lies where it does not belong, bool.
        other_m: How far the hand is from a thing that it is not asked to go to [m].
        wrong_order: Whether a later part was done before an earlier one, bool.
        off_table: Whether a thing has left the table, bool.
        lifted: Whether a thing that is to be pushed is lifted, bool.
        met: Whether the goal is met now, bool.
        nearly: Whether it is met within twice its tolerances, bool.
    """

    stages: Sequence[torch.Tensor]
    arm: ArmFacts
    hand_m: torch.Tensor
    reach_m: float
    taken: torch.Tensor
    met: torch.Tensor
    nearly: torch.Tensor
    carried: torch.Tensor | None = None
    delivered: torch.Tensor | None = None
    strayed_m: torch.Tensor | None = None
    wrong_object: torch.Tensor | None = None
    other_m: torch.Tensor | None = None
    wrong_order: torch.Tensor | None = None
    off_table: torch.Tensor | None = None
    lifted: torch.Tensor | None = None

    @property
    def is_pushed(self) -> bool:
        """Whether a loose thing is to be pushed, and not to be held."""
        return self.carried is None and self.strayed_m is not None


def progress_of(facts: Facts, *, solved: bool) -> np.ndarray:
    """Return how far a task had come up to each moment, never less than before.

    With n stages, stage k (from 0) brings it from k / (n + 1) to (k + 1) / (n + 1). The rest is left for success.

    Args:
        facts: The episode.
        solved: Whether it succeeded; then its last moment has 1, and no other episode has 1 anywhere.

    Returns:
        0 to 1. Shape: (moments,), float64.
    """
    stages = np.stack([stage.numpy() for stage in facts.stages]).astype(np.float64).clip(0, 1)
    before = np.arange(len(stages))[:, None]
    now = np.where(stages > 0, before + stages, 0.0).max(axis=0) / (len(stages) + 1)
    so_far = np.maximum.accumulate(now)
    if solved:
        so_far[-1] = 1.0
    return so_far


def approach(distance_m: torch.Tensor, reach_m: float) -> torch.Tensor:
    """Return the share of the way to a place, of what there was at the start: 1 within reach. Shape: (moments,).

    Args:
        distance_m: How far the place is [m]. Shape: (moments,).
        reach_m: Distance that counts as there [m].
    """
    left = distance_m.numpy() - reach_m
    return torch.from_numpy((1 - left / left[:1].clip(min=1e-3)).clip(0, 1))


def strayed(position: torch.Tensor, held: torch.Tensor, settle_steps: int = 10) -> torch.Tensor:
    """Return how far a thing has gone over the table since nobody held it, or since it was let go [m].

    Args:
        position: Where it is [m]. Shape: (moments, 3).
        held: Whether it is held. Shape: (moments,), bool.
        settle_steps: Control steps that it has to come to rest after it was let go.

    Returns:
        0 while it is held and comes to rest. Shape: (moments,).
    """
    moments = torch.arange(len(held))
    last_held = torch.cummax(torch.where(held, moments + settle_steps, 0), dim=0).values
    left_at = position[torch.minimum(last_held, moments)]
    way = (position - left_at)[:, :2]
    return torch.sqrt((way * way).sum(dim=1))


# Define what a task of a robot on a floor says of an episode, and read its events from that.

BRIEF_S = 0.25
ROBOT_MOVED_M = 0.1
TURNED_RAD = 0.2
_MOST_OF_A_FAILURE = 0.9999


@dataclass(frozen=True, kw_only=True)
class FloorFacts:
    """One episode of a robot on a floor in numbers, moment after moment: its start, and then each control step's end.

    Every array has shape (moments,). What a task does not know is None, and has no event.

    Attributes:
        dt_s: Time between two moments [s].
        share: How much of what is asked for is done, 0 to 1.
        lost: Whether success has become impossible, for good, bool.
        fallen: Whether the robot, or what it balances, has fallen, bool.
        nearly: Whether the goal is met within twice its tolerances, or success has become impossible in an episode that
            never went beyond twice of them, bool.
        strayed: Whether the robot does or did something else than it was told, bool.
        met: Whether a goal that can be met again is met now, bool.
        moved: Whether the robot is elsewhere than it started, bool; None where nobody told it to move.
        off_rail: Whether it is beyond the end of its rail, bool.
    """

    dt_s: float
    share: np.ndarray
    lost: np.ndarray
    fallen: np.ndarray
    nearly: np.ndarray
    strayed: np.ndarray | None = None
    met: np.ndarray | None = None
    moved: np.ndarray | None = None
    off_rail: np.ndarray | None = None

    @property
    def brief_steps(self) -> int:
        """In how many control steps something can be seen."""
        return round(BRIEF_S / self.dt_s)


def floor_events_of(facts: FloorFacts, *, solved: bool, max_steps: int) -> EpisodeEvents:
    """Return what happened in an episode.

    Args:
        facts: The episode.
        solved: Whether it succeeded.
        max_steps: Control steps after which it would have run out of time.
    """
    progress = floor_progress_of(facts, solved=solved)
    found = _setbacks(facts)
    if not solved:
        found |= _shortfalls_on_floor(facts, progress, max_steps)
    found = {name: each for name, each in found.items() if each}
    decisive = None if solved else _decisive_on_floor(facts, found, progress)
    return summed_up(progress, found, decisive, solved=solved, max_steps=max_steps)


def floor_progress_of(facts: FloorFacts, *, solved: bool) -> np.ndarray:
    """Return how far a task had come up to each moment: never less than before, and no farther once it is lost.

    Args:
        facts: The episode.
        solved: Whether it succeeded; then its last moment has 1, and no other episode has 1 anywhere.

    Returns:
        0 to 1. Shape: (moments,), float64.
    """
    counts = np.where(facts.lost, 0.0, facts.share.astype(np.float64))
    so_far = np.maximum.accumulate(counts.clip(0, _MOST_OF_A_FAILURE))
    if solved:
        so_far[-1] = 1.0
    return so_far


def ever(holds: np.ndarray) -> np.ndarray:
    """Return whether something holds or has held before. Shape: (moments,), bool."""
    return np.logical_or.accumulate(holds)


def streak(holds: np.ndarray) -> np.ndarray:
    """Return for how many control steps something has held without a break; the start itself counts for nothing.

    Args:
        holds: Shape: (moments,), bool.

    Returns:
        Shape: (moments,), int64.
    """
    moments = np.arange(len(holds))
    if not holds.any():
        return np.zeros_like(moments)
    return moments - np.maximum.accumulate(np.where(holds, 0, moments))


def moved_from_start(pose: np.ndarray) -> np.ndarray:
    """Return whether a body is 10 cm from where it started, over the floor, or turned by 0.2 rad.

    Args:
        pose: Position [m] and orientation. Shape: (moments, 7).

    Returns:
        Shape: (moments,), bool.
    """
    x, y = (pose[:, :2] - pose[:1, :2]).T
    half_turn_cos = abs((pose[:, 3:] * pose[:1, 3:]).sum(axis=1))
    return (x * x + y * y > ROBOT_MOVED_M * ROBOT_MOVED_M) | (half_turn_cos < math.cos(TURNED_RAD / 2))


def _setbacks(facts: FloorFacts) -> dict[str, list[Span]]:
    """Return what threw an episode back."""
    brief = facts.brief_steps
    holds = {"fell_over": facts.fallen, "left_the_rail": facts.off_rail, "strayed": facts.strayed}
    found = {name: spans(each, gap=brief) for name, each in holds.items() if each is not None}
    if facts.met is not None:
        found["success_undone"] = ends(facts.met, shortest=brief, gap=1)
    return found


def _shortfalls_on_floor(facts: FloorFacts, progress: np.ndarray, max_steps: int) -> dict[str, list[Span]]:
    """Return what says how far an episode came that did not succeed."""
    at_end = [(len(progress) - 1, len(progress) - 1)]
    found = {"almost": spans(facts.nearly, gap=facts.brief_steps)}
    if facts.moved is not None and not bool(facts.moved.any()):
        found["never_moved"] = at_end
    if not bool(facts.lost[-1]) and ran_out_of_time(progress, max_steps):
        found["out_of_time_while_progressing"] = at_end
    return found


def _decisive_on_floor(facts: FloorFacts, found: Mapping[str, list[Span]], progress: np.ndarray) -> str | None:
    """Return what an onlooker would put a failure down to.

    What can be seen at the end comes first, and then the first setback after which the task came no further; nothing
    is made good where success had become impossible.
    """
    at_end = {name for name, each in found.items() if each[-1][1] >= len(progress) - facts.brief_steps}
    for name in ("fell_over", "left_the_rail", "never_moved", "almost"):
        if name in at_end:
            return name
    good_at = 0 if bool(facts.lost[-1]) else last_growth(progress)
    lasting = [
        (span[0], rank, name)
        for rank, name in enumerate(SETBACKS)
        for span in found.get(name, ())
        if span[1] >= good_at
    ]
    if lasting:
        return min(lasting)[2]
    return "out_of_time_while_progressing" if "out_of_time_while_progressing" in at_end else None


# Read the events of an episode from its facts, and decide which of them its failure is put down to.

MOVED_M = 0.02
STRAYED_M = 0.05
LEFT = 1.3
STUCK_STEPS = 10
HOVER_STEPS = 20
SEEN_STEPS = 5
DELIVERED_WITHIN_STEPS = 10
_FLICKER = 4


def events_of(facts: Facts, *, solved: bool, max_steps: int) -> EpisodeEvents:
    """Return what happened in an episode.

    Args:
        facts: The episode.
        solved: Whether it succeeded.
        max_steps: Control steps after which it would have run out of time.
    """
    progress = progress_of(facts, solved=solved)
    found = {name: read(facts) for name, read in _SETBACKS.items()}
    if solved:
        # The goal was met to the end.
        found["success_undone"] = [span for span in found["success_undone"] if span[0] < len(progress) - 1]
    else:
        found |= _shortfalls(facts, progress, max_steps)
    found = {name: each for name, each in found.items() if each}
    decisive = None if solved else _decisive(facts, found, progress)
    return summed_up(progress, found, decisive, solved=solved, max_steps=max_steps)


def _decisive(facts: Facts, found: Mapping[str, list[Span]], progress: np.ndarray) -> str | None:
    """Return what an onlooker would put a failure down to.

    What can be seen at the end comes first: a thing that lies beside the table, a hand that never came to it, a goal
    that is nearly met. Then it is the first setback that was not made good, and then what the episode fell short of. A
    setback is made good by a later growth of progress, by taking the thing again, and if the thing was pushed away or
    the arm was stuck, by its end.
    """
    last = len(progress) - 1
    at_end = {name for name, each in found.items() if each[-1][1] >= last - _FLICKER}
    for name in ("fell_off_table", "lifted", "never_moved", "never_reached", "almost"):
        if name in at_end and not (name == "never_reached" and "wrong_object" in found):
            return name
    if facts.is_pushed and "pushed_away" in at_end:
        return "pushed_away"
    taken_at = 0 if facts.carried is None else _last(_numpy(facts.carried))
    good_at = max(last_growth(progress), taken_at)
    progressing = "out_of_time_while_progressing" in at_end
    lasting = [
        (span[0], rank, name)
        for rank, name in enumerate(SETBACKS)
        if name in (at_end if name in _LASTS else found)
        for span in found[name]
        if span[1] >= good_at and not (name == "reached_and_missed" and span[1] == last and progressing)
    ]
    names = {name for _, _, name in lasting}
    if "reached_and_missed" in names and not facts.is_pushed:
        # A failed grasp that pushes the thing away is a failed grasp.
        lasting = [each for each in lasting if each[2] != "pushed_away"]
    if lasting:
        return min(lasting)[2]
    return "out_of_time_while_progressing" if progressing else None


def _last(holds: np.ndarray) -> int:
    """Return the last moment in which something holds, 0 if there is none."""
    return int(np.flatnonzero(holds)[-1]) if holds.any() else 0


def _shortfalls(facts: Facts, progress: np.ndarray, max_steps: int) -> dict[str, list[Span]]:
    """Return what says how far an episode came that did not succeed."""
    last = len(progress) - 1
    at_end = [(last, last)]
    found: dict[str, list[Span]] = {"almost": spans(_numpy(facts.nearly), gap=_FLICKER)}
    if _numpy(facts.arm.travel_m).max() < MOVED_M:
        found["never_moved"] = at_end
    if _numpy(facts.hand_m).min() > facts.reach_m and not _numpy(facts.taken).any():
        found["never_reached"] = at_end
    if ran_out_of_time(progress, max_steps):
        found["out_of_time_while_progressing"] = at_end
    return found


def _while(field: str, shortest: int = 1) -> Callable[[Facts], list[Span]]:
    def read(facts: Facts) -> list[Span]:
        holds = getattr(facts, field)
        return [] if holds is None else spans(_numpy(holds), shortest=shortest, gap=_FLICKER)

    return read


def _wrong_object(facts: Facts) -> list[Span]:
    """Find where the hand held another thing, or went to one and never to that which is asked for."""
    found = _while("wrong_object", shortest=3)(facts)
    if found or facts.other_m is None or bool((facts.hand_m <= facts.reach_m).any()):
        return found
    return visits(_numpy(facts.other_m), reach=facts.reach_m, left=LEFT * facts.reach_m)


def _missed(facts: Facts) -> list[Span]:
    """Find the visits from which the hand left without having done what it came for, or stayed to the end for nothing.

    What slips from the fingers before it has left the table was not taken; what has to be pushed has to get there. A
    thing that moves although it is to be pushed was come to, by the knuckles if not by the fingertips.
    """
    distance, done = _numpy(facts.hand_m), _numpy(facts.met if facts.carried is None else facts.carried)
    if facts.is_pushed:
        distance = np.where(_numpy(facts.taken), np.minimum(distance, facts.reach_m), distance)
    begun = done if facts.carried is not None else _numpy(facts.taken)
    last = len(distance) - 1
    found = []
    for first, end in visits(distance, reach=facts.reach_m, left=LEFT * facts.reach_m):
        left = end < last and not done[first : end + 1].any()
        waited = end == last and end - first >= HOVER_STEPS and not begun[first : end + 1].any()
        if left or waited:
            found.append((first, end))
    return found


def _dropped(facts: Facts) -> list[Span]:
    """Find where something that was carried was let go of and does not lie where it belongs.

    However low it was: nobody sees whether it fell 1 cm or was put down in the wrong place.
    """
    if facts.carried is None:
        return []
    taken = _numpy(facts.taken)
    delivered = np.zeros_like(taken) if facts.delivered is None else _numpy(facts.delivered)
    found = []
    for _, last in spans(_numpy(facts.carried), gap=_FLICKER):
        gone = np.flatnonzero(~taken[last + 1 :])
        if len(gone) and not delivered[(at := last + 1 + int(gone[0])) : at + DELIVERED_WITHIN_STEPS].any():
            found.append((at, at))
    return list(dict.fromkeys(found))


def _pushed_away(facts: Facts) -> list[Span]:
    return [] if facts.strayed_m is None else spans(_numpy(facts.strayed_m > STRAYED_M), gap=_FLICKER)


def _undone(facts: Facts) -> list[Span]:
    """Find where the goal had been met for a moment and was not any more."""
    return ends(_numpy(facts.met), shortest=SEEN_STEPS, gap=1)


def _stuck(facts: Facts) -> list[Span]:
    """Find where the arm stood against something for half a second, other than where it was to press against it."""
    return spans(_numpy(facts.arm.blocked) & ~_numpy(facts.met), shortest=STUCK_STEPS, gap=1)


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.numpy()


_LASTS = frozenset({"pushed_away", "stuck"})
"""Setbacks that decide only where they last to the end."""

_SETBACKS: Mapping[str, Callable[[Facts], list[Span]]] = {
    "wrong_object": _wrong_object,
    "wrong_order": _while("wrong_order", shortest=3),
    "fell_off_table": _while("off_table"),
    "lifted": _while("lifted"),
    "dropped": _dropped,
    "pushed_away": _pushed_away,
    "reached_and_missed": _missed,
    "success_undone": _undone,
    "stuck": _stuck,
}

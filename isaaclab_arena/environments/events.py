"""What happened in an episode: facts of a task, moment after moment, and the events read from them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch

from isaaclab_arena.distributed.devices import on_cpu
from isaaclab_arena.interfaces.episode import EVENTS, SETBACKS, EpisodeEvents
from isaaclab_arena.sim.backend import ModelNames, NamedState
from isaaclab_arena.sim.scene import Robot

# Find the spans of moments in which a condition holds.

Span: TypeAlias = tuple[int, int]
"""First and last moment."""


def spans(holds: np.ndarray, *, shortest: int = 1, gap: int = 0) -> list[Span]:
    """Return the spans of a mask ``holds`` (moments,), bool, in order."""
    if not holds.any():
        return []
    edges = _turns(holds)
    found: list[Span] = []
    for begun, end in zip(edges[::2], edges[1::2], strict=True):
        # Up to ``gap`` moments without the condition do not end a span; spans under ``shortest`` are dropped.
        goes_on = bool(found) and begun - found[-1][1] - 1 <= gap
        found.append((found.pop()[0] if goes_on else begun, end - 1))
    return [(first, last) for first, last in found if last - first + 1 >= shortest]


def ends(holds: np.ndarray, *, shortest: int, gap: int) -> list[Span]:
    """Return the moments at which a condition stops holding, each as a span of one moment; see `spans`."""
    return [(last + 1, last + 1) for _, last in spans(holds, shortest=shortest, gap=gap) if last + 1 < len(holds)]


def visits(distance: np.ndarray, *, reach: float, left: float) -> list[Span]:
    """Return the spans that begin at a distance within ``reach`` and last until it exceeds ``left``."""
    near = distance <= reach
    if not near.any():
        return []
    # A distance between the two limits changes no state, so only the other moments count.
    told = np.flatnonzero(near | (distance > left))
    moments = [*told.tolist(), len(distance)]
    edges = [moments[turn] for turn in _turns(near[told])]
    return [(begun, end - 1) for begun, end in zip(edges[::2], edges[1::2], strict=True)]


def _turns(holds: np.ndarray) -> list[int]:
    """Return the moments at which a mask turns true and false, alternately; a span to the end ends at len(holds)."""
    inner = (np.flatnonzero(holds[1:] != holds[:-1]) + 1).tolist()
    return [*([0] if holds[0] else []), *inner, *([len(holds)] if holds[-1] else [])]


# Summarise an episode, in the same way for every kind of task.

GROWTH = 0.02
LATE = 0.2


def summed_up(
    progress: np.ndarray, found: Mapping[str, list[Span]], decisive: str | None, *, solved: bool, max_steps: int
) -> EpisodeEvents:
    """Return the events of an episode from its progress (moments,), its spans by event and the decisive event."""
    # A failure that no event explains and that lasted to the time limit counts as stalled.
    if not solved and decisive is None and len(progress) > max_steps:
        decisive = "stalled"
        found = {**found, decisive: [(max_steps, max_steps)]}
    seen = {name: (found[name][0][0], len(found[name])) for name in EVENTS if found.get(name)}
    return EpisodeEvents(progress=round(float(progress[-1]), 4), decisive=decisive, seen=seen)


# Read the states of one episode by name, moment by moment, with the code that tasks use for many env slots.

MOMENT_FIELDS = ("qpos", "qvel", "ctrl", "sensordata", "site_xpos")
"""The parts of a state that can be kept of each moment."""


class Moments(NamedState):
    """The states of one episode; its first dimension is moments in place of env slots."""

    def __init__(self, names: ModelNames, parts: Mapping[str, torch.Tensor], standing: torch.Tensor) -> None:
        # ``parts`` maps qpos and more of `MOMENT_FIELDS` to (moments, width). ``standing`` (nbody, 3) holds the final
        # positions of bodies [m], for those that do not move.
        self.names, self.device = names, torch.device("cpu")
        self._standing = standing
        for name, part in parts.items():
            setattr(self, name, part.reshape(len(part), -1, 3) if name == "site_xpos" else part)

    def __len__(self) -> int:
        return len(self.qpos)

    def __getattr__(self, name: str) -> NoReturn:
        """Raise for a field that was not kept; existing attributes never get here."""
        raise AttributeError(f"moments have no '{name}'; a task names what they are to keep of a state: moment_fields")

    def body_position(self, body: str) -> torch.Tensor:
        """Return the position of a loose or fixed body [m]. Shape: (moments, 3)."""
        joint = self.names.free_joints.get(body)
        if joint is None:
            return self._standing[self.names.bodies[body]].expand(len(self), 3)
        return self.joint_position(joint)[:, :3]

    def body_orientation(self, body: str) -> torch.Tensor:
        """Return the orientation of a loose body; KeyError without a free joint. Shape: (moments, 4)."""
        joint = self.names.free_joints.get(body)
        if joint is None:
            raise KeyError(f"{body} is not loose")
        return self.joint_position(joint)[:, 3:]


class MomentRing:
    """Keeps the last ``capacity`` control steps of all env slots, with one write per control step."""

    def __init__(
        self, state: NamedState, *, num_envs: int, capacity: int, fields: Sequence[str] = MOMENT_FIELDS
    ) -> None:
        self._state = state
        kept = {name: getattr(state, name) for name in fields}
        # Views of the simulation's own memory, which each step updates.
        self._parts = [field.view(num_envs, -1) if field.ndim == 3 else field for field in kept.values()]
        self._widths = {name: part.shape[1] for name, part in zip(kept, self._parts, strict=True)}
        width = sum(self._widths.values())
        self._steps = state.qpos.new_empty((capacity, num_envs, width))
        # A call right after the physics costs several times the usual. So the views are made here, and NumPy copies on
        # a CPU, in half of torch's time.
        self._each_step = self._steps.unbind(0)
        self._starts = state.qpos.new_empty((num_envs, width))
        self._on_host = self._steps.is_cpu
        self._host_parts = [part.numpy() for part in self._parts if part.shape[1]] if self._on_host else []
        self._each_host_step = [step.numpy() for step in self._each_step] if self._on_host else []
        self._first = [0] * num_envs
        self.num_kept = 0  # control steps; one less forgets the last of them, because it is repeated

    def start(self, env_ids: Sequence[int]) -> None:
        """Begin episodes in env slots that were just reset."""
        for env_id in env_ids:
            self._first[env_id] = self.num_kept
        if self._on_host:
            starts = self._starts.numpy()
            for env_id in env_ids:
                np.concatenate([part[env_id] for part in self._host_parts], out=starts[env_id])
        else:
            slots = torch.tensor(env_ids, dtype=torch.int64).to(self._starts.device, non_blocking=True)
            self._starts[slots] = torch.cat(self._parts, dim=1)[slots]

    def keep(self) -> None:
        """Store the moment after a control step."""
        place = self.num_kept % len(self._each_step)
        if self._on_host:
            np.concatenate(self._host_parts, axis=1, out=self._each_host_step[place])
        else:
            torch.cat(self._parts, dim=1, out=self._each_step[place])
        self.num_kept += 1

    def moments(self, env_ids: Sequence[int]) -> list[Moments]:
        """Return the moments of the env slots' episodes, each with its start first; one read from a GPU for all."""
        starts, steps = self._starts, self._steps
        if self._on_host:
            starts, steps = starts.numpy(), steps.numpy()
        episodes: list[list[Any]] = []
        for env_id in env_ids:
            # The ring holds the control steps of an episode in order, in up to two parts.
            first, parts = self._first[env_id], []
            if self.num_kept != first:
                begin, end = first % len(steps), self.num_kept % len(steps)
                parts = [steps[begin:end, env_id]] if begin < end else [steps[begin:, env_id], steps[:end, env_id]]
            episodes.append([starts[env_id : env_id + 1], *(part for part in parts if len(part))])
        standing = [self._state.xpos[env_id] for env_id in env_ids]
        if not self._on_host:
            read = iter(on_cpu([*(part for parts in episodes for part in parts), *standing]))
            episodes = [[next(read).numpy() for _ in parts] for parts in episodes]
            standing = list(read)

        names, widths = list(self._widths), list(self._widths.values())
        found = []
        for parts, bodies in zip(episodes, standing, strict=True):
            # Facts read number by number, so the moments of each number lie side by side in memory. NumPy copies in
            # this thread; torch would wake others, which takes longer.
            copied = np.empty((parts[0].shape[1], sum(map(len, parts))), parts[0].dtype)
            at = 0
            for part in parts:
                copied[:, at : at + len(part)] = part.T
                at += len(part)
            each = torch.from_numpy(copied).T.split(widths, dim=1)
            found.append(Moments(self._state.names, dict(zip(names, each, strict=True)), bodies))
        return found


# State the facts of an arm: the distance of its hand from the start, and its moments against an obstacle.

STRAIN_RAD = 0.1
AT_LIMIT_RAD = 1e-3
STANDS_M = 0.005
STANDS_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class ArmFacts:
    """The arm's facts in each moment, each (moments,)."""

    travel_m: torch.Tensor  # distance of the hand from its start [m]
    blocked: torch.Tensor  # the arm is commanded to move but the hand stands, bool


def arm_facts(moments: NamedState, robot: Robot) -> ArmFacts:
    """Return the arm's travel, and its blocked moments: commanded beyond its position or to a limit, but still."""
    # NumPy, because one call of torch takes longer than all the work here.
    hand = moments.site_position(robot.tcp_site).numpy()
    joints, _ = moments.joint_indices(robot.arm_joints)
    told = moments.ctrl.numpy()[:, moments.actuator_indices(robot.arm_actuators).numpy()]
    strain = np.abs(told - moments.qpos.numpy()[:, joints.numpy()]).max(axis=1)
    stands = np.zeros(len(hand), dtype=bool)
    # The hand stands if it moved less than `STANDS_M` over the last `STANDS_STEPS` control steps.
    later = hand[1 + STANDS_STEPS :]
    stands[1 + STANDS_STEPS :] = _length(later - hand[1 : 1 + len(later)]) < STANDS_M
    low, high = (np.array(limit, told.dtype) for limit in (robot.joint_low, robot.joint_high))
    # A command at a joint limit counts as strain, because the target cannot go further.
    at_limit = ((told - low < AT_LIMIT_RAD) | (high - told < AT_LIMIT_RAD)).any(axis=1)
    blocked = ((strain > STRAIN_RAD) | at_limit) & stands
    return ArmFacts(travel_m=torch.from_numpy(_length(hand - hand[:1])), blocked=torch.from_numpy(blocked))


def _length(vectors: np.ndarray) -> np.ndarray:
    """Return the lengths of vectors, bit-equal to `sim.math.norm`. Shape: (moments, 3) -> (moments,)."""
    x, y, z = vectors.T
    return np.sqrt(x * x + y * y + z * z)


# Define the facts of an episode that a task states, from which its events are read.


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts of one episode, each (moments,) on the CPU; None for an unknown fact, which gives no event."""

    # Stages in order, each from 0 to 1; a stage above 0 implies that those before it are done. Moments are the start,
    # and then the end of each control step.
    stages: Sequence[torch.Tensor]
    arm: ArmFacts
    hand_m: torch.Tensor  # distance of the hand from its next goal [m]
    reach_m: float  # distance at which the goal is reached [m]
    taken: torch.Tensor  # the hand holds or moves its goal, bool
    met: torch.Tensor  # the task's goal is met now, bool
    nearly: torch.Tensor  # met within twice its tolerances, bool
    # The hand holds an object above its support, or has begun to pull a handle, bool; None if nothing is to be held.
    carried: torch.Tensor | None = None
    delivered: torch.Tensor | None = None  # the object is at its destination, so a release is right, bool
    strayed_m: torch.Tensor | None = None  # how far the object moved from its place while not held [m]
    wrong_object: torch.Tensor | None = None  # another object is held, or lies in a wrong place, bool
    other_m: torch.Tensor | None = None  # distance of the hand from an object that is not the goal [m]
    wrong_order: torch.Tensor | None = None  # a later part was done before an earlier one, bool
    off_table: torch.Tensor | None = None  # an object has left the table, bool
    lifted: torch.Tensor | None = None  # an object that is to be pushed is lifted, bool


def progress_of(facts: Facts, *, solved: bool) -> np.ndarray:
    """Return the progress up to each moment, 0 to 1, never falling. Shape: (moments,), float64."""
    # With n stages, stage k (from 0) moves progress from k / (n + 1) to (k + 1) / (n + 1).
    stages = np.stack([stage.numpy() for stage in facts.stages]).astype(np.float64).clip(0, 1)
    now = np.where(stages > 0, np.arange(len(stages))[:, None] + stages, 0.0).max(axis=0) / (len(stages) + 1)
    so_far = np.maximum.accumulate(now)

    # The rest is for success: only the last moment of a solved episode has 1.
    if solved:
        so_far[-1] = 1.0
    return so_far


def approach(distance_m: torch.Tensor, reach_m: float) -> torch.Tensor:
    """Return the covered share of the initial distance to a place, 1 within ``reach_m``. Shape: (moments,)."""
    left = distance_m.numpy() - reach_m
    return torch.from_numpy((1 - left / left[:1].clip(min=1e-3)).clip(0, 1))


def strayed(position: torch.Tensor, held: torch.Tensor, settle_steps: int = 10) -> torch.Tensor:
    """Return a thing's distance over the table from its last place in the hand [m], 0 if held. Shape: (moments,)."""
    # A released thing gets ``settle_steps`` control steps to come to rest before its movement counts.
    moments = torch.arange(len(held))
    last_held = torch.cummax(torch.where(held, moments + settle_steps, 0), dim=0).values
    left_at = position[torch.minimum(last_held, moments)]
    way = (position - left_at)[:, :2]
    return torch.sqrt((way * way).sum(dim=1))


# Define the facts of an episode of a robot on a floor, and read its events from them.

BRIEF_S = 0.25
ROBOT_MOVED_M = 0.1


@dataclass(frozen=True, kw_only=True)
class FloorFacts:
    """Facts of one episode of a robot on a floor, each (moments,); None for an unknown fact, which gives no event."""

    dt_s: float  # between two moments: the start, and then the end of each control step [s]
    share: np.ndarray  # fulfilled share of the request, 0 to 1
    lost: np.ndarray  # success is impossible from now on, bool
    fallen: np.ndarray  # the robot, or the body that it balances, has fallen, bool
    # The goal is met within twice its tolerances, or success is lost in an episode that never left twice the
    # tolerances, bool.
    nearly: np.ndarray
    strayed: np.ndarray | None = None  # the robot acts or acted against its command, bool
    met: np.ndarray | None = None  # a goal that can be met again is met now, bool
    moved: np.ndarray | None = None  # the robot has left its start, bool; None without a command to move
    off_rail: np.ndarray | None = None  # beyond the end of its rail, bool


def floor_events_of(facts: FloorFacts, *, solved: bool, max_steps: int) -> EpisodeEvents:
    """Return the events of an episode that succeeded or not within ``max_steps`` control steps."""
    progress = floor_progress_of(facts, solved=solved)
    last, brief_steps = len(progress) - 1, round(BRIEF_S / facts.dt_s)
    holds = {"fell_over": facts.fallen, "left_the_rail": facts.off_rail, "strayed": facts.strayed}
    found = {name: spans(each, gap=brief_steps) for name, each in holds.items() if each is not None}
    if facts.met is not None:
        found["success_undone"] = ends(facts.met, shortest=brief_steps, gap=1)
    if solved:
        return summed_up(progress, found, None, solved=True, max_steps=max_steps)

    # A failure also has events that describe its progress.
    is_lost = bool(facts.lost[-1])
    found["almost"] = spans(facts.nearly, gap=brief_steps)
    if facts.moved is not None and not bool(facts.moved.any()):
        found["never_moved"] = [(last, last)]
    late_growth = progress[-1] - progress[last - round(LATE * last)]
    if not is_lost and last >= max_steps and late_growth >= GROWTH:
        found["out_of_time_while_progressing"] = [(last, last)]

    # An observer would blame what is visible at the end first. Then it is the first setback after which progress
    # stopped; a lost success is never made up for.
    at_end = {name for name, each in found.items() if each and each[-1][1] > last - brief_steps}
    # Progress has stopped where it grows by less than `GROWTH` to the end.
    good_at = 0 if is_lost else int(np.argmax(progress >= progress[-1] - GROWTH))
    lasting = [
        (span[0], rank, name)
        for rank, name in enumerate(SETBACKS)
        for span in found.get(name, ())
        if span[1] >= good_at
    ]
    decisive = next((name for name in ("fell_over", "left_the_rail", "never_moved", "almost") if name in at_end), None)
    if decisive is None and lasting:
        decisive = min(lasting)[2]
    elif decisive is None and "out_of_time_while_progressing" in at_end:
        decisive = "out_of_time_while_progressing"
    return summed_up(progress, found, decisive, solved=False, max_steps=max_steps)


def floor_progress_of(facts: FloorFacts, *, solved: bool) -> np.ndarray:
    """Return the progress up to each moment, 0 to 1, never falling. Shape: (moments,), float64."""
    # Nothing counts once success is lost; only the last moment of a solved episode has 1.
    counts = np.where(facts.lost, 0.0, facts.share.astype(np.float64))
    so_far = np.maximum.accumulate(counts.clip(0, 0.9999))
    if solved:
        so_far[-1] = 1.0
    return so_far


def ever(holds: np.ndarray) -> np.ndarray:
    """Return True from the first moment in which ``holds`` is true. Shape: (moments,), bool."""
    return np.logical_or.accumulate(holds)


def streak(holds: np.ndarray) -> np.ndarray:
    """Return for each moment the control steps since ``holds`` was last false, at most its index. Shape: (moments,)."""
    moments = np.arange(len(holds))
    if not holds.any():
        return np.zeros_like(moments)
    return moments - np.maximum.accumulate(np.where(holds, 0, moments))


def moved_from_start(pose: np.ndarray) -> np.ndarray:
    """True where a body's pose (moments, 7) is 10 cm over the floor or 0.2 rad from its start. Shape: (moments,)."""
    x, y = (pose[:, :2] - pose[:1, :2]).T
    half_turn_cos = abs((pose[:, 3:] * pose[:1, 3:]).sum(axis=1))
    return (x * x + y * y > ROBOT_MOVED_M * ROBOT_MOVED_M) | (half_turn_cos < math.cos(0.2 / 2))


# Read the events of an episode from its facts, and choose the one that explains its failure.

MOVED_M = 0.02
STRAYED_M = 0.05
LEFT = 1.3
STUCK_STEPS = 10
HOVER_STEPS = 20
SEEN_STEPS = 5
DELIVERED_WITHIN_STEPS = 10
_FLICKER = 4


def events_of(facts: Facts, *, solved: bool, max_steps: int) -> EpisodeEvents:
    """Return the events of an episode that succeeded or not within ``max_steps`` control steps."""
    progress = progress_of(facts, solved=solved)
    last, found = len(progress) - 1, _setbacks(facts)
    if solved:
        # A solved episode ends with its goal met, so an end in the last moment is not undone.
        found["success_undone"] = [span for span in found["success_undone"] if span[0] < last]
        return summed_up(progress, found, None, solved=True, max_steps=max_steps)

    # A failure also has events that describe its progress.
    found["almost"] = spans(facts.nearly.numpy(), gap=_FLICKER)
    if facts.arm.travel_m.numpy().max() < MOVED_M:
        found["never_moved"] = [(last, last)]
    if facts.hand_m.numpy().min() > facts.reach_m and not facts.taken.numpy().any():
        found["never_reached"] = [(last, last)]
    if last >= max_steps and progress[-1] - progress[last - round(LATE * last)] >= GROWTH:
        found["out_of_time_while_progressing"] = [(last, last)]
    found = {name: each for name, each in found.items() if each}

    # An observer would blame what is visible at the end first: an object beside the table, a hand that never arrived, a
    # goal nearly met.
    at_end = {name for name, each in found.items() if each[-1][1] >= last - _FLICKER}
    visible = ["fell_off_table", "lifted", "never_moved", "never_reached", "almost"]
    is_pushed = facts.carried is None and facts.strayed_m is not None  # not to be held
    if "wrong_object" in found:
        visible.remove("never_reached")
    if is_pushed:
        visible.append("pushed_away")
    decisive = next((name for name in visible if name in at_end), None)
    if decisive is not None:
        return summed_up(progress, found, decisive, solved=False, max_steps=max_steps)

    # Then it is the first setback that was not made up for by later progress or by a new grasp. Pushing away and being
    # stuck are also made up for by their end.
    carried_at = [] if facts.carried is None else np.flatnonzero(facts.carried.numpy()).tolist()
    good_at = max(int(np.argmax(progress >= progress[-1] - GROWTH)), *carried_at[-1:], 0)
    progressing = "out_of_time_while_progressing" in at_end
    lasting = [
        (span[0], rank, name)
        for rank, name in enumerate(SETBACKS)
        if name in (at_end if name in ("pushed_away", "stuck") else found)
        for span in found[name]
        if span[1] >= good_at and not (name == "reached_and_missed" and span[1] == last and progressing)
    ]
    if not is_pushed and any(name == "reached_and_missed" for _, _, name in lasting):
        # A failed grasp that pushes the object away counts as a failed grasp alone.
        lasting = [each for each in lasting if each[2] != "pushed_away"]
    if lasting:
        decisive = min(lasting)[2]
    elif progressing:
        decisive = "out_of_time_while_progressing"
    return summed_up(progress, found, decisive, solved=False, max_steps=max_steps)


def _setbacks(facts: Facts) -> dict[str, list[Span]]:
    """Return the spans of every setback, none for one that did not happen."""

    def during(holds: torch.Tensor | None, shortest: int = 1) -> list[Span]:
        return [] if holds is None else spans(holds.numpy(), shortest=shortest, gap=_FLICKER)

    hand_m, taken, met = facts.hand_m.numpy(), facts.taken.numpy(), facts.met.numpy()
    carried = None if facts.carried is None else facts.carried.numpy()
    last, reach_m, left_m = len(hand_m) - 1, facts.reach_m, LEFT * facts.reach_m

    # The hand holds another object, or visits one and never the right one.
    wrong_object = during(facts.wrong_object, shortest=3)
    if not wrong_object and facts.other_m is not None and not bool((facts.hand_m <= reach_m).any()):
        wrong_object = visits(facts.other_m.numpy(), reach=reach_m, left=left_m)

    # A visit fails if the hand leaves with nothing done, or waits in vain to the end. An object that slips before it
    # leaves the table was not taken; a pushed one has to arrive.
    done, begun = (met, taken) if carried is None else (carried, carried)
    if carried is None and facts.strayed_m is not None:
        # A pushed object that moves was reached, by the knuckles if not by the fingertips.
        hand_m = np.where(taken, np.minimum(hand_m, reach_m), hand_m)
    missed = []
    for first, end in visits(hand_m, reach=reach_m, left=left_m):
        left = end < last and not done[first : end + 1].any()
        waited = end == last and end - first >= HOVER_STEPS and not begun[first : end + 1].any()
        if left or waited:
            missed.append((first, end))

    # A carried object is dropped where it is released away from its destination. The height does not matter: a fall of
    # 1 cm and a placement in the wrong spot look alike.
    delivered = np.zeros_like(taken) if facts.delivered is None else facts.delivered.numpy()
    dropped = []
    for _, end in during(facts.carried):
        gone = np.flatnonzero(~taken[end + 1 :])
        if len(gone) and not delivered[(at := end + 1 + int(gone[0])) : at + DELIVERED_WITHIN_STEPS].any():
            dropped.append((at, at))

    return {
        "wrong_object": wrong_object,
        "wrong_order": during(facts.wrong_order, shortest=3),
        "fell_off_table": during(facts.off_table),
        "lifted": during(facts.lifted),
        "dropped": list(dict.fromkeys(dropped)),
        "pushed_away": during(None if facts.strayed_m is None else facts.strayed_m > STRAYED_M),
        "reached_and_missed": missed,
        "success_undone": ends(met, shortest=SEEN_STEPS, gap=1),
        "stuck": spans(facts.arm.blocked.numpy() & ~met, shortest=STUCK_STEPS, gap=1),
    }

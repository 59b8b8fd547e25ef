"""Read the events of an episode from its facts, and decide which of them its failure is put down to."""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from isaaclab_arena.environments.events.endings import last_growth, ran_out_of_time, summed_up
from isaaclab_arena.environments.events.facts import Facts, progress_of
from isaaclab_arena.environments.events.spans import Span, ends, spans, visits
from isaaclab_arena.interfaces.episode import SETBACKS, EpisodeEvents

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

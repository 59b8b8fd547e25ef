"""Read the events of an episode from its facts, and decide which of them its failure is put down to."""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from isaaclab_arena.environments.events.facts import Facts, progress_of
from isaaclab_arena.environments.events.spans import Span, spans, visits
from isaaclab_arena.interfaces.episode import EVENTS, SETBACKS, SHORTFALLS, SOLVED_AT_START, EpisodeEvents

MOVED_M = 0.02
STRAYED_M = 0.05
LEFT = 1.3
STUCK_STEPS = 10
HOVER_STEPS = 20
DELIVERED_WITHIN_STEPS = 10
GROWTH = 0.02
LATE = 0.2
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
    if bool(facts.met[0]):
        found[SOLVED_AT_START] = [(0, 0)]
    if solved:
        # The goal was met to the end.
        found["success_undone"] = [span for span in found["success_undone"] if span[0] < len(progress) - 1]
    else:
        found |= _shortfalls(facts, progress, max_steps)
    seen = {name: (found[name][0][0], len(found[name])) for name in EVENTS if found.get(name)}
    decisive = None if solved else _decisive(found, progress)
    return EpisodeEvents(progress=round(float(progress[-1]), 4), decisive=decisive, seen=seen)


def _decisive(found: Mapping[str, list[Span]], progress: np.ndarray) -> str | None:
    """Return the first setback that lasts beyond the last growth of progress, or else what the episode fell short of.

    What came before that growth was made good. Of setbacks of one moment the first in `SETBACKS` counts.
    """
    grown = int(np.argmax(progress >= progress[-1] - GROWTH))
    lasting = [(span[0], rank, name) for rank, name in enumerate(SETBACKS) for span in found[name] if span[1] >= grown]
    if lasting and "never_moved" not in found:
        return min(lasting)[2]
    return next((name for name in SHORTFALLS if found.get(name)), None)


def _shortfalls(facts: Facts, progress: np.ndarray, max_steps: int) -> dict[str, list[Span]]:
    """Return what says how far an episode came that did not succeed."""
    last = len(progress) - 1
    at_end = [(last, last)]
    found: dict[str, list[Span]] = {"almost": spans(_numpy(facts.nearly), gap=_FLICKER)}
    if float(facts.arm.travel_m.max()) < MOVED_M:
        found["never_moved"] = at_end
    if float(facts.hand_m.min()) > facts.reach_m and not bool(facts.taken.any()):
        found["never_reached"] = at_end
    late = round(LATE * last)
    if last >= max_steps and progress[-1] - progress[last - late] >= GROWTH:
        found["out_of_time_while_progressing"] = at_end
    return {name: each for name, each in found.items() if each}


def _while(field: str, shortest: int = 1) -> Callable[[Facts], list[Span]]:
    def read(facts: Facts) -> list[Span]:
        holds = getattr(facts, field)
        return [] if holds is None else spans(_numpy(holds), shortest=shortest, gap=_FLICKER)

    return read


def _missed(facts: Facts) -> list[Span]:
    """Find the visits from which the hand left without having taken anything, or stayed to the end for nothing.

    What slips from the fingers before it has left the table was not taken.
    """
    distance, taken = _numpy(facts.hand_m), _numpy(facts.taken if facts.carried is None else facts.carried)
    last = len(distance) - 1
    found = []
    for first, end in visits(distance, reach=facts.reach_m, left=LEFT * facts.reach_m):
        waited = end < last or end - first >= HOVER_STEPS
        if waited and not taken[first : end + 1].any():
            found.append((first, end))
    return found


def _dropped(facts: Facts) -> list[Span]:
    """Find where something that was carried was let go of and does not lie where it belongs."""
    if facts.carried is None:
        return []
    taken = _numpy(facts.taken)
    delivered = np.zeros_like(taken) if facts.delivered is None else _numpy(facts.delivered)
    found = []
    for _, last in spans(_numpy(facts.carried), gap=_FLICKER):
        after = slice(last + 1, last + 1 + DELIVERED_WITHIN_STEPS)
        put_down = last + 1 >= len(taken) or taken[last + 1]
        if not put_down and not delivered[after].any():
            found.append((last + 1, last + 1))
    return found


def _pushed_away(facts: Facts) -> list[Span]:
    return [] if facts.strayed_m is None else spans(_numpy(facts.strayed_m > STRAYED_M), gap=_FLICKER)


def _undone(facts: Facts) -> list[Span]:
    """Find where the goal had been met for a moment and was not any more."""
    met = _numpy(facts.met)
    return [(last + 1, last + 1) for _, last in spans(met, shortest=2, gap=1) if last + 1 < len(met)]


def _stuck(facts: Facts) -> list[Span]:
    """Find where the arm stood against something for half a second, other than where it was to press against it."""
    return spans(_numpy(facts.arm.blocked & ~facts.met), shortest=STUCK_STEPS, gap=1)


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.numpy()


_SETBACKS: Mapping[str, Callable[[Facts], list[Span]]] = {
    "wrong_object": _while("wrong_object", shortest=3),
    "wrong_order": _while("wrong_order", shortest=3),
    "fell_off_table": _while("off_table"),
    "dropped": _dropped,
    "pushed_away": _pushed_away,
    "reached_and_missed": _missed,
    "success_undone": _undone,
    "stuck": _stuck,
}

"""Compare each changed arm of a job with its benign arm, episode by episode."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from isaaclab_arena.analysis.arms import Arm, EpisodeColumns
from isaaclab_arena.analysis.families import holm
from isaaclab_arena.analysis.paired_rates import paired_difference_interval, sign_flip_p
from isaaclab_arena.config.expansion.robustness import AXIS_LABEL, KEY, LEVEL_LABEL
from isaaclab_arena.environments.variations.axes import ALL_AXES, AXES, BENIGN
from isaaclab_arena.environments.variations.starts import differs_only_by
from isaaclab_arena.results.clusters import design_effect, draws_of
from isaaclab_arena.results.statistics import Interval
from isaaclab_arena.results.stopping.counts import PairCounts

_ENABLED = ".enabled"


@dataclass(frozen=True, kw_only=True)
class Drop:
    """What a level of an axis costs. Rates and drops are 0 to 1.

    Attributes:
        job: The job as the job file calls it.
        axis: The axis; ``benign`` for the arm that all others are compared with.
        level: The level, 0 for the benign arm.
        libero_plus: The axis of LIBERO-plus that it belongs to, None where that has none.
        episodes: Episodes that say whether they succeeded.
        distinct: How many different conditions they started from.
        successes: Those that did.
        interval: Wilson interval of their share, None without episodes.
        counts: How the pairs came out: first the benign episode, second the changed one. None for the benign arm.
        drop: The benign rate less the changed one, over the pairs; None where there is none.
        drop_interval: Its interval (Newcombe's method 10).
        mid_p: Two-sided mid-p value of McNemar's test.
        holm_p: The same, adjusted for all axes of the job at this level.
        left_out: Episodes without a pair: an error on either side, no counterpart, or conditions that differ in what
            the axis does not change.
    """

    job: str
    axis: str
    level: int
    libero_plus: str | None
    episodes: int
    distinct: int
    successes: int
    interval: Interval | None
    counts: PairCounts | None = None
    drop: float | None = None
    drop_interval: Interval | None = None
    mid_p: float | None = None
    holm_p: float | None = None
    left_out: int = 0

    @property
    def rate(self) -> float | None:
        """Share of the episodes that succeeded, None without episodes."""
        return self.successes / self.episodes if self.episodes else None


def drops(arms: Iterable[Arm]) -> tuple[Drop, ...]:
    """Return what each level of each axis costs, job by job, the benign arm first; empty where no job has arms.

    Args:
        arms: The jobs of a run.
    """
    jobs: dict[str, list[Arm]] = {}
    for arm in arms:
        if KEY in arm.entry.config.labels:
            jobs.setdefault(arm.entry.config.labels[KEY], []).append(arm)
    return tuple(drop for job, own in jobs.items() for drop in _of_job(job, own))


def _of_job(job: str, arms: Sequence[Arm]) -> list[Drop]:
    benign = next((arm for arm in arms if arm.entry.config.labels[AXIS_LABEL] == BENIGN), None)
    found = [_drop(job, arm, None if arm is benign else benign) for arm in arms]
    adjusted: dict[tuple[str, int], float] = {}
    for level in {each.level for each in found}:
        family = [each for each in found if each.level == level and each.mid_p is not None]
        p_values = holm([each.mid_p for each in family if each.mid_p is not None])
        adjusted |= {(each.axis, level): value for each, value in zip(family, p_values, strict=True)}
    return [replace(each, holm_p=adjusted.get((each.axis, each.level))) for each in found]


def _drop(job: str, arm: Arm, benign: Arm | None) -> Drop:
    labels = arm.entry.config.labels
    axis, scored = labels[AXIS_LABEL], arm.episodes.scored
    alone = Drop(
        job=job,
        axis=axis,
        level=int(labels[LEVEL_LABEL]),
        libero_plus=AXES[axis].libero_plus if axis in AXES else None,
        episodes=len(scored),
        distinct=scored.num_distinct,
        successes=scored.successes,
        interval=scored.wilson(),
    )
    if benign is None:
        return alone
    benign_pairs, pairs = _pairs(benign, arm, axis)
    before, now = benign_pairs.success > 0, pairs.success > 0
    counts = PairCounts(
        both=int((before & now).sum()),
        only_first=int((before & ~now).sum()),
        only_second=int((~before & now).sum()),
        neither=int((~before & ~now).sum()),
    )
    differences = benign_pairs.success - pairs.success
    effect = design_effect(differences, benign_pairs.began.tolist())
    return replace(
        alone,
        counts=counts,
        drop=counts.difference,
        drop_interval=paired_difference_interval(counts, design_effect=effect),
        mid_p=sign_flip_p(differences, draws_of(benign_pairs.began))[1] if counts.total else None,
        left_out=len(arm.episodes) - counts.total,
    )


def _pairs(benign: Arm, arm: Arm, axis: str) -> tuple[EpisodeColumns, EpisodeColumns]:
    """Return the episodes of pairs without an error, benign and changed."""
    one, other = benign.episodes, arm.episodes
    _, at_one, at_other = np.intersect1d(one.index, other.index, assume_unique=True, return_indices=True)
    one, other = one.at(at_one), other.at(at_other)
    keys = _turned_on(benign, arm)
    is_axis = _is_axis(axis, keys)
    alike = [
        is_axis and differs_only_by(json.loads(before), json.loads(now), keys)
        for before, now in zip(one.conditions, other.conditions, strict=True)
    ]
    kept = np.array(alike, bool) & np.isfinite(one.success) & np.isfinite(other.success)
    return one.at(kept), other.at(kept)


def _turned_on(benign: Arm, arm: Arm) -> frozenset[str]:
    """Return the variations that are on in an arm and not in its benign one."""
    before, now = (
        {key.removesuffix(_ENABLED) for key, value in each.entry.variations.items() if key.endswith(_ENABLED) and value}
        for each in (benign, arm)
    )
    return frozenset(now - before)


def _is_axis(axis: str, keys: Iterable[str]) -> bool:
    """Return whether variations are what an axis turns on, or for all axes, what any of them does."""
    axes = [own for name, own in AXES.items() if axis in (name, ALL_AXES)]
    return all(any(own.owns(key) for own in axes) for key in keys)

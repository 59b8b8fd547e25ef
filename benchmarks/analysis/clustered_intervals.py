"""Measure the coverage of intervals and the errors of tests for episodes that share conditions.

Every figure of the chosen intervals and tests has a bar. Ends with 1 if one misses it.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from benchmarks.analysis.decision_quality import log_e_values
from benchmarks.harness.measure import Page, PageOptions, Table, run
from isaaclab_arena.results.statistics import (
    Interval,
    ScoredEpisodes,
    design_effect,
    mcnemar_mid_p,
    mean_of_tasks,
    mean_rate_interval,
    paired_difference_interval,
    sign_flip_p,
    wilson_interval,
)
from isaaclab_arena.results.stopping import PairCounts

ALPHA = 0.05
RATES = (0.1, 0.3, 0.5, 0.7, 0.9)
LEAST, LEAST_OF_ONE_RATE = 0.94, 0.90
MOST_FOUND = 0.07


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the simulation."""

    repeats: int = 1_000  # Evaluations of each setting and success rate.
    resamples: int = 400  # Resamples of each bootstrap.
    seed: int = 0  # Seed of the episodes.


class Coverage:
    """Counts intervals that hold a truth, and their widths, by the name of the interval."""

    def __init__(self) -> None:
        self._held: dict[str, list[bool]] = {}
        self._widths: dict[str, list[float]] = {}

    def add(self, name: str, interval: Interval | None, truth: float) -> None:
        """Count an interval."""
        assert interval is not None
        self._held.setdefault(name, []).append(interval.low - 1e-12 <= truth <= interval.high + 1e-12)
        self._widths.setdefault(name, []).append(interval.high - interval.low)

    def share(self, name: str) -> float:
        """Return the share of intervals that hold the truth."""
        return float(np.mean(self._held[name]))

    def keeps(self, name: str, least: float = LEAST) -> bool:
        """Return if the share reaches ``least`` within its standard errors."""
        return self.share(name) + 2.0 * np.sqrt(ALPHA * (1.0 - ALPHA) / len(self._held[name])) >= least

    def width(self, name: str) -> float:
        """Return the mean width."""
        return float(np.mean(self._widths[name]))


def latent(shape: tuple[int, ...], correlation: float, generator: np.random.Generator) -> np.ndarray:
    """Return normal numbers with a correlation along the last axis."""
    common = generator.standard_normal((*shape[:-1], 1))
    return np.sqrt(correlation) * common + np.sqrt(1.0 - correlation) * generator.standard_normal(shape)


def played(rate: float, shape: tuple[int, int, int], alike: float, generator: np.random.Generator) -> np.ndarray:
    """Return successes, of which two of a condition correlate. Shape: (evaluations, conditions, episodes)."""
    if alike in (0.0, 1.0):
        own = generator.random(shape[:2]) < rate if alike else np.full(shape[:2], rate)
    else:
        sharpness = (1.0 - alike) / alike
        own = generator.beta(rate * sharpness, (1.0 - rate) * sharpness, shape[:2])
    return (generator.random(shape) < own[:, :, None]).astype(float)


def bootstrap(success: np.ndarray, resamples: int, generator: np.random.Generator) -> Interval:
    """Return the percentile interval of the rate over resampled conditions. Shape: (conditions, episodes)."""
    drawn = generator.multinomial(len(success), np.full(len(success), 1.0 / len(success)), size=resamples)
    low, high = np.quantile(drawn @ success.mean(axis=1) / len(success), [ALPHA / 2, 1 - ALPHA / 2])
    return Interval(low=float(low), high=float(high))


def rates_table(options: Options, generator: np.random.Generator) -> tuple[Table, bool]:
    """Return the coverage of intervals of a rate, and if the chosen ones keep their bar."""
    names = ("all episodes", "conditions alone", "bootstrap of conditions", "effective number")
    table = Table("conditions", "episodes of each", "alike", *(f"{each}, %" for each in names), "width", words=0)
    kept = True
    for conditions, episodes in ((5, 2), (5, 5), (5, 20), (20, 2), (20, 5), (20, 20), (50, 2), (50, 5), (50, 20)):
        keys = [str(index) for index in np.repeat(np.arange(conditions), episodes)]
        for alike in (0.0, 0.2, 0.5, 1.0):
            found = Coverage()
            for rate in RATES:
                own = Coverage()
                for success in played(rate, (options.repeats, conditions, episodes), alike, generator):
                    scored = ScoredEpisodes(success=success.ravel(), conditions=keys)
                    intervals = (
                        wilson_interval(scored.successes, len(scored)),
                        wilson_interval(scored.successes, len(scored), design_effect=float(episodes)),
                        bootstrap(success, options.resamples, generator),
                        scored.wilson(),
                    )
                    for name, interval in zip(names, intervals, strict=True):
                        found.add(name, interval, rate)
                    own.add("", intervals[-1], rate)
                kept = kept and own.keeps("", LEAST_OF_ONE_RATE)
            kept = kept and found.keeps(names[-1])
            width = f"{100 * found.width(names[-1]) / found.width(names[1]):.0f} %"
            table.add(conditions, episodes, f"{alike:g}", *(f"{100 * found.share(each):.1f}" for each in names), width)
    return table, kept


def suites_table(options: Options, generator: np.random.Generator) -> tuple[Table, bool]:
    """Return the coverage of intervals of a mean of tasks with common seeds, and if the chosen ones keep the bar."""
    table = Table("tasks", "episodes of each", "alike", "tasks apart, %", "effective number, %", "width", words=0)
    kept = True
    for tasks, episodes in ((4, 20), (10, 10), (10, 50), (50, 10)):
        for alike in (0.0, 0.05, 0.2, 0.5, 1.0):
            found = Coverage()
            for middle, spread in ((0.3, 0.0), (0.6, 0.0), (0.6, 1.0), (0.9, 0.7)):
                limits = ndtri(middle) + spread * generator.standard_normal(tasks)
                truth = float(ndtr(limits).mean())
                numbers = latent((max(1, options.repeats // 2), episodes, tasks), alike, generator)
                for success in (numbers < limits).astype(float):
                    # A seed is the same in every environment.
                    parts = [
                        ScoredEpisodes(success=each, conditions=[f"{at}\tseed {index}" for index in range(episodes)])
                        for at, each in enumerate(success.T)
                    ]
                    apart = mean_rate_interval([(part.successes, len(part)) for part in parts])
                    found.add("apart", apart, truth)
                    found.add("chosen", mean_of_tasks(parts), truth)
            kept = kept and found.keeps("chosen")
            cells = (f"{100 * found.share(each):.1f}" for each in ("apart", "chosen"))
            width = f"{100 * found.width('chosen') / found.width('apart'):.0f} %"
            table.add(tasks, episodes, f"{alike:g}", *cells, width)
    return table, kept


def pairs_table(options: Options, generator: np.random.Generator) -> tuple[Table, bool]:
    """Return the coverage of intervals of a difference, the false findings of tests, and if the bars are kept."""
    table = Table(
        *("conditions", "pairs of each", "alike", "interval of all pairs, %", "chosen, %"),
        *("McNemar finds, %", "exchanged conditions find, %"),
        words=0,
    )
    kept = True
    for conditions, episodes in ((5, 5), (20, 2), (20, 5), (20, 20), (50, 5)):
        draws = np.repeat(np.arange(conditions), episodes)
        keys = [str(each) for each in draws]
        for alike in (0.2, 0.6, 1.0):
            found, mcnemar, exchanged = Coverage(), [], []
            for first, second in ((0.5, 0.5), (0.7, 0.7), (0.9, 0.7), (0.95, 0.85)):
                shape = (max(1, options.repeats // 2), conditions, episodes)
                # Both policies share half of a condition's influence.
                common = latent((*shape[:2], 2), 0.5, generator)
                sides = [
                    np.sqrt(alike) * common[..., side, None] + np.sqrt(1.0 - alike) * generator.standard_normal(shape)
                    for side in range(2)
                ]
                for one, other in zip(sides[0] < ndtri(first), sides[1] < ndtri(second), strict=True):
                    a, b = one.ravel(), other.ravel()
                    counts = PairCounts(
                        both=int((a & b).sum()),
                        only_first=int((a & ~b).sum()),
                        only_second=int((~a & b).sum()),
                        neither=int((~a & ~b).sum()),
                    )
                    differences = a.astype(float) - b
                    effect = design_effect(differences, keys)
                    found.add("all", paired_difference_interval(counts), first - second)
                    chosen = paired_difference_interval(counts, design_effect=effect)
                    found.add("chosen", chosen, first - second)
                    if first == second:
                        mcnemar.append(mcnemar_mid_p(counts.only_first, counts.only_second) <= ALPHA)
                        exchanged.append(sign_flip_p(differences, draws)[1] <= ALPHA)
            kept = kept and found.keeps("chosen") and float(np.mean(exchanged)) <= MOST_FOUND
            shares = (found.share("all"), found.share("chosen"), float(np.mean(mcnemar)), float(np.mean(exchanged)))
            table.add(conditions, episodes, f"{alike:g}", *(f"{100 * share:.1f}" for share in shares))
    return table, kept


def decisions_table(options: Options, generator: np.random.Generator) -> tuple[Table, bool]:
    """Return the share of false decisions between equal policies on repeated conditions, and if it keeps the bar."""
    table = Table("conditions", "alike", "every pair bet on, %", "each condition bet on once, %", words=0)
    kept, looks = True, 500
    for conditions in (2, 10, 50, 500):
        for alike in (0.2, 1.0):
            times = looks // conditions
            wins = [played(0.5, (options.repeats, conditions, times), alike, generator) for _ in range(2)]
            # In turns: the first episode of each condition comes before the second of any.
            first, second = (each.transpose(0, 2, 1).reshape(options.repeats, looks) for each in wins)
            won, lost = (first > second).cumsum(axis=1), (first < second).cumsum(axis=1)
            decided = log_e_values(won, lost) >= -np.log(ALPHA)
            once = decided[:, :conditions].any(axis=1).mean()
            kept = kept and once <= ALPHA
            table.add(conditions, f"{alike:g}", f"{100 * decided.any(axis=1).mean():.1f}", f"{100 * once:.1f}")
    return table, kept


def main(options: Options) -> int:
    """Simulate, write the page, and return 1 if a chosen interval or test misses its bar."""
    page = Page("clustered_intervals", "Intervals where episodes share conditions", options, "numpy", "scipy")
    generator = np.random.default_rng(options.seed)
    texts = {
        rates_table: f"""\
## One rate

{options.repeats:,} evaluations for each of the success rates {", ".join(f"{rate:g}" for rate in RATES)}. "alike" is the
correlation of two episodes of one condition: 0 where only the policy's noise decides, 1 where it draws none. The first
two intervals are Wilson's at the number of episodes and of conditions, the third is a percentile bootstrap with
{options.resamples} resamples. The last is Wilson's at the effective number of episodes, which is the chosen one. It
must hold the rate in {100 * LEAST:g} % over all rates and in {100 * LEAST_OF_ONE_RATE:g} % for each, as far as so many
evaluations tell. "width" compares it with Wilson's at the number of conditions.""",
        suites_table: """\
## Suites whose tasks share their seeds

"alike" is the correlation of what decides in two tasks with the same seed. The first interval takes tasks for
independent of each other. "width" compares the chosen one with that.""",
        pairs_table: f"""\
## Differences

Both policies share half of a condition's influence. Tests are those of equal policies, at 5 %; the chosen one
exchanges the policies of whole conditions, and may find a difference in {100 * MOST_FOUND:g} % at most.""",
        decisions_table: """\
## Decisions while a run goes on

Equal policies, looked at after every pair up to 500; 5 % may be decided.""",
    }
    results = [(text, *table(options, generator)) for table, text in texts.items()]
    page.write(*(each for text, table, _ in results for each in (text, table)))
    return 0 if all(kept for *_, kept in results) else 1


if __name__ == "__main__":
    run(main, Options)

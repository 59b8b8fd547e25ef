"""Measure the errors of comparisons and decisions, and the time to a decision, over simulated episodes.

Every figure has a bar. Ends with 1 if one misses it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
from scipy.special import betaln, gammaln, logsumexp, stdtrit, xlogy

from benchmarks.harness.measure import Page, PageOptions, Table, run
from isaaclab_arena.config.schema import Question
from isaaclab_arena.results.statistics import holm, mcnemar_exact_p, mcnemar_mid_p, pair_chances
from isaaclab_arena.results.stopping import (
    PRIOR,
    SHARES,
    Answer,
    BlockCounts,
    RateCounts,
    anytime_interval,
    decided,
    log_e_value_of_blocks,
)

ALPHA = 0.05
ONLY_FIRST, ONLY_SECOND, BOTH, NEITHER = range(4)


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the simulation."""

    repeats: int = 10_000  # Comparisons, families and streams of each figure.
    looks: int = 500  # Pairs of each stream, with a look after each.
    seed: int = 0  # Seed of the episodes.


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Two policies. The agreement is that of `pair_chances`, a correlation where the rates are equal."""

    first: float
    second: float
    agreement: float

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.first:g} against {self.second:g}, correlation {self.agreement:g}"

    @property
    def difference(self) -> float:
        """The first rate less the second."""
        return self.first - self.second


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure and its bar: a share unless it has a unit."""

    what: str
    setting: str
    value: float
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "%"

    @property
    def is_kept(self) -> bool:
        """The figure keeps its bar."""
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    def cells(self) -> tuple[str, str, str, str, str]:
        """Return a line of the table."""
        scale = 100.0 if self.unit == "%" else 1.0
        ends = (("at least", self.at_least), ("at most", self.at_most))
        bar = ", ".join(f"{words} {scale * end:g}" for words, end in ends if end is not None)
        value = f"{scale * self.value:.{2 if self.unit == '%' else 1}f} {self.unit}"
        return self.what, self.setting, value, f"{bar} {self.unit}", "yes" if self.is_kept else "NO"


def outcomes(setting: Setting, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Return drawn outcomes of pairs: `ONLY_FIRST`, `ONLY_SECOND`, `BOTH` or `NEITHER`, in the given shape."""
    chances = pair_chances(setting.first, setting.second, agreement=setting.agreement)
    both = setting.first - chances.only_first
    ends = np.cumsum([chances.only_first, chances.only_second, both])
    return np.searchsorted(ends, generator.random(shape), side="right").astype(np.int8)


def rejected_by(
    p_value: Callable[[int, int], float], setting: Setting, *, pairs: int, repeats: int, generator: np.random.Generator
) -> float:
    """Return the share of tests of a fixed number of pairs that find a difference at 5 %."""
    drawn = outcomes(setting, (repeats, pairs), generator)
    wins, losses = ((drawn == which).sum(axis=1) for which in (ONLY_FIRST, ONLY_SECOND))
    counts, times = np.unique(np.stack([wins, losses]), axis=1, return_counts=True)
    found = [p_value(int(won), int(lost)) <= ALPHA for won, lost in counts.T]
    return float(times[found].sum() / repeats)


def families_with_a_rejection(
    rate: float, *, policies: int, pairs: int, repeats: int, against_first: bool, generator: np.random.Generator
) -> float:
    """Return the share of families of equal policies with any difference after Holm's adjustment."""
    family = [(0, other) for other in range(1, policies)] if against_first else list(combinations(range(policies), 2))
    known: dict[tuple[int, int], float] = {}
    found = 0
    for _ in range(repeats):
        decided = generator.random(pairs) < 0.5
        alike = generator.random(pairs) < rate
        success = np.where(decided, alike, generator.random((policies, pairs)) < rate)
        p_values = []
        for one, other in family:
            counts = int((success[one] & ~success[other]).sum()), int((~success[one] & success[other]).sum())
            p_values.append(known.setdefault(counts, mcnemar_mid_p(*counts)))
        found += min(holm(p_values)) <= ALPHA
    return found / repeats


@dataclass(frozen=True, kw_only=True)
class Stops:
    """Decisions of streams, with a look after every episode."""

    decided: float  # Share of the streams.
    mean_episodes: float  # Mean number of episodes until they were, over these.


def stops(evidence: np.ndarray) -> Stops:
    """Return the moments at which evidence, a logarithm, reaches 1 / alpha. Shape: (streams, looks)."""
    reached = evidence >= -np.log(ALPHA)
    decided = reached.any(axis=1)
    first = reached.argmax(axis=1)[decided] + 1
    return Stops(decided=float(decided.mean()), mean_episodes=float(first.mean()) if decided.any() else np.inf)


@dataclass(frozen=True, kw_only=True)
class Streams:
    """Streams of pairs, counted after every pair. Shapes: (number of streams, number of looks)."""

    wins: np.ndarray
    losses: np.ndarray
    alike: np.ndarray


def streams(setting: Setting, *, looks: int, repeats: int, generator: np.random.Generator) -> Streams:
    """Return streams of pairs of two policies."""
    drawn = outcomes(setting, (repeats, looks), generator)
    wins, losses = (np.cumsum(drawn == which, axis=1) for which in (ONLY_FIRST, ONLY_SECOND))
    return Streams(wins=wins, losses=losses, alike=np.arange(1, looks + 1) - wins - losses)


def log_e_values(wins: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Return `log_e_value` of many streams. Shapes: (num_streams,)."""
    return log_e_values_of_rate(wins, losses, 0.5)


def log_e_values_of_rate(successes: np.ndarray, failures: np.ndarray, rate: float) -> np.ndarray:
    """Return `log_e_value_of_rate` of many streams. Shapes: (num_streams,)."""
    mixture = betaln(PRIOR + successes, PRIOR + failures) - betaln(PRIOR, PRIOR)
    return mixture - xlogy(successes, rate) - xlogy(failures, 1.0 - rate)


def log_e_values_of_difference(
    wins: np.ndarray, losses: np.ndarray, alike: np.ndarray, difference: float
) -> np.ndarray:
    """Return `log_e_value_of_difference` of many streams. Shapes: (num_streams,)."""
    # `wins` and `losses` are pairs in which only the first or only the second policy succeeds; `alike` have equal
    # outcomes.
    total = wins + losses + alike
    mixture = gammaln(PRIOR + wins) + gammaln(PRIOR + losses) + gammaln(PRIOR + alike) - 3.0 * gammaln(PRIOR)
    mixture = mixture + gammaln(3.0 * PRIOR) - gammaln(3.0 * PRIOR + wins + losses + alike)

    # The likeliest distribution whose first probability minus the second is `difference`: the derivative of its log
    # likelihood by the second probability is zero at the larger root of a quadratic.
    linear = wins * (1.0 - difference) + losses * (1.0 - 3.0 * difference) - 2.0 * alike * difference
    constant = losses * difference * (1.0 - difference)
    rooted = np.sqrt(np.maximum(linear * linear + 8.0 * total * constant, 0.0))
    root = (linear + rooted) / (4.0 * np.maximum(total, 1))
    second = np.minimum(np.maximum(root, max(0.0, -difference)), (1.0 - difference) / 2.0)
    first, neither = np.maximum(second + difference, 0.0), np.maximum(1.0 - 2.0 * second - difference, 0.0)
    return mixture - (xlogy(wins, first) + xlogy(losses, second) + xlogy(alike, neither))


def coverage_of_rates(rate: float, *, looks: int, repeats: int, generator: np.random.Generator) -> float:
    """Return the share of streams with a true rate in the anytime interval at every look."""
    successes = np.cumsum(generator.random((repeats, looks)) < rate, axis=1)
    evidence = log_e_values_of_rate(successes, np.arange(1, looks + 1) - successes, rate)
    # Only intervals at looks with evidence of 1 / alpha against the truth can leave it out.
    doubted = evidence >= -np.log(ALPHA) - 1e-9
    missed = 0
    for stream in np.flatnonzero(doubted.any(axis=1)).tolist():
        looked = np.flatnonzero(doubted[stream]).tolist()
        counts = (RateCounts(successes=int(successes[stream, look]), trials=look + 1) for look in looked)
        found = (anytime_interval(each, alpha=ALPHA) for each in counts)
        missed += any(not each.low <= rate <= each.high for each in found)
    return 1.0 - missed / len(evidence)


def fixed_numbers(options: Options, generator: np.random.Generator) -> Iterator[Figure]:
    """Yield the shares of tests that find a difference between equal policies."""
    # With few pairs that differ, a test of counts cannot come near its level from below.
    sparse, usual = 0.0, 0.04
    for rate, agreement, pairs, least in (
        (0.5, 0.0, 50, usual),
        (0.7, 0.0, 100, usual),
        (0.7, 0.5, 200, usual),
        (0.9, 0.0, 200, usual),
        (0.9, 0.5, 500, usual),
        (0.95, 0.5, 50, sparse),
    ):
        setting = Setting(first=rate, second=rate, agreement=agreement)
        for name, p_value, at_least in (("mid-p", mcnemar_mid_p, least), ("exact", mcnemar_exact_p, 0.0)):
            found = rejected_by(p_value, setting, pairs=pairs, repeats=options.repeats, generator=generator)
            what = f"{name}: finds a difference that is not there"
            words = f"{setting}, {pairs} pairs"
            yield Figure(what=what, setting=words, value=found, at_least=at_least or None, at_most=0.055)
    for rate in (0.5, 0.8):
        for against_first, name, policies in ((True, "10 against a baseline", 11), (False, "each pair of 5", 5)):
            found = families_with_a_rejection(
                rate, policies=policies, pairs=100, repeats=options.repeats, against_first=against_first,
                generator=generator,
            )  # fmt: skip
            what, setting = "Holm: finds any that is not there", f"{name}, all {rate:g}, 100 pairs"
            yield Figure(what=what, setting=setting, value=found, at_most=ALPHA)


def decisions(options: Options, generator: np.random.Generator) -> Iterator[Figure]:
    """Yield the shares of wrong stops of a running evaluation, and the number of pairs to a right one."""
    many = {"looks": options.looks, "repeats": options.repeats, "generator": generator}
    for rate, agreement in ((0.5, 0.0), (0.5, 0.5), (0.9, 0.0), (0.9, 0.5)):
        setting = Setting(first=rate, second=rate, agreement=agreement)
        drawn = streams(setting, **many)
        found = stops(log_e_values(drawn.wins, drawn.losses))
        what = f"better or worse: decided within {options.looks} pairs of equal policies"
        yield Figure(what=what, setting=str(setting), value=found.decided, at_most=ALPHA)
    for first, second, agreement in ((0.75, 0.8, 0.5), (0.9, 0.95, 0.0)):
        setting = Setting(first=first, second=second, agreement=agreement)
        drawn = streams(setting, **many)
        found = stops(log_e_values_of_difference(drawn.wins, drawn.losses, drawn.alike, setting.difference))
        what = f"no worse by 5 points: decided within {options.looks} pairs where it is 5 points worse"
        yield Figure(what=what, setting=str(setting), value=found.decided, at_most=ALPHA)
    for first, second, agreement, most in ((0.9, 0.7, 0.5, 60.0), (0.9, 0.7, 0.0, 80.0), (0.7, 0.5, 0.5, 80.0)):
        setting = Setting(first=first, second=second, agreement=agreement)
        drawn = streams(setting, **many)
        found = stops(log_e_values(drawn.wins, drawn.losses))
        what = f"better or worse: decided within {options.looks} pairs"
        yield Figure(what=what, setting=str(setting), value=found.decided, at_least=0.99)
        what = "better or worse: mean number of pairs until then"
        yield Figure(what=what, setting=str(setting), value=found.mean_episodes, at_most=most, unit="pairs")


def intervals(options: Options, generator: np.random.Generator) -> Iterator[Figure]:
    """Yield the shares of anytime intervals that hold the truth at every look."""
    many = {"looks": options.looks, "repeats": options.repeats, "generator": generator}
    for rate in (0.05, 0.5, 0.9):
        held = coverage_of_rates(rate, **many)
        what = f"anytime interval of a rate: holds it at all {options.looks} looks"
        yield Figure(what=what, setting=f"{rate:g}", value=held, at_least=1.0 - ALPHA)


SUITE_LOOKS = 50
"""Blocks of the simulated suites: the episodes of each task that LIBERO plays."""


def log_e_values_of_blocks(outcomes: np.ndarray, *, apart: bool) -> np.ndarray:
    """Return `log_e_value_of_blocks` against equal means after each block. Shapes: (num_streams, looks)."""
    # `outcomes` are differences, shape (num_streams, looks, num_tasks); `apart` if each task has a draw of its own.
    shares, evidence = np.array(SHARES), []
    bets = outcomes if apart else outcomes.mean(axis=2, keepdims=True)
    wealth = np.zeros((len(bets), len(shares)))
    for look in range(bets.shape[1]):
        for bet in bets[:, look].T:
            wealth += np.log1p((2.0 * shares - 1.0) * bet[:, None])
        evidence.append(logsumexp(wealth, axis=1) - np.log(len(shares)))
    return np.stack(evidence, axis=1)


def suites(options: Options, generator: np.random.Generator) -> Iterator[Figure]:
    """Yield the shares of wrong and of right stops about the means of unequal tasks, and the blocks until then."""
    rising, repeats = np.linspace(0.0, 1.0, 10), options.repeats // 2
    usual = np.linspace(0.05, 0.85, 10)
    for name, first, second in (
        ("10 tasks of 0 to 1, the other way round", rising, rising[::-1]),
        ("10 tasks of 0 to 1, the same", rising, rising),
        ("3 tasks of 0, 0.5, 1 against 0.5 each", np.array([0.0, 0.5, 1.0]), np.full(3, 0.5)),
        ("10 tasks, 10 points better", usual + 0.1, usual),
        ("10 tasks, 20 points better", np.minimum(usual + 0.2, 1.0), usual),
    ):
        is_null = np.isclose(first.mean(), second.mean())
        for apart in (True, False):
            # Each task has a draw of its own, or one decides for all of them.
            drawn = generator.random((repeats, SUITE_LOOKS, 2, len(first) if apart or not is_null else 1))
            success = drawn < np.stack([first, second])
            outcomes = success[:, :, 0].astype(float) - success[:, :, 1]
            found = stops(log_e_values_of_blocks(outcomes, apart=apart))
            setting = f"{name}, {'own draws' if apart else 'shared seeds'}"
            what = f"suites: decided within {SUITE_LOOKS} blocks"
            if is_null:
                yield Figure(what=what, setting=setting, value=found.decided, at_most=ALPHA)
                continue
            yield Figure(what=what, setting=setting, value=found.decided, at_least=0.6 if apart else 0.3)
            what, most = "suites: mean number of blocks until decided", 30.0 if apart else 45.0
            yield Figure(what=what, setting=setting, value=found.mean_episodes, at_most=most, unit="blocks")
            if apart:
                blocks = outcomes.mean(axis=2)
                error = blocks.std(axis=1, ddof=1) / np.sqrt(SUITE_LOOKS)
                fixed = float((np.abs(blocks.mean(axis=1)) > stdtrit(SUITE_LOOKS - 1, 0.975) * error).mean())
                what = f"suites: a t test after {SUITE_LOOKS} blocks, without a look before, finds it"
                yield Figure(what=what, setting=setting, value=fixed, at_least=0.9)


def widths(options: Options, generator: np.random.Generator) -> Iterator[Figure]:
    """Yield the shares of intervals that hold the truth when their own width ends the run."""

    @cache
    def narrow(counts: RateCounts | BlockCounts) -> bool:
        open_answer = Answer(
            question=asked, episodes=0, counts=counts, log_e_value=0.0, needed_log_e_value=-np.log(ALPHA)
        )
        return decided(open_answer).verdict is not None

    asked = Question(name="", jobs=("",), max_episodes=1, half_width=0.05)
    for rate, tasks in ((0.5, 1), (0.8, 1), (0.95, 1), (0.8, 10)):
        held, lengths, repeats = 0, [], options.repeats // 20
        rates = np.full(1, rate) if tasks == 1 else np.linspace(2 * rate - 1, 1, tasks)
        for _ in range(repeats):
            counts: RateCounts | BlockCounts = RateCounts(successes=0, trials=0)
            counts = counts if tasks == 1 else BlockCounts(tasks=tasks, is_paired=False)
            for successes in (generator.random((3_000, tasks)) < rates).astype(int).tolist():
                if isinstance(counts, BlockCounts):
                    counts = counts.with_block(successes, apart=True)
                else:
                    counts = RateCounts(successes=counts.successes + successes[0], trials=counts.trials + 1)
                if narrow(counts):
                    break
            interval = anytime_interval(counts, alpha=ALPHA)
            held += interval.low <= rate <= interval.high
            lengths.append(
                counts.trials if isinstance(counts, RateCounts) else sum(number for _, number in counts.sums)
            )
        setting = f"{rate:g}" if tasks == 1 else f"{tasks} tasks of {rates[0]:g} to 1"
        what = "to within 5 points: the interval holds the rate when its width ends the run"
        yield Figure(what=what, setting=setting, value=held / repeats, at_least=1.0 - ALPHA)
        what, mean = "to within 5 points: mean number of episodes", float(np.mean(lengths))
        yield Figure(what=what, setting=setting, value=mean, at_most=1_500, unit="episodes")


@dataclass(frozen=True, kw_only=True)
class Races:
    """Ends of races between policies."""

    kept: float  # Share in which the first policy is left.
    named: float  # Share in which only one is left.
    played: float  # Mean share of the episodes that were played.


def races(rates: np.ndarray, options: Options, generator: np.random.Generator) -> Races:
    """Return the ends of races that last up to `options.looks` episodes; half of the conditions decide alone."""

    @cache
    def evidence(won: int, lost: int) -> float:
        counts = BlockCounts(tasks=1, is_paired=True, sums=((-1, lost), (1, won)))
        return log_e_value_of_blocks(counts, 0.0, SHARES[: len(SHARES) // 2])

    number, repeats, needed = len(rates), options.repeats // 50, np.log(2 * (len(rates) - 1) / ALPHA)
    left_at_end, played = np.zeros((repeats, number), bool), 0
    for stream in range(repeats):
        alone, same = generator.random((number, options.looks)), generator.random(options.looks)
        success = np.where(generator.random(options.looks) < 0.5, same, alone) < rates[:, None]
        left, wins = np.arange(number), np.zeros((number, number), int)
        for look in range(options.looks):
            played += len(left)
            now = success[left, look]
            wins[np.ix_(left, left)] += now[:, None] & ~now
            ahead = (wins - wins.T)[np.ix_(left, left)]
            # One after the other, as the package does.
            for arm in left[(ahead >= needed).any(axis=0)].tolist():
                pairs = [(int(wins[each, arm]), int(wins[arm, each])) for each in left[left != arm]]
                if any(won - lost >= needed and evidence(won, lost) >= needed for won, lost in pairs):
                    left = left[left != arm]
            if len(left) == 1:
                break
        left_at_end[stream, left] = True
    return Races(
        kept=float(left_at_end[:, 0].mean()),
        named=float((left_at_end.sum(axis=1) == 1).mean()),
        played=played / (repeats * number * options.looks),
    )


def selections(options: Options, generator: np.random.Generator) -> Iterator[Figure]:
    """Yield the shares of races that leave out the best, or name one of equals, and of the played episodes."""
    rising = np.linspace(0.85, 0.05, 20)
    for name, rates, most in (
        ("20 of 0.7", np.full(20, 0.7), 1.0),
        ("2 of 0.5", np.full(2, 0.5), 1.0),
        ("0.7 and 19 of 0.65", np.array([0.7, *[0.65] * 19]), 1.0),
        ("20 of 0.05 to 0.85", rising, 0.25),
        ("0.9 and 19 of 0.05 to 0.75", np.array([0.9, *np.linspace(0.75, 0.05, 19)]), 0.15),
    ):
        found = races(rates, options, generator)
        yield Figure(what="race: the best is out", setting=name, value=1.0 - found.kept, at_most=ALPHA)
        if rates.min() == rates.max():
            yield Figure(what="race: names one of equals", setting=name, value=found.named, at_most=ALPHA)
        elif most < 1.0:
            yield Figure(what="race: names one", setting=name, value=found.named, at_least=0.0)
            what = f"race: share of {options.looks} episodes of each that are played"
            yield Figure(what=what, setting=name, value=found.played, at_most=most)


def main(options: Options) -> int:
    """Simulate, write the page, and return 1 if a figure misses its bar."""
    page = Page("decision_quality", "How often comparisons and decisions are wrong", options, "numpy", "scipy")
    generator, kept = np.random.default_rng(options.seed), True
    table = Table("what", "policies", "simulated", "bar", "kept", words=2)
    for part in (fixed_numbers, decisions, intervals, suites, widths, selections):
        for figure in part(options, generator):
            table.add(*figure.cells())
            kept = kept and figure.is_kept
    noise = 196 * np.sqrt(ALPHA * (1 - ALPHA) / options.repeats)
    text = f"""\
{options.repeats:,} comparisons, families or streams for each figure, from a fixed seed. All levels are 5 %. A share of
so many is known to about {noise:.1f} points. Streams are looked at after every pair, up to {options.looks}. A
correlation of 0.5 says that half of the conditions decide alone. A block is an episode of each task. Suites have half
of the repetitions, widths a twentieth, races a fiftieth; in a race half of the conditions decide alone."""
    page.write(text, table)
    return 0 if kept else 1


if __name__ == "__main__":
    run(main, Options)

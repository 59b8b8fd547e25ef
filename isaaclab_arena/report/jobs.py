"""What the page shows of each job, from the tables of its run."""

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from isaaclab_arena.logs import plain_text
from isaaclab_arena.report.columns import packed_numbers, packed_texts
from isaaclab_arena.report.conditions import ConditionRates, condition_columns, telling_conditions
from isaaclab_arena.report.histograms import Bin, histogram
from isaaclab_arena.results.clusters import ScoredEpisodes
from isaaclab_arena.results.merge import keys_in, scored_in
from isaaclab_arena.results.rows import of_conditions, scored_episodes
from isaaclab_arena.results.swept import PREFIX
from isaaclab_arena.results.table import mean_and_spread

MOST_CONDITION_VALUES = 900_000
"""Values of conditions that go into a page for its filter and its films, over all episodes."""

MOST_CHARTS = 3
MOST_FILMS_OF_A_REASON = 3
NO_REASON = "none of the events"
OUTCOMES = ("success", "failure", "timeout", "error", "not measured")
_TIMES = ("build", "simulate", "policy", "render", "record", "idle")
_TEXTS = ("termination", "language_instruction", "error")


@dataclass(frozen=True, kw_only=True)
class Share:
    """A part of a whole.

    Attributes:
        name: What it is.
        value: How much of it.
        share: Of the whole, 0 to 1.
    """

    name: str
    value: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Failures that the same event decided.

    Attributes:
        event: The event in words.
        count: How many failures.
        filmed: The first of them that have films.
    """

    event: str
    count: int
    filmed: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class JobOnPage:
    """A job on the page.

    Attributes:
        run: Position of its run on the page.
        name: Its name, after that of its run where the page has several.
        row: Its row of the table of jobs, None for an empty cell.
        sentence: One sentence that a person can quote.
        keys: What jobs can be grouped by: environment, policy and the swept keys.
        outcomes: How its episodes ended.
        terminations: What ended them, the most frequent first.
        times: Where the time went [s].
        lengths: Histogram of the episodes' control steps, without errors.
        returns: Histogram of their sums of rewards, without errors.
        conditions: Success against the conditions that tell most.
        num_conditions: How many conditions vary.
        episodes: Its episodes for the script of the page.
        failed: Episodes that did not succeed.
        scored: Its episodes that say whether they succeeded, without those beyond a decision.
        reasons: Why its episodes failed, the most frequent reason first; none where the environment does not tell.
    """

    run: int
    name: str
    row: Mapping[str, Any]
    sentence: str
    keys: Mapping[str, str]
    outcomes: tuple[Share, ...]
    terminations: tuple[Share, ...]
    times: tuple[Share, ...]
    lengths: tuple[Bin, ...]
    returns: tuple[Bin, ...]
    conditions: tuple[ConditionRates, ...]
    num_conditions: int
    episodes: Mapping[str, Any]
    failed: frozenset[int]
    scored: ScoredEpisodes
    reasons: tuple[Reason, ...] = ()

    @property
    def rate(self) -> str:
        """Its success rate with the interval; a dash where there is none."""
        return rate_text(self.row)

    @property
    def explaining(self) -> frozenset[int]:
        """The episodes whose films show why it failed."""
        return frozenset(index for reason in self.reasons for index in reason.filmed)

    @property
    def is_anytime(self) -> bool:
        """Whether its interval is the one that holds at every look, because a question could end the job."""
        return self.row.get("interval_kind") == "anytime"

    @property
    def num_scored(self) -> int:
        """Episodes whose success is known."""
        return scored_episodes(self.row) if self.row["success_rate"] is not None else 0

    @property
    def repeats(self) -> str:
        """How many different conditions those have, nothing where each has its own."""
        return of_conditions(self.row.get("distinct_conditions"), self.num_scored)


def job_on_page(
    row: Mapping[str, Any], episodes: pd.DataFrame, *, run: int, label: str, most_values: int = MOST_CONDITION_VALUES
) -> JobOnPage:
    """Return what the page shows of a job, without its `reasons`.

    Args:
        row: Its row of the table of jobs.
        episodes: Its rows of the table of episodes.
        run: Position of its run on the page.
        label: Name of the job on the page.
        most_values: How many values of conditions go into the page.
    """
    success = episodes["success"].to_numpy(float, na_value=np.nan)
    outcome = episodes["outcome"].fillna("not measured").to_numpy(object)
    is_error = outcome == "error"
    success = np.where(is_error, np.nan, success)
    length, total = (episodes[name].to_numpy(float, na_value=np.nan) for name in ("length", "return"))
    columns = condition_columns(episodes["conditions"].to_numpy(object))
    telling = telling_conditions(columns, success, keys_in(episodes))
    counted = pd.DataFrame(episodes[~episodes["beyond_decision"]]) if "beyond_decision" in episodes else episodes
    won, kept = success == 1, ~is_error
    counts = Counter(outcome.tolist())
    ended = Counter(text for text in episodes["termination"] if isinstance(text, str))
    seconds = {name: row[f"{name}_s"] or 0.0 for name in _TIMES if row.get(f"{name}_s") is not None}
    return JobOnPage(
        run=run,
        name=plain_text(label),
        row=row,
        sentence=sentence(row, label),
        keys=_keys(row),
        outcomes=_shares({name: counts[name] for name in OUTCOMES if counts[name]}),
        terminations=_shares({plain_text(name): number for name, number in ended.most_common(8)}, of=len(episodes)),
        times=_shares(seconds),
        lengths=histogram(length[kept], won[kept], whole=True),
        returns=histogram(total[kept], won[kept]),
        conditions=telling[:MOST_CHARTS],
        num_conditions=len(telling),
        episodes=_for_script(episodes, columns, telling, most_values=most_values),
        failed=frozenset(episodes["episode_index"].to_numpy(int)[~won].tolist()),
        scored=scored_in(counted),
    )


def reasons(episodes: pd.DataFrame, filmed: Set[int]) -> tuple[Reason, ...]:
    """Return failures grouped by the event that decided them, the most frequent first.

    Args:
        episodes: A job's rows of the table of episodes.
        filmed: Its episodes that have films.
    """
    if "decisive_event" not in episodes:
        return ()
    told = episodes[episodes["progress"].notna() & (episodes["success"] == False)]  # noqa: E712
    groups: dict[str, list[int]] = {}
    for event, index in zip(told["decisive_event"], told["episode_index"], strict=True):
        groups.setdefault(event.replace("_", " ") if isinstance(event, str) else NO_REASON, []).append(int(index))
    return tuple(
        Reason(
            event=plain_text(event),
            count=len(indices),
            filmed=tuple(index for index in indices if index in filmed)[:MOST_FILMS_OF_A_REASON],
        )
        for event, indices in sorted(groups.items(), key=lambda group: -len(group[1]))
    )


def sentence(row: Mapping[str, Any], label: str) -> str:
    """Return one sentence about a job: what was evaluated, the rate with its interval, and what does not count."""
    told = [row["environment"], row["object"], row["embodiment"], _short(row["policy"])]
    what = f"{plain_text(label)} ({', '.join(plain_text(each) for each in told if each)})"
    if row["success_rate"] is None:
        means = mean_and_spread(row["mean_return"], row["std_return"], ".2f")
        said = f"{_number(row['episodes'], 'episode')}, return {means}, success not measured"
        if not row["episodes"]:
            said = f"no episode, {row['status']}"
    else:
        scored = scored_episodes(row)
        said = (
            f"{row['successes']} of {scored}{of_conditions(row.get('distinct_conditions'), scored)}, {rate_text(row)}"
        )
    left_out = [_number(row["errors"], "error")] if row["errors"] else []
    left_out += [f"{row['missing']} missing"] if row["missing"] else []
    return f"{what}: {'; '.join([said, *left_out])}"


def rate_text(row: Mapping[str, Any]) -> str:
    """Return ``91.5 % [86.8, 94.6]``, a dash where there is no rate."""
    return percent_text(*(row[name] for name in ("success_rate", "success_low", "success_high")))


def percent_text(rate: float | None, low: float, high: float) -> str:
    """Return a rate with the ends of its interval as `rate_text` does."""
    return "-" if rate is None else f"{100 * rate:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def _for_script(
    episodes: pd.DataFrame,
    columns: Mapping[str, np.ndarray],
    telling: tuple[ConditionRates, ...],
    *,
    most_values: int,
) -> dict[str, Any]:
    """Return a job's episodes as columns; the conditions that tell most, where not all of them have room."""
    count = len(episodes)
    names = list(dict.fromkeys([*(each.name for each in telling), *columns]))
    kept = set(names[: most_values // max(count, 1)])
    index = episodes["episode_index"].to_numpy(float)
    document = {
        "count": count,
        "index": None if np.array_equal(index, np.arange(count)) else packed_numbers(index),
        "outcome": packed_texts(episodes["outcome"].fillna("not measured").to_numpy(object)),
        "conditions": {
            plain_text(name): packed_numbers(values) if values.dtype == float else packed_texts(_plain(values))
            for name, values in columns.items()
            if name in kept
        },
        "conditions_left_out": len(names) - len(kept),
    }
    for name in ("length", "return", "rank"):
        document[name] = packed_numbers(episodes[name].to_numpy(float, na_value=np.nan))
    texts = [name for name in (*_TEXTS, "decisive_event") if name in episodes]
    return document | {name: packed_texts(_plain(episodes[name].to_numpy(object))) for name in texts}


def _plain(values: np.ndarray) -> list[str | None]:
    return [plain_text(value, keep_lines=True) if isinstance(value, str) else None for value in values]


def _keys(row: Mapping[str, Any]) -> dict[str, str]:
    named = ("environment", "task", "object", "embodiment", "policy", "checkpoint", "status")
    keys = {name: row[name] for name in named}
    keys |= {name.removeprefix(PREFIX): value for name, value in row.items() if name.startswith(PREFIX)}
    return {name: plain_text(value) for name, value in keys.items() if value is not None}


def _shares(counts: Mapping[str, float], of: float | None = None) -> tuple[Share, ...]:
    whole = (sum(counts.values()) if of is None else of) or 1
    return tuple(Share(name=name, value=value, share=value / whole) for name, value in counts.items())


def _short(policy: str) -> str:
    return policy.replace(":", ".").rpartition(".")[2]


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"

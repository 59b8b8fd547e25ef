"""The page's view of each job, and of jobs together: suites, sweeps, policies against tasks."""

import base64
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from isaaclab_arena.config.expansion.suites import swept_step
from isaaclab_arena.logs import plain_text
from isaaclab_arena.results import rows
from isaaclab_arena.results.columns import JOBS, PREFIX, Show
from isaaclab_arena.results.merge import keys_in, scored_in
from isaaclab_arena.results.statistics import (
    Interval,
    ScoredEpisodes,
    draws_of,
    interval_of_mean,
    most_typical_first,
    together,
)

# Columns of episodes in few bytes, for the script of a page: numbers on a decimal grid, and texts by index.

_LARGEST = {2: 2**16 - 1, 4: 2**32 - 1}
"""By bytes of a number, the value for "none"."""


def packed_numbers(values: np.ndarray) -> dict[str, Any] | None:
    """Pack numbers for the page's script as steps of 10^-decimals above the lowest; NaN and None mean no value."""
    # Two bytes per number limit the decimals, at most six; numbers without decimals keep all digits. `data` is base64,
    # and empty if all values are equal.
    finite = np.isfinite(values)
    if not finite.any():
        return None
    low, high = float(values[finite].min()), float(values[finite].max())
    fitting = (decimals for decimals in range(6, 0, -1) if (high - low) * 10.0**decimals < _LARGEST[2] - 1)
    decimals = next(fitting, 0) if np.any(values[finite] % 1) else 0
    steps = np.round(np.where(finite, values, low) * 10.0**decimals)
    lowest, highest = float(steps.min()), float(steps.max())
    width = 2 if highest - lowest < _LARGEST[2] else 4
    packed: dict[str, Any] = {"decimals": decimals, "lowest": int(lowest), "bytes": width, "data": ""}
    if highest > lowest or not finite.all():
        above = np.where(finite, np.minimum(steps - lowest, _LARGEST[width] - 1), _LARGEST[width])
        packed["data"] = base64.b64encode(above.astype(f"<u{width}").tobytes()).decode("ascii")
    return packed


def packed_texts(values: Iterable[Any]) -> dict[str, Any] | None:
    """Pack texts for the page's script: each text once, and its number per episode, 0 for none. None if all are."""
    codes, texts = pd.factorize(pd.array([*values], dtype="string"))
    if not len(texts):
        return None
    width = 1 if len(texts) < 255 else 4
    packed: dict[str, Any] = {
        "texts": [plain_text(text, keep_lines=True) for text in texts],
        "bytes": width,
        "data": "",
    }
    # `data` is base64, and empty if all episodes have the same text.
    if len(texts) > 1 or (codes < 0).any():
        packed["data"] = base64.b64encode((codes + 1).astype(f"<u{width}").tobytes()).decode("ascii")
    return packed


# Histograms of episode measures, successes apart from the rest. Pure functions.


@dataclass(frozen=True, kw_only=True)
class Bin:
    """One bar of a histogram."""

    low: float
    high: float  # exclusive, but inclusive in the last bin
    count: int  # episodes
    successes: int  # successful ones


def histogram(values: np.ndarray, success: np.ndarray, *, whole: bool = False) -> tuple[Bin, ...]:
    """Return the bins of a measure, none without finite values. Arrays have shape (num_episodes,); NaN if missing."""
    kept = np.isfinite(values)
    values, success = values[kept], success[kept]
    if not len(values):
        return ()
    low, high = float(values.min()), float(values.max())
    bins = min(24, max(1, int(np.ceil(2 * np.sqrt(len(values))))))
    # `whole` makes every bin hold the same number of integers.
    if whole:
        width = max(1, int(np.ceil((high - low + 1) / bins)))
        edges = np.arange(low, high + width + 1, width) if high >= low + width else np.array([low, low + width])
    elif high == low:
        edges = np.array([low - 0.5, high + 0.5])
    else:
        edges = np.linspace(low, high, bins + 1)
    counts, won = (np.histogram(each, edges)[0] for each in (values, values[success]))
    return tuple(
        Bin(low=float(low), high=float(high), count=int(count), successes=int(successes))
        for low, high, count, successes in zip(edges[:-1], edges[1:], counts, won, strict=True)
    )


# Conditions of episodes as numbers and texts, and how much each of them predicts success.

MEASURE = "mutual information with success, in bits, corrected for bias (Miller and Madow)"
"""The measure of the most informative conditions, in words."""


@dataclass(frozen=True, kw_only=True)
class PooledRate:
    """Success over pooled episodes: of jobs, or in a range of a condition."""

    label: str  # common property of the jobs, or the range or value of the condition
    x: float  # position on the axis, 0 to 1
    successes: int  # successful scored episodes
    scored: int  # scored episodes
    distinct: int  # distinct draws of conditions
    rate: float
    interval: Interval  # Wilson interval of the rate
    repeats: str  # a note on the number of distinct conditions, empty if no condition repeats
    address: str | None = None  # link to the job's section; None for several jobs


def pooled_rate(
    parts: Sequence[ScoredEpisodes], *, label: str, x: float = 0.0, address: str | None = None
) -> PooledRate | None:
    """Return the rate over the episodes of jobs, None without one: it has no rate to draw."""
    scored = together(parts)
    if (interval := scored.wilson()) is None:
        return None
    return PooledRate(
        label=plain_text(label),
        x=x,
        successes=scored.successes,
        scored=len(scored),
        distinct=scored.num_distinct,
        rate=scored.successes / len(scored),
        interval=interval,
        repeats=rows.of_conditions(scored.num_distinct, len(scored)),
        address=address,
    )


@dataclass(frozen=True, kw_only=True)
class ConditionRates:
    """Success against one condition."""

    name: str
    bits: float  # see `MEASURE`
    bins: tuple[PooledRate, ...]  # in order, with about equally many episodes each


def condition_columns(conditions: Iterable[Any]) -> dict[str, np.ndarray]:
    """Return each scalar condition as a column of shape (num_episodes,); NaN or None for no value."""
    # `conditions` are JSON objects, and anything but text means none.
    documents = json.loads("[" + ",".join(text if isinstance(text, str) else "{}" for text in conditions) + "]")
    names = dict.fromkeys(name for document in documents for name in document)
    left: list[tuple[str, Sequence[Any]]] = [(name, [each.get(name) for each in documents]) for name in names]
    columns: dict[str, np.ndarray] = {}
    while left:
        name, values = left.pop(0)
        kinds = {*map(type, values)} - {type(None)}
        if kinds == {list} and len(lengths := {len(value) for value in values if value is not None}) == 1:
            # Elements of equally long lists get a column each, in the place of the lists.
            (size,) = lengths
            axes = ("x", "y", "z") if size == 3 else tuple(map(str, range(size)))
            elements = zip(*((None,) * size if value is None else value for value in values), strict=True)
            left[:0] = [(f"{name}.{axis}", column) for axis, column in zip(axes, elements, strict=True)]
        elif kinds <= {int, float}:
            columns[name] = np.array(values, float)
        else:
            texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
            columns[name] = np.array(texts, object)
    return columns


def telling_conditions(
    columns: Mapping[str, np.ndarray], success: np.ndarray, started: Sequence[str]
) -> tuple[ConditionRates, ...]:
    """Return success against each varying condition, the most informative first."""
    # `success` is 1, 0 or NaN if not scored, of shape (num_episodes,). Too few episodes, or equal outcomes, give
    # nothing.
    scored = np.isfinite(success)
    won, keys = success[scored] > 0, [key for key, counts in zip(started, scored, strict=True) if counts]
    if len(won) < 20 or won.all() or not won.any():
        return ()
    told = []
    for name, values in columns.items():
        # The group of each value (-1 for none), labels and middles of the groups, and the ends of the axis. A condition
        # that does not vary has no groups.
        own = values[scored]
        if own.dtype != float:
            groups, texts = pd.factorize(pd.array(own, dtype="string"), sort=True)
            if not 2 <= len(texts) <= 16:
                continue
            labels, middles, (low, high) = map(str, texts), np.arange(len(texts)), (-0.5, len(texts) - 0.5)
        else:
            finite = np.isfinite(own)
            distinct = np.unique(own[finite])
            if len(distinct) < 2:
                continue
            # Few distinct values get a group each; otherwise quantiles give groups of about equal size.
            count = int(min(8, max(2, finite.sum() // 10)))
            if len(distinct) <= count:
                groups = np.where(finite, np.searchsorted(distinct, own), -1)
                labels, middles, (low, high) = (f"{value:.4g}" for value in distinct), distinct, distinct[[0, -1]]
            else:
                edges = np.unique(np.quantile(own[finite], np.linspace(0, 1, count + 1)))
                if len(edges) < 3:
                    continue
                at = np.clip(np.searchsorted(edges, own, side="right") - 1, 0, len(edges) - 2)
                groups = np.where(finite, at, -1)
                labels = (f"{low:.3g} to {high:.3g}" for low, high in itertools.pairwise(edges))
                middles, (low, high) = (edges[:-1] + edges[1:]) / 2, edges[[0, -1]]
        bins = []
        for number, (label, middle) in enumerate(zip(labels, middles, strict=True)):
            members = np.flatnonzero(groups == number)
            inside = ScoredEpisodes(
                success=won[members].astype(float), conditions=[keys[at] for at in members.tolist()]
            )
            bins.append(pooled_rate([inside], label=label, x=float((middle - low) / (high - low))))
        bits = mutual_information_bits(groups[groups >= 0], won[groups >= 0])
        told.append(ConditionRates(name=name, bits=bits, bins=tuple(each for each in bins if each is not None)))
    return tuple(sorted(told, key=lambda each: -each.bits))


def mutual_information_bits(groups: np.ndarray, won: np.ndarray) -> float:
    """Return the mutual information of group and success [bit], less its finite-sample bias; at least 0."""
    # Both arrays have shape (num_episodes,); groups are int, `won` is bool.
    table = np.zeros((int(groups.max()) + 1, 2))
    np.add.at(table, (groups, won.astype(int)), 1)
    share = table / table.sum()
    independent = share.sum(1, keepdims=True) * share.sum(0, keepdims=True)
    known = share > 0
    bits = float((share[known] * np.log2(share[known] / independent[known])).sum())
    # Miller and Madow's correction for a table of two columns.
    bias = (np.count_nonzero(table.sum(1)) - 1) / (2.0 * table.sum() * np.log(2.0))
    return max(0.0, bits - bias)


# The content of the page for each job, from the tables of its run.

MOST_CONDITION_VALUES = 900_000
"""Values of conditions that go into a page for its filter and its films, over all episodes."""

ON_PAGE = tuple(each for each in JOBS if Show.PAGE in each.show)
"""Columns of the table of jobs that a page shows beside the success."""

MOST_CHARTS = 3
MOST_FILMS_OF_A_REASON = 3
MOST_REASONS = 8
_ERROR = "error: "
_EVENT_COLUMNS = ("decisive_event", "progress", "events")
NO_REASON = "none of the events"
_ENDED = {"time_limit": "ran out of time", "terminated": "ended without success"}
OUTCOMES = ("success", "failure", "timeout", "error", "not measured")


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Episodes that failed for the same reason."""

    event: str  # the event that decided, or else the error or the way that the episodes ended, in words
    count: int  # number of episodes
    filmed: tuple[int, ...]  # a few of them that have films, the most typical first


@dataclass(frozen=True, kw_only=True)
class JobOnPage:
    """A job on the page."""

    run: int  # position of its run on the page
    name: str  # prefixed with the name of its run if the page has several
    row: dict[str, Any]  # its row of the table of jobs; None for an empty cell
    sentence: str  # quotable summary
    rate: str  # success rate with its interval, or a dash
    num_scored: int  # episodes with a known success
    keys: Mapping[str, str]  # for grouping: environment, policy and swept keys
    outcomes: Mapping[str, int]
    terminations: Mapping[str, int]  # most frequent first
    times: Mapping[str, float]  # [s]
    lengths: tuple[Bin, ...]  # control steps per episode, without errors
    returns: tuple[Bin, ...]  # sums of rewards, without errors
    conditions: tuple[ConditionRates, ...]  # the most informative conditions
    num_conditions: int  # number of varying conditions
    episodes: Mapping[str, Any]  # columns for the page's script
    failed: frozenset[int]  # episodes without success
    scored: ScoredEpisodes  # without episodes beyond a decision
    reasons: tuple[Reason, ...] = ()  # most frequent first; of all failures and errors
    metrics: tuple[Mapping[str, Any], ...] = ()  # its rows of the table of metrics
    # The mean length and return with their 95 % intervals, by column; without an interval if the job could stop early.
    means: Mapping[str, str] = field(default_factory=dict)
    is_changed: bool = False  # an arm of robustness or controls, which has its own section and is no answer
    tells_reasons: bool = True  # its task names the event that decided a failure

    @property
    def policy(self) -> str:
        """The name of the policy, with that of its checkpoint."""
        checkpoint = self.keys.get("checkpoint", "").rstrip("/").rpartition("/")[2]
        return ", ".join(filter(None, (rows.short_policy_name(self.keys["policy"]), checkpoint)))

    @property
    def task(self) -> str:
        """The environment with its object and robot."""
        return ", ".join(self.keys[name] for name in ("environment", "object", "embodiment") if name in self.keys)

    @property
    def num_failed(self) -> int:
        """The number of failures; an error is none."""
        return sum(reason.count for reason in self.reasons) - self.num_errors

    @property
    def num_errors(self) -> int:
        """The number of episodes that ended in an error."""
        return int(self.row["errors"])

    @property
    def lacks_films(self) -> bool:
        """Whether a failure of some reason could be filmed, and none is."""
        return any(not reason.filmed and not reason.event.startswith(_ERROR) for reason in self.reasons)


def job_on_page(
    row: dict[str, Any],
    episodes: pd.DataFrame,
    *,
    run: int,
    label: str,
    most_values: int = MOST_CONDITION_VALUES,
    filmed: Set[int] = frozenset(),
    metrics: Sequence[Mapping[str, Any]] = (),
) -> JobOnPage:
    """Return the content of the page for a job; `filmed` episodes have films."""
    # `most_values` limits the conditions. Errors are not scored, and measures leave them out.
    success = episodes["success"].to_numpy(float, na_value=np.nan)
    outcome = episodes["outcome"].fillna("not measured").to_numpy(object)
    is_error = outcome == "error"
    success = np.where(is_error, np.nan, success)
    length, total = (episodes[name].to_numpy(float, na_value=np.nan) for name in ("length", "return"))
    columns = condition_columns(episodes["conditions"].to_numpy(object))
    keys = keys_in(episodes)
    telling = telling_conditions(columns, success, keys)
    counted = pd.DataFrame(episodes[~episodes["beyond_decision"]]) if "beyond_decision" in episodes else episodes
    won, kept = success == 1, ~is_error
    means = {each.name: each.text(row, spread=False) for each in ON_PAGE if row[each.name] is not None}
    if row.get("interval_kind") != "anytime":
        draws = draws_of(keys)
        for name, values in {"mean_length": length, "mean_return": total}.items():
            known = kept & np.isfinite(values)
            found = interval_of_mean(values[known], draws[known])
            # Equal values tell nothing of their spread.
            if name in means and found is not None and found[0].low < found[0].high:
                pattern = next(each.pattern for each in ON_PAGE if each.name == name)
                means[name] += f" [{found[0].low:{pattern}}, {found[0].high:{pattern}}]"
    counts = Counter(outcome.tolist())
    ended = Counter(text for text in episodes["termination"] if isinstance(text, str))
    times = ("build", "simulate", "policy", "render", "record", "idle")
    seconds = {name: row[f"{name}_s"] or 0.0 for name in times if row.get(f"{name}_s") is not None}
    named = ("environment", "task", "object", "embodiment", "policy", "checkpoint", "status")
    settings = {name: row[name] for name in named}
    settings |= {name.removeprefix(PREFIX): value for name, value in row.items() if name.startswith(PREFIX)}
    rate = rows.percent_text(*(row[name] for name in ("success_rate", "success_low", "success_high")), unit=" %")

    # One sentence to quote: the task, the rate with its interval, and uncounted episodes.
    told = [row["environment"], row["object"], row["embodiment"], rows.short_policy_name(row["policy"])]
    num_scored = 0 if row["success_rate"] is None else rows.scored_episodes(row)
    if num_scored:
        of = f"{num_scored}{rows.of_conditions(row.get('distinct_conditions'), num_scored)}"
        said = f"{row['successes']} of {of}, {rate}"
    elif row["episodes"]:
        returns = means.get("mean_return", "-")
        said = f"{row['episodes']} episode{'' if row['episodes'] == 1 else 's'}, return {returns}, success not measured"
    else:
        said = f"no episode, {row['status']}"

    what = f"{plain_text(label)} ({', '.join(plain_text(each) for each in told if each)})"
    return JobOnPage(
        run=run,
        name=plain_text(label),
        row=row,
        sentence=f"{what}: {'; '.join([said, *uncounted(row)])}",
        rate=rate,
        num_scored=num_scored,
        keys={name: plain_text(value) for name, value in settings.items() if value is not None},
        outcomes={name: counts[name] for name in OUTCOMES if counts[name]},
        terminations={plain_text(name): number for name, number in ended.most_common(8)},
        times=seconds,
        lengths=histogram(length[kept], won[kept], whole=True),
        returns=histogram(total[kept], won[kept]),
        conditions=telling[:MOST_CHARTS],
        num_conditions=len(telling),
        episodes=_for_script(episodes, columns, telling, most_values=most_values),
        failed=frozenset(episodes["episode_index"].to_numpy(int)[~won].tolist()),
        scored=scored_in(counted),
        reasons=reasons_of(episodes, filmed),
        metrics=tuple(metrics),
        means=means,
        tells_reasons="progress" in episodes and bool(episodes["progress"].notna().any()),
    )


def reasons_of(episodes: pd.DataFrame, filmed: Set[int]) -> tuple[Reason, ...]:
    """Return the reasons of a job's failures and errors, the most frequent first, each with its most typical films."""
    # The reason is the event that decided. Episodes without events have the way that they ended, errors their text.
    named = ("episode_index", "success", "outcome", "error", "termination", "length", *_EVENT_COLUMNS)
    column = {name: episodes[name].to_numpy(object, na_value=None) for name in named if name in episodes}
    nothing = np.full(len(episodes), None)
    event, progress = (column.get(name, nothing) for name in ("decisive_event", "progress"))
    groups: dict[str, list[int]] = {}
    for at in np.flatnonzero((column["success"] == False) | (column["outcome"] == "error")).tolist():  # noqa: E712
        ended = column["termination"][at]
        if column["outcome"][at] == "error":
            reason = f"{_ERROR}{(column['error'][at] or 'without a text').strip().partition(chr(10))[0]}"
        elif event[at] is None and progress[at] is not None:
            reason = NO_REASON
        else:
            reason = (event[at] or _ENDED.get(ended) or ended or "ended without success").replace("_", " ")
        groups.setdefault(reason, []).append(at)

    found = []
    for reason, members in sorted(groups.items(), key=lambda group: -len(group[1])):
        # The most typical film is that of the episode in which the event came nearest to the median moment of all
        # episodes with this reason; without an event, that of the episode of the most usual length.
        typical: list[int] = []
        if not filmed.isdisjoint(indices := [int(column["episode_index"][at]) for at in members]):
            ordered = most_typical_first([_moment_of(column, at) for at in members])
            typical = [indices[place] for place in ordered if indices[place] in filmed][:MOST_FILMS_OF_A_REASON]
        found.append(Reason(event=plain_text(reason), count=len(members), filmed=tuple(typical)))
    if len(found) > MOST_REASONS:
        others = found[MOST_REASONS - 1 :]
        most = sum((other.filmed for other in others), ())[:MOST_FILMS_OF_A_REASON]
        rest = Reason(event=f"{len(others)} other reasons", count=sum(other.count for other in others), filmed=most)
        found[MOST_REASONS - 1 :] = [rest]
    return tuple(found)


def _moment_of(column: Mapping[str, np.ndarray], at: int) -> float:
    """Return the control step in which the event that decided an episode first happened, else its length."""
    event = column["decisive_event"][at] if "decisive_event" in column else None
    text = column["events"][at] if "events" in column else None
    seen = json.loads(text).get(event) if event and isinstance(text, str) else None
    return float(seen[0] if seen else column["length"][at] or 0)


def uncounted(row: Mapping[str, Any]) -> list[str]:
    """Return the numbers of errors and of missing episodes of a job or suite in words, without zeros."""
    errors = [f"{row['errors']} error{'' if row['errors'] == 1 else 's'}"] if row["errors"] else []
    return errors + ([f"{row['missing']} missing"] if row["missing"] else [])


def _for_script(
    episodes: pd.DataFrame, columns: Mapping[str, np.ndarray], telling: Sequence[ConditionRates], *, most_values: int
) -> dict[str, Any]:
    """Return a job's episodes as columns for the page's script; if room is short, not all conditions."""
    count = len(episodes)
    # The most informative conditions come first, because `most_values` may cut the rest.
    names = list(dict.fromkeys([*(each.name for each in telling), *columns]))
    kept = set(names[: most_values // max(count, 1)])
    index = episodes["episode_index"].to_numpy(float)
    document = {
        "count": count,
        "index": None if np.array_equal(index, np.arange(count)) else packed_numbers(index),
        "outcome": packed_texts(episodes["outcome"].fillna("not measured").to_numpy(object)),
        "conditions": {
            plain_text(name): packed_numbers(values) if values.dtype == float else packed_texts(values)
            for name, values in columns.items()
            if name in kept
        },
        "conditions_left_out": len(names) - len(kept),
    }
    for name in ("length", "return", "rank"):
        document[name] = packed_numbers(episodes[name].to_numpy(float, na_value=np.nan))
    possible = ("termination", "language_instruction", "error", "decisive_event")
    texts = [name for name in possible if name in episodes]
    return document | {name: packed_texts(episodes[name].to_numpy(object)) for name in texts}


def title_of(jobs: Sequence[JobOnPage]) -> str:
    """Return policies and tasks of the jobs in words: ``Scripted against random action on lift object, cube``."""
    policies = list(dict.fromkeys(job.policy for job in jobs))
    tasks = list(dict.fromkeys(job.task for job in jobs))
    if not jobs:
        return "Evaluation without a job"
    who = " against ".join(policies) if len(policies) < 3 else f"{len(policies)} policies"
    what = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"
    # Names of files keep their spelling.
    title = " ".join(word if "." in word else word.replace("_", " ") for word in f"{who} on {what}".split(" "))
    return title[0].upper() + title[1:]


# Groups of jobs: suites, success over a swept key, over checkpoints of a training, and policies against tasks.

MOST_JOBS_IN_DETAIL = 100
"""Jobs with charts of their own."""

MOST_CURVES = 24
_NO_STRENGTH = frozenset({"seed", "placement_seed"})


def suite_on_page(row: dict[str, Any], label: str) -> dict[str, Any]:
    """Return a suite's part of the page from its row: its label, both rates in words, and a sentence to quote."""
    # The rates are the mean of the tasks and that over all episodes, each a dash where it is unknown.
    mean, pooled = (
        rows.percent_text(*(row[f"{kind}_{part}"] for part in ("rate", "low", "high")), unit=" %")
        for kind in ("mean", "pooled")
    )
    said = "success not measured"
    if row["successes"] is not None:
        repeats = rows.of_conditions(row.get("distinct_conditions"), row["scored"])
        said = f"mean of tasks {mean}; {row['successes']} of {row['scored']} episodes{repeats}, {pooled}"
    played = (f"{row['tasks']} tasks", rows.short_policy_name(row["policy"]), rows.simulation_in_words(row))
    what = plain_text(f"{label} ({row['suite']}, {', '.join(filter(None, played))})")
    sentence = f"{what}: {'; '.join([said, *uncounted(row)])}"
    return {"name": plain_text(label), "row": row, "mean": mean, "pooled": pooled, "sentence": sentence}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Success as a function of a swept key."""

    key: str
    of: str  # other common properties of the jobs
    over_checkpoints: bool  # the key is a checkpoint, so this is a learning curve
    points: tuple[PooledRate, ...]  # one per value, ascending


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Policies against tasks."""

    tasks: tuple[str, ...]  # columns
    # Each policy with its cell per task; None if it was not evaluated on the task.
    lines: tuple[tuple[str, tuple[PooledRate | None, ...]], ...]


def curves(jobs: Sequence[JobOnPage]) -> tuple[Curve, ...]:
    """Return success by each swept key that is a number or a checkpoint, for jobs that are otherwise equal."""
    # Jobs of one run that differ only in the key and the seed form a curve.
    keys = dict.fromkeys(name.removeprefix(PREFIX) for job in jobs for name in job.row if name.startswith(PREFIX))
    addresses = {id(job): f"#job-{number}" for number, job in enumerate(jobs[:MOST_JOBS_IN_DETAIL])}
    found = []
    for key in (key for key in keys if key not in _NO_STRENGTH):
        steps = [swept_step(key, job.row.get(PREFIX + key)) for job in jobs]
        over_checkpoints = any(step is not None for step in steps)
        series: dict[tuple[int, str], dict[float, list[JobOnPage]]] = {}
        own = {PREFIX + key, *(PREFIX + name for name in _NO_STRENGTH)}
        for job, step in zip(jobs, steps, strict=True):
            row, value = job.row, job.row.get(PREFIX + key) if step is None else step
            if not isinstance(value, int | float) or isinstance(value, bool) or row["success_rate"] is None:
                continue
            # The other properties tell the curves apart.
            rest = [row["environment"], row["object"], row["embodiment"], rows.short_policy_name(str(row["policy"]))]
            for name, other in row.items():
                if name.startswith(PREFIX) and name not in own and other is not None and other not in rest:
                    rest.append(f"{name.rpartition('.')[2]} {other}")
            of = plain_text(", ".join(str(each) for each in rest if each))
            series.setdefault((job.run, of), {}).setdefault(float(value), []).append(job)

        # The line of a curve needs two values.
        for (_, of), by_value in series.items():
            values = sorted(by_value)
            points = (
                pooled_rate(
                    [job.scored for job in by_value[value]],
                    label=f"{value:.0f}" if over_checkpoints else f"{value:g}",
                    x=(value - values[0]) / (values[-1] - values[0]),
                    address=addresses.get(id(by_value[value][0])) if len(by_value[value]) == 1 else None,
                )
                for value in (values if len(values) > 1 else ())
            )
            if kept := tuple(point for point in points if point is not None):
                found.append(Curve(key=plain_text(key), of=of, over_checkpoints=over_checkpoints, points=kept))
    return tuple(found[:MOST_CURVES])


def matrix(jobs: Sequence[JobOnPage]) -> Matrix | None:
    """Return policies against tasks. None for a single policy or task, and for too many."""
    cells: dict[tuple[str, str], list[JobOnPage]] = {}
    for job in jobs:
        if job.row["success_rate"] is None:
            continue
        cells.setdefault((job.policy, job.task), []).append(job)
    policies = list(dict.fromkeys(policy for policy, _ in cells))
    tasks = tuple(dict.fromkeys(task for _, task in cells))
    if not (2 <= len(policies) <= 40 and 2 <= len(tasks) <= 40):
        return None
    found = {at: pooled_rate([job.scored for job in own], label=at[1]) for at, own in cells.items()}
    lines = ((policy, tuple(found.get((policy, task)) for task in tasks)) for policy in policies)
    return Matrix(tasks=tasks, lines=tuple(lines))

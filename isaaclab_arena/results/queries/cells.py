"""What a job's row has besides in runs with late answers, or with a policy server."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from isaaclab_arena.results.rows import JobEvidence
from isaaclab_arena.storage.run.commits import CommitLine
from isaaclab_arena.storage.run.job_reports import ServerUsage


def server_cells(evidence: JobEvidence) -> dict[str, Any]:
    """Return what a job's row has besides in a run with a policy server: what it asked, and the load of its servers."""
    reports = [report for report in evidence.reports if report.policy_server is not None]
    if not reports:
        return {}
    used = sum((report.policy_server or ServerUsage() for report in reports), ServerUsage())
    return {
        "server_queries": used.queries,
        "server_entries": used.entries,
        "server_offered_per_s": used.seen_entries / used.seen_s if used.seen_s > 0 else None,
        "server_batch_fill": used.entries / used.call_entries if used.call_entries > 0 else None,
        "server_queue_ms": 1000.0 * used.queue_s / used.queries if used.queries else None,
        "server_busy_share": used.seen_busy_s / used.seen_s if used.seen_s > 0 else None,
    }


def latency_cells(evidence: JobEvidence) -> dict[str, Any]:
    """Return what a job's row has besides in a run with late answers: what was assumed, and what it came to.

    Means over episodes count each control step alike. How long queries really took stands beside them.
    """
    config, delays = evidence.job.config.latency, evidence.job.latency
    if config is None:
        return {}
    times_s = [each for report in evidence.reports for each in report.query_s or ()]
    p50, p95 = (float(1000 * each) for each in np.percentile(times_s, (50, 95))) if times_s else (None, None)
    return {
        "latency": None if delays is None else str(delays),
        "meanwhile": str(config.meanwhile),
        **_asked(evidence),
        "measured_latency_p50_ms": p50,
        "measured_latency_p95_ms": p95,
    }


def _asked(evidence: JobEvidence) -> dict[str, float | None]:
    """Return how many actions were stale and how often the policy was asked; where the world waits, by its pace."""
    pace = next((report.query_pace for report in evidence.reports if report.query_pace is not None), None)
    lengths = [line.episode_length for line in evidence.lines]
    if pace is not None:
        return {"stale_action_share": 0.0 if lengths else None, "queries_per_s": pace.queries_per_s(lengths)}
    return {
        "stale_action_share": _mean_over_steps(evidence.lines, "latency.stale_share"),
        "queries_per_s": _mean_over_steps(evidence.lines, "latency.queries_per_s"),
    }


def _mean_over_steps(lines: Sequence[CommitLine], metric: str) -> float | None:
    measured = [(line.metrics[metric] or 0.0, line.episode_length) for line in lines if metric in line.metrics]
    steps = sum(length for _, length in measured)
    return sum(value * length for value, length in measured) / steps if steps else None

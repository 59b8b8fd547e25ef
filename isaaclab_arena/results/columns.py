"""The columns of the tables and their types: what came out, and apart from it when, where and how fast."""

JOB_COLUMNS: dict[str, str] = {
    "name": "string",
    "environment": "string",
    "task": "string",
    "embodiment": "string",
    "object": "string",
    "policy": "string",
    "checkpoint": "string",
    "policy_sha256": "string",
    "seed": "Int64",
    "status": "string",
    "planned": "Int64",
    "episodes": "Int64",
    "successes": "Int64",
    "success_rate": "Float64",
    "success_low": "Float64",
    "success_high": "Float64",
    "clopper_pearson_low": "Float64",
    "clopper_pearson_high": "Float64",
    "success_rate_lower_bound": "Float64",
    "success_rate_upper_bound": "Float64",
    "mean_length": "Float64",
    "std_length": "Float64",
    "mean_return": "Float64",
    "std_return": "Float64",
    "failures": "Int64",
    "timeouts": "Int64",
    "errors": "Int64",
    "retried": "Int64",
    "rerun": "Int64",
    "missing": "Int64",
    "cut": "Int64",
    "reproducible": "string",
    "plan_because": "string",
    "policy_batch": "Int64",
    "error": "string",
}
"""Column to type of the table of jobs, in order; equal for any ranks, interruptions and moments.

After them comes a column for every key that the job file sweeps; see `isaaclab_arena.results.merge`.
``docs/reference/results.md`` explains each column.
"""

JOB_TIMING_COLUMNS: dict[str, str] = {
    "attempts": "Int64",
    "rank": "string",
    "device": "string",
    "wall_s": "Float64",
    "build_s": "Float64",
    "simulate_s": "Float64",
    "policy_s": "Float64",
    "render_s": "Float64",
    "record_s": "Float64",
    "idle_s": "Float64",
    "import_s": "Float64",
    "compile_s": "Float64",
    "kernel_wait_s": "Float64",
    "kernel_load_s": "Float64",
    "build_environment_s": "Float64",
    "build_policy_s": "Float64",
    "first_reset_s": "Float64",
    "first_step_s": "Float64",
    "env_steps": "Int64",
    "env_steps_per_s": "Float64",
    "pictures_drawn": "Int64",
    "pictures_looked_at": "Int64",
    "traceback_file": "string",
}
"""Column to type of the times and places of a job, which differ from run to run."""

SUITE_COLUMNS: dict[str, str] = {
    "name": "string",
    "suite": "string",
    "policy": "string",
    "checkpoint": "string",
    "policy_sha256": "string",
    "seed": "Int64",
    "status": "string",
    "tasks": "Int64",
    "planned": "Int64",
    "episodes": "Int64",
    "scored": "Int64",
    "successes": "Int64",
    "mean_rate": "Float64",
    "mean_low": "Float64",
    "mean_high": "Float64",
    "mean_lower_bound": "Float64",
    "mean_upper_bound": "Float64",
    "pooled_rate": "Float64",
    "pooled_low": "Float64",
    "pooled_high": "Float64",
    "errors": "Int64",
    "missing": "Int64",
    "cut": "Int64",
    "reproducible": "string",
}
"""Column to type of the table of suites, in order; equal for any ranks, interruptions and moments."""

SIMULATION_COLUMNS: dict[str, str] = {"protocol": "string", "engine": "string", "simulated_by": "string"}
"""Column to type of the last columns of the table of suites, if environments name their engine or protocol."""

BENCHMARK_COLUMNS: dict[str, str] = {**SIMULATION_COLUMNS, "environment_sha256": "string"}
"""Column to type of the same for environments of other packages. The table of jobs has them too, after its swept
keys, in runs with such a job."""

PICTURE_COLUMNS = ("pictures_drawn", "pictures_looked_at")
"""Columns of `JOB_TIMING_COLUMNS` that tables of earlier versions lack."""

SERVER_JOB_TIMING_COLUMNS: dict[str, str] = {
    "server_queries": "Int64",
    "server_entries": "Int64",
    "server_offered_per_s": "Float64",
    "server_batch_fill": "Float64",
    "server_queue_ms": "Float64",
    "server_busy_share": "Float64",
}
"""Column to type of the load of policy servers, after the other timing columns, in runs with a policy server."""

LATENCY_JOB_COLUMNS: dict[str, str] = {
    "latency": "string",
    "meanwhile": "string",
    "stale_action_share": "Float64",
    "queries_per_s": "Float64",
}
"""Column to type of the assumed latency, after the swept keys of the table of jobs, in runs with latency."""

LATENCY_JOB_TIMING_COLUMNS: dict[str, str] = {
    "measured_latency_p50_ms": "Float64",
    "measured_latency_p95_ms": "Float64",
}
"""Column to type of the measured query times on this machine, in the same runs."""

QUESTION_JOB_COLUMNS: dict[str, str] = {"decision": "string", "decided_at": "Int64", "interval_kind": "string"}
"""Column to type of the last columns of the table of jobs, in runs with questions."""

QUESTION_JOB_TIMING_COLUMNS: dict[str, str] = {"episodes_beyond": "Int64"}
"""Column to type of the episodes that ranks finished beyond a decision, in the same runs; differs from run to run."""

QUESTION_EPISODE_COLUMNS: dict[str, str] = {"beyond_decision": "boolean"}
"""Column to type of the last column of the table of episodes, in the same runs."""

DISTINCT_COLUMNS: dict[str, str] = {"distinct_conditions": "Int64"}
"""Column to type of the last column of the tables of jobs, suites and groups, if a rate has fewer conditions than
scored episodes: the number of distinct conditions."""

ACTION_COLUMNS: dict[str, str] = {"saturated_action_share": "Float64"}
"""Column to type of the last column of the tables of jobs, suites, groups and episodes, if actions have bounds: the
share of entries at or beyond the bounds. Episodes of earlier versions have none."""

START_COLUMNS: dict[str, str] = {"start": "Int64"}
"""Column to type of a further column of the table of episodes, if episodes with different seeds have equal starts and
results: a number that is equal for them; see `isaaclab_arena.results.stopping.alike_starts`."""

EPISODE_COLUMNS: dict[str, str] = {
    "job": "string",
    "episode_index": "Int64",
    "environment": "string",
    "object": "string",
    "policy": "string",
    "seed": "Int64",
    "episode_seed": "Int64",
    "outcome": "string",
    "success": "boolean",
    "length": "Int64",
    "return": "Float64",
    "termination": "string",
    "error": "string",
    "language_instruction": "string",
    "conditions": "string",
    "metrics": "string",
    "checksum": "Int64",
}
"""Column to type of the table of episodes, in order; conditions and metrics are JSON."""

EPISODE_TIMING_COLUMNS: dict[str, str] = {
    "attempt": "Int64",
    "rank": "Int64",
    "env_id": "Int64",
    "episode_in_env": "Int64",
    "timestamp": "string",
    "wall_s": "Float64",
    "dataset_file": "string",
}
"""Column to type of the time and place of an episode."""

EVENT_JOB_COLUMNS: dict[str, str] = {"failure_progress": "Float64", "score": "Float64"}
"""Column to type of the last columns of a job in Parquet and JSON, if environments report events."""

EVENT_EPISODE_COLUMNS: dict[str, str] = {"progress": "Float64", "decisive_event": "string", "events": "string"}
"""Column to type of the last columns of an episode in Parquet, in the same runs; events are JSON."""

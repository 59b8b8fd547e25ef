"""The table of jobs as text to paste: Markdown, LaTeX, and a BibTeX entry of the run."""

from collections.abc import Sequence

from isaaclab_arena.analysis.comparison_files import TextTable, latex_table, markdown_table
from isaaclab_arena.logs import plain_text
from isaaclab_arena.report.groups import SuiteOnPage
from isaaclab_arena.report.jobs import JobOnPage
from isaaclab_arena.results.rows import of_conditions
from isaaclab_arena.storage.run.run_plan import RunPlan

PROGRAM = "Isaac Lab Arena on MuJoCo"
AUTHORS = "The authors of Isaac Lab Arena on MuJoCo"

_HEADINGS = ("job", "environment", "policy", "succeeded", "success % [95 %]", "length", "return", "errors")

_SUITE_HEADINGS = (
    "suite",
    "of",
    "policy",
    "tasks",
    "episodes",
    "mean of tasks % [95 %]",
    "all episodes % [95 %]",
    "errors",
)


def text_table(jobs: Sequence[JobOnPage]) -> TextTable:
    """Return the table of jobs as text."""
    return TextTable(headings=_HEADINGS, rows=tuple(map(_cells, jobs)))


def suites_text_table(suites: Sequence[SuiteOnPage]) -> TextTable:
    """Return the table of suites as text."""
    return TextTable(headings=_SUITE_HEADINGS, rows=tuple(map(_suite_cells, suites)))


def texts(
    jobs: Sequence[JobOnPage], plans: Sequence[RunPlan], suites: Sequence[SuiteOnPage] = ()
) -> tuple[tuple[str, str], ...]:
    """Return what can be copied, each with its name; suites, where there are any, before their jobs."""
    tables = {"Suites, ": suites_text_table(suites), "": text_table(jobs)} if suites else {"": text_table(jobs)}
    copied = []
    for what, table in tables.items():
        copied += [(f"{what}Markdown", markdown_table(table) + "\n"), (f"{what}LaTeX", latex_table(table))]
    return (*copied, ("BibTeX", "\n".join(map(bibtex, plans))))


def bibtex(plan: RunPlan) -> str:
    """Return one line that cites this program and a run of it."""
    version = plan.versions.get("isaaclab-arena-mujoco", "unknown")
    note = f"run {plan.run_id}, config hash {plan.config_hash}"
    return (
        f"@software{{isaaclab_arena_mujoco_{plan.run_id[:8]}, title = {{{PROGRAM}}}, author = {{{{{AUTHORS}}}}}, "
        f"version = {{{version}}}, year = {{{plan.created_at[:4]}}}, note = {{{note}}}}}"
    )


def _cells(job: JobOnPage) -> tuple[str, ...]:
    row = job.row
    rated = row["success_rate"] is not None
    return (
        job.name,
        job.keys.get("environment", ""),
        job.keys.get("policy", "").replace(":", ".").rpartition(".")[2],
        f"{row['successes']}/{job.num_scored}{job.repeats}" if rated else "-",
        job.rate.replace(" %", ""),
        "-" if row["mean_length"] is None else f"{row['mean_length']:.1f}",
        "-" if row["mean_return"] is None else f"{row['mean_return']:.2f}",
        str(row["errors"]),
    )


def _suite_cells(suite: SuiteOnPage) -> tuple[str, ...]:
    row = suite.row
    return (
        suite.name,
        plain_text(row["suite"]),
        plain_text(row["policy"]).replace(":", ".").rpartition(".")[2],
        str(row["tasks"]),
        f"{row['episodes']}{of_conditions(row.get('distinct_conditions'), row['scored'])}",
        suite.mean.replace(" %", ""),
        suite.pooled.replace(" %", ""),
        str(row["errors"]),
    )

"""The table of jobs as text to paste: Markdown, LaTeX, and a BibTeX entry of the run."""

from collections.abc import Sequence

from isaaclab_arena.analysis.comparison_files import latex_table, markdown_table
from isaaclab_arena.analysis.comparison_table import TextTable
from isaaclab_arena.report.jobs import JobOnPage
from isaaclab_arena.storage.run.run_plan import RunPlan

PROGRAM = "Isaac Lab Arena on MuJoCo"
AUTHORS = "The authors of Isaac Lab Arena on MuJoCo"

_HEADINGS = ("job", "environment", "policy", "succeeded", "success % [95 %]", "length", "return", "errors")


def text_table(jobs: Sequence[JobOnPage]) -> TextTable:
    """Return the table of jobs as text."""
    return TextTable(headings=_HEADINGS, rows=tuple(map(_cells, jobs)))


def texts(jobs: Sequence[JobOnPage], plans: Sequence[RunPlan]) -> tuple[tuple[str, str], ...]:
    """Return what can be copied, each with its name."""
    table = text_table(jobs)
    citations = "\n".join(map(bibtex, plans))
    return ("Markdown", markdown_table(table) + "\n"), ("LaTeX", latex_table(table)), ("BibTeX", citations)


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
        f"{row['successes']}/{job.num_scored}" if rated else "-",
        job.rate.replace(" %", ""),
        "-" if row["mean_length"] is None else f"{row['mean_length']:.1f}",
        "-" if row["mean_return"] is None else f"{row['mean_return']:.2f}",
        str(row["errors"]),
    )

"""Show the variations of each job's environment, for ``--list_variations``."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isaaclab_arena.evaluation.console import show_results, speaks_for_all
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.interfaces.variation import Sampler, SamplerType, VariableEnvironmentBuilder, Variation


def show_variations(jobs: Sequence[Job]) -> int:
    """Show what may vary in each job, on rank 0 alone, and return the exit code."""
    if speaks_for_all():
        show_results(lambda console: print_variations(jobs, console))
    return 0


def print_variations(jobs: Sequence[Job], console: Console) -> None:
    """Show the catalogue of every job; what a job has turned on is marked, with the job's own range.

    Args:
        jobs: The jobs.
        console: Where to show it.
    """
    for job in jobs:
        listed = listed_variations(job)
        console.print(Text(f"job '{job.config.name}', environment '{job.config.environment}':", style="bold"))
        if listed:
            console.print(_table(listed), soft_wrap=True)
        else:
            console.print("  nothing can be varied in this environment")


def listed_variations(job: Job) -> tuple[Variation, ...]:
    """Return everything that may vary in a job's environment, with the job's own ranges where it gives some."""
    if not isinstance(job.builder, VariableEnvironmentBuilder):
        return ()
    own = {variation.key: variation for variation in job.variations}
    return tuple(own.get(each.key, each) for each in job.builder.variations(job.environment_config))


def described(sampler: Sampler) -> str:
    """Return a sampler in a few words: ``0.05 to 0.2``, ``one of 1, 2``."""
    low, high = _shown_values(sampler.low), _shown_values(sampler.high)
    if sampler.type is SamplerType.UNIFORM:
        return low if low == high else f"{low} to {high}"
    if sampler.type is SamplerType.BERNOULLI:
        return f"{high} with probability {sampler.p:g}, else {low}"
    choices = ", ".join(choice if isinstance(choice, str) else _shown_values(choice) for choice in sampler.choices)
    return f"{choices} in turn" if sampler.type is SamplerType.SEQUENTIAL_CHOICE else f"one of {choices}"


def _table(variations: Sequence[Variation]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for heading in ("variation", "on", "range", "unit", "meaning"):
        table.add_column(heading, overflow="fold")
    for variation in variations:
        on = "on" if variation.enabled else "-"
        table.add_row(variation.key, on, described(variation.sampler), variation.unit or "-", variation.description)
    return table


def _shown_values(values: tuple[float, ...]) -> str:
    numbers = [f"{value:.4g}" for value in values]
    return "".join(numbers) if len(numbers) < 2 else f"({', '.join(numbers)})"

"""``isaaclab-arena plan``: say how many episodes it takes to tell two policies apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pandas as pd
import tyro
from rich.text import Text

from isaaclab_arena.analysis.arms import named_arm, read_run
from isaaclab_arena.cli.commands.asking import check_share
from isaaclab_arena.cli.json_output import print_json
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.console import results_console
from isaaclab_arena.results.console import drawn
from isaaclab_arena.results.statistics import (
    independent_power,
    least_number,
    pair_chances,
    paired_power,
    simulated_stop,
)

_MOST_PAIRS = 20_000


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Say how many episodes it takes to find a difference of success rates, by the tests that will decide."""

    difference: float
    """The difference to find: 0.1 for 10 points, negative for a worse policy."""
    baseline: float | None = None
    """Success rate of the baseline."""
    from_run: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Run to take that rate from: of its only job, or of --job."""
    job: str | None = None
    """The job of that run."""
    power: float = 0.8
    """Probability of finding the difference."""
    alpha: float = 0.05
    """Probability of finding a difference if there is none."""
    json: bool = False
    """Print JSON instead of a table."""


def main(argv: Sequence[str]) -> int:
    """Show the number of episodes that a comparison needs; ConfigError if a number, run or job is wrong."""
    options = tyro.cli(PlanOptions, args=argv, prog="isaaclab-arena plan", use_underscores=True)
    baseline = _baseline(options)
    for name in ("power", "alpha"):
        check_share(name, getattr(options, name))
    candidate = baseline + options.difference
    if options.difference == 0.0 or not 0.0 <= candidate <= 1.0:
        message = f"from a rate of {baseline:g} it must lead to another one between 0 and 1, got {options.difference:g}"
        raise ConfigError(message, key="--difference")

    planned = []
    for agreement in (0.0, 0.5, 1.0):
        chances = pair_chances(candidate, baseline, agreement=agreement)
        pairs = least_number(
            lambda number, chances=chances: paired_power(number, chances, alpha=options.alpha),
            power=options.power,
            at_most=_MOST_PAIRS,
        )
        until_stopped = simulated_stop(chances, alpha=options.alpha, at_most=_MOST_PAIRS)
        # ``agreement`` is the share of the conditions that decide alone, ``pairs`` the number for the test with a fixed
        # number, and ``until_stopped`` its mean if the test stops once it is decided; None for more than 20,000.
        planned.append({"agreement": agreement, "pairs": pairs, "until_stopped": until_stopped})
    # For comparison: the same difference without pairs usually needs more episodes.
    most_independent = 400
    independent = least_number(
        lambda number: independent_power(number, candidate, baseline, alpha=options.alpha),
        power=options.power,
        at_most=most_independent,
    )

    if options.json:
        rates = {"baseline": baseline, "candidate": candidate}
        print_json({**rates, "paired": planned, "independent": independent})
        return 0
    console = results_console()
    rates = f"{100 * baseline:.1f} % against {100 * candidate:.1f} %"
    console.print(Text(f"{rates}, to be found in {100 * options.power:g} % of tries:"))
    said = {0.0: "nothing to do with each other", 0.5: "half as alike as they can be", 1.0: "as alike as they can be"}
    rows = [(said[each["agreement"]], _shown(each["pairs"]), _shown(each["until_stopped"])) for each in planned]
    headings = ["the same conditions; outcomes", "pairs (McNemar's mid-p)", "on average, stopped as soon as decided"]
    console.print(drawn(pd.DataFrame(rows, columns=headings)))
    number = f"more than {most_independent}" if independent is None else str(independent)
    console.print(Text(f"other conditions for each policy: {number} episodes of either (Boschloo's test)"))
    return 0


def _baseline(options: PlanOptions) -> float:
    if (options.baseline is None) == (options.from_run is None):
        raise ConfigError("give the baseline's rate with --baseline, or a run that has it with --from")
    if options.baseline is not None:
        if not 0.0 <= options.baseline <= 1.0:
            raise ConfigError(f"must be 0 to 1, got {options.baseline:g}", key="--baseline")
        return options.baseline
    arms = read_run(options.from_run or Path()).arms
    if options.job is None and len(arms) != 1:
        raise ConfigError(f"say which of the run's jobs: {', '.join(arms)}", key="--job")
    arm = named_arm(arms, options.job or next(iter(arms)), option="--job")
    success = arm.episodes.success
    if not arm.measures_success:
        raise ConfigError(f"'{arm.entry.name}' does not measure success", key="--job")
    return float((success > 0).sum() / (success >= 0).sum())


def _shown(number: float | None) -> str:
    return f"more than {_MOST_PAIRS:,}" if number is None else f"{number:,.0f}"

"""Put small faults into the code, one at a time, and say which of them the tests notice: ``make mutants``.

The faults stand in the lists beside this file, picked by hand: slips that would make a published number wrong. Each
names the tests that must notice it. A program like mutmut makes its own faults, thousands that nobody would make; and
mutmut 3 changes only what stands in functions, not the constants of a module, which success rules consist of.

Nothing here touches the working tree: each process works in a copy of it. First the tests run once as they are. Ends
with 1 if fewer than nine faults in ten are noticed, and with 2 if a fault no longer fits or the tests fail without one.
"""

import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from tests.mutants.faults import Fault, areas, read_faults
from tests.mutants.trial import Trial, Verdict, fails_without_a_fault, try_faults

DIRECTORY = Path(__file__).parent
ROOT = DIRECTORY.parents[1]
ENOUGH = 0.9


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which faults to try, and how.

    Attributes:
        area: Lists to try, ``--area storage wires``; all by default.
        file: Only faults of files whose path contains this.
        processes: How many faults are tried at the same time, each in a copy of the tree.
        sample: How many faults to draw at random; all by default.
        seed: Which sample is drawn.
        timeout_s: How long the tests of one fault may take [s]; a fault that makes them hang is noticed.
        root: The tree whose copies are broken.
        directory: Where the lists are.
    """

    area: tuple[str, ...] = ()
    file: str = ""
    processes: int = 1
    sample: int | None = None
    seed: int = 0
    timeout_s: float = 240.0
    root: Path = ROOT
    directory: Path = DIRECTORY


def chosen(options: Options) -> list[Fault]:
    """Return the faults that the options ask for."""
    names = options.area or areas(options.directory)
    faults = [fault for area in names for fault in read_faults(options.directory, area) if options.file in fault.file]
    if options.sample is None or options.sample >= len(faults):
        return faults
    print(f"a sample of {options.sample} of {len(faults)} faults, seed {options.seed}")
    return random.Random(options.seed).sample(faults, options.sample)


def table(trials: Iterable[Trial]) -> list[str]:
    """Return the lines of the table: one per area, and the sum."""
    by_area: dict[str, list[Trial]] = {}
    for trial in trials:
        by_area.setdefault(trial.fault.area, []).append(trial)
    lines = [f"{'area':<24}{'faults':>8}{'noticed':>9}{'timed out':>11}{'survived':>10}{'share':>8}"]
    lines += [_line(area, by_area[area]) for area in sorted(by_area)]
    return [*lines, _line("all", [trial for group in by_area.values() for trial in group])]


def _line(name: str, trials: Sequence[Trial]) -> str:
    noticed, late, survived = (
        sum(trial.verdict is verdict for trial in trials)
        for verdict in (Verdict.NOTICED, Verdict.TIMED_OUT, Verdict.SURVIVED)
    )
    return f"{name:<24}{len(trials):>8}{noticed:>9}{late:>11}{survived:>10}{share_noticed(trials):>8.0%}"


def share_noticed(trials: Sequence[Trial]) -> float:
    """Return the share of faults that did not survive; all of none."""
    return sum(trial.verdict is not Verdict.SURVIVED for trial in trials) / len(trials) if trials else 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the faults that the command line asks for, and return the exit code."""
    options = tyro.cli(Options, args=arguments, description=__doc__)
    faults = chosen(options)
    misfits = [(fault, misfit) for fault in faults if (misfit := fault.misfit(options.root))]
    for fault, misfit in misfits:
        print(f"{fault.area}.yaml: {misfit}")
    if misfits:
        return 2
    print(f"{len(faults)} faults; the tests without any first")
    if failure := fails_without_a_fault(options.root, faults, timeout_s=options.timeout_s):
        print(failure[-4000:], "the tests fail without a fault, so that a failure says nothing", sep="\n")
        return 2
    trials: list[Trial] = []
    for trial in try_faults(options.root, faults, processes=options.processes, timeout_s=options.timeout_s):
        trials.append(trial)
        print(f"{trial.verdict:<10}{trial.took_s:7.1f} s  {trial.fault.file}: {trial.fault.why}", flush=True)
    print()
    for trial in trials:
        if trial.verdict is Verdict.SURVIVED:
            print(f"survived: {trial.fault.file}: {trial.fault.why}\n- {trial.fault.old}\n+ {trial.fault.new}\n")
    print(*table(trials), sep="\n")
    return 0 if share_noticed(trials) >= ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())

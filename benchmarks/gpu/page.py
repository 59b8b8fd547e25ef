"""Write the page of a GPU's figures: a table for each measurement, and the verdict on the goals."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.gpu.results import EpisodesRow, PhysicsRow, PicturesRow, episodes_row
from benchmarks.harness.measure import markdown_table


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """A number of worlds, or a limit of the measured numbers."""

    side: Literal["between", "below", "above"]  # Below the smallest number the GPU was always quicker, above it never.
    worlds: float  # That number.

    def __str__(self) -> str:
        """Return it as a cell of a table."""
        number = f"{self.worlds:,.0f}"
        return number if self.side == "between" else f"{self.side} {number}"


def crossover(speeds: Iterable[tuple[int, float, float]]) -> Crossover:
    """Return the number of worlds from which the first speed stays higher, between or beyond the measured numbers."""
    # Between two measured numbers, the ratio of the speeds is a straight line on logarithmic axes.
    points = sorted((worlds, math.log(gpu / cpu)) for worlds, gpu, cpu in speeds)
    if points[-1][1] < 0:
        return Crossover(side="above", worlds=points[-1][0])
    slower = [index for index, (_, gain) in enumerate(points) if gain < 0]
    if not slower:
        return Crossover(side="below", worlds=points[0][0])
    (before, loss), (after, gain) = points[slower[-1]], points[slower[-1] + 1]
    place = -loss / (gain - loss)
    return Crossover(side="between", worlds=before * (after / before) ** place)


BACKEND_GOAL, ENVIRONMENT_GOAL = 0.9, 0.7
PHASES = ("simulate", "policy", "render", "record")

TITLE = """\
# What a GPU gives

`make gpu-check` writes this page. It runs tests, training and job files on a GPU. Then it measures physics, pictures
and whole evaluations, beside MuJoCo on all cores of the same machine's CPU. If you have a GPU for minutes only,
`make gpu-check OPTIONS="--limit_s 540 --missing"` stops after nine, and continues the next time.
"""
NOTHING = "No machine with a GPU has run it yet, so there is nothing to show."

PHYSICS = """\
Physics steps of all worlds per second, medians of alternating turns from the same states. "Alone" is MuJoCo-Warp as
one CUDA graph per control step. "Environment" adds observations, rewards and new episodes. `mjwarp-testspeed` is that
program's own figure: it waits after every step, and is empty where something does not fit. Memory is the
device's. Building is with compiled kernels."""

CROSSOVER = """\
Number of worlds from which the GPU makes more physics steps per second than MuJoCo on the CPU, interpolated
between measured numbers:"""

PICTURES = """\
Pictures per second of all cameras together: rendering alone, in whole control steps, and rendering alone on the CPU,
whose speed does not depend on the number of worlds. Memory includes the worlds and their cameras."""

EPISODES = """\
Whole evaluations by `eval_runner`, recorded, each in its own process, the policy on the device of the simulation:
episodes per second without building, and with it. Shares are those of the time without building. On a GPU, work counts
towards the phase that waits for it. "Times the CPU" compares episodes per second without and with building."""


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the document, with a section for each measured machine."""
    lines = [TITLE]
    if not results:
        lines += [NOTHING, ""]
    for result in results:
        lines += [*machine_lines(result), ""]
    return "\n".join(lines)


def machine_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the section of one machine."""
    lines = [f"## {result['gpu']}", "", f"{result['cpu']}. {result['versions']}.", ""]
    lines += check_lines(result["checks"])
    physics = [PhysicsRow(**row) for row in result.get("physics", ())]
    pictures = [PicturesRow(**row) for row in result.get("pictures", ())]
    episodes = [episodes_row(row) for row in result.get("episodes", ())]
    if physics:
        lines += ["", "### Physics", "", PHYSICS, "", *physics_lines(physics)]
    if pictures:
        lines += ["", "### Pictures", "", PICTURES, "", *pictures_lines(pictures)]
    if episodes:
        lines += ["", "### Episodes", "", EPISODES, "", *episodes_lines(episodes)]
    return lines


def check_lines(checks: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of the checks that passed in one line, and a line for each of the others."""
    passed = [each["name"] for each in checks if each["outcome"] == "passed"]
    others = [check_line(each) for each in checks if each["outcome"] != "passed"]
    return [*([f"- passed: {'; '.join(passed)}"] if passed else []), *others]


def check_line(check: Mapping[str, Any]) -> str:
    """Return the outcome of a check, with its last line of output if it failed."""
    if check["outcome"] == "out of time":
        return f"- out of time: {check['name']}: not finished after {check['seconds']:.0f} s"
    output = [line for line in check["last_lines"] if line.strip()]
    return f"- {check['outcome']}: {check['name']}" + (f": {output[-1].strip()}" if output else "")


def physics_lines(rows: Sequence[PhysicsRow]) -> list[str]:
    """Return the table of physics, the goals, and the crossovers."""
    table = [
        (
            *(f"`{row.task}`", f"{row.worlds:,}", "" if row.testspeed is None else f"{row.testspeed:,.0f}"),
            *(f"{row.bare:,.0f}", f"{row.backend:,.0f}", f"{row.backend / row.bare:.2f}"),
            *(f"{row.environment:,.0f}", f"{row.environment / row.bare:.2f}", f"{row.cpu:,.0f}"),
            *(_kilobytes(row.bytes_per_world), f"{row.build_s:.1f}"),
        )
        for row in rows
    ]
    heading = (
        *("task", "worlds", "`mjwarp-testspeed`", "MuJoCo-Warp alone", "backend", "of alone", "environment"),
        *("of alone", "CPU", "kB a world", "build s"),
    )
    return [*markdown_table(heading, table), *goal_lines(rows), *crossover_lines(rows)] if rows else []


def goal_lines(rows: Sequence[PhysicsRow]) -> list[str]:
    """Return, for each goal, the number of rows that meet it, and the row that misses it most."""
    goals: list[tuple[str, float, Callable[[PhysicsRow], float | None]]] = [
        ("The backend, of MuJoCo-Warp alone", BACKEND_GOAL, lambda row: row.backend / row.bare),
        ("The backend, of `mjwarp-testspeed`", BACKEND_GOAL, lambda row: row.testspeed and row.backend / row.testspeed),
        ("Control steps, of MuJoCo-Warp alone", ENVIRONMENT_GOAL, lambda row: row.environment / row.bare),
    ]
    lines = []
    for words, goal, ratio in goals:
        found = [(value, row) for row in rows if (value := ratio(row)) is not None]
        if not found:
            continue
        lowest, where = min(found, key=lambda each: each[0])
        met = sum(value >= goal for value, _ in found)
        verdict = "met" if met == len(found) else "**not met**" if met == 0 else f"met in {met} of {len(found)} lines"
        worlds = f"{where.worlds:,} world{'s' if where.worlds > 1 else ''}"
        lines.append(f"- {words}: at least {goal} is {verdict}; the least is {lowest:.2f}, `{where.task}`, {worlds}.")
    return ["", *lines]


def crossover_lines(rows: Sequence[PhysicsRow]) -> list[str]:
    """Return the table of crossovers: a row for each task."""
    table = []
    for task in dict.fromkeys(row.task for row in rows):
        own = [row for row in rows if row.task == task]
        ways = ([(row.worlds, getattr(row, way), row.cpu) for row in own] for way in ("bare", "backend"))
        table.append((f"`{task}`", *(str(crossover(speeds)) for speeds in ways)))
    return ["", CROSSOVER, "", *markdown_table(("task", "MuJoCo-Warp alone", "backend"), table)]


def pictures_lines(rows: Sequence[PicturesRow]) -> list[str]:
    """Return the table of pictures."""
    heading = ("task", "picture", "worlds", "rendering", "control steps", "CPU", "times the CPU", "kB a world")
    table = [
        (
            *(f"`{row.task}`", f"{row.size_px} x {row.size_px}", f"{row.worlds:,}", f"{row.rendered:,.0f}"),
            *(f"{row.stepped:,.0f}", f"{row.cpu:,.0f}", f"{row.rendered / row.cpu:.2f}"),
            _kilobytes(row.bytes_per_world),
        )
        for row in rows
    ]
    return markdown_table(heading, table, words=2) if rows else []


def episodes_lines(rows: Sequence[EpisodesRow]) -> list[str]:
    """Return the table of whole evaluations: a line for each side of a row."""
    heading = (
        *("job", "`num_envs`", "episodes", "simulated by", "episodes/s", "episodes/s with building"),
        *(*PHASES, "rest", "times the CPU", "times the CPU with building"),
    )
    table = []
    for row in rows:
        gains = (row.warp.per_s / row.cpu.per_s, row.warp.per_s_with_build / row.cpu.per_s_with_build)
        for name, side, last in (
            ("MuJoCo-Warp", row.warp, [f"{gain:.2f}" for gain in gains]),
            ("MuJoCo", row.cpu, ["", ""]),
        ):
            shares = [side.share(phase) for phase in PHASES]
            table.append(
                (
                    *(row.job, f"{row.worlds:,}", f"{side.episodes:,}", name),
                    *(_three_digits(side.per_s), _three_digits(side.per_s_with_build)),
                    *(f"{100 * share:.0f} %" for share in (*shares, max(0.0, 1 - sum(shares)))),
                    *last,
                )
            )
    return markdown_table(heading, table) if rows else []


def _kilobytes(number: float | None) -> str:
    return "" if number is None else f"{number / 1e3:,.0f}"


def _three_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"

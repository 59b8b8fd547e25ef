"""Every file of a run is lost, empty, torn, a directory or another run's: what commands say of it and do.

``docs/how_to/resuming.md`` sums it up for users.
"""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.cli.main import main
from tests.faults.file_operations import Effect, Fault
from tests.faults.invariants import check_results
from tests.faults.world import World

NUM_EPISODES = 4
DAMAGES = ("missing", "empty", "torn", "directory", "another run's")
_TIME = re.compile(r"<span>written [^<]*</span>")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is said of a damaged file, and done: exit codes of three commands, and what they show."""

    merge: int = 0
    merge_says: str = ""
    report: int = 0
    page_says: str | None = None  # None where it shows what it did before
    resume: int = 0
    resume_says: str = "is complete; there is nothing to do"
    again: int = 0  # how many episodes a resume runs that the run had finished
    aside: str | None = None  # what a resume sets aside, in any directory
    way_out: Callable[[Path], object] | None = None  # what makes a resume go on where it has refused


def recover(path: Path) -> None:
    assert main(["recover", str(path.parent)]) == 0


def bring_back(path: Path) -> None:
    """The plan of another run is whole, so its copy has to be put in its place by hand."""
    shutil.copyfile(path.parent / "attempts" / "plan.json", path)


def row(*, missing: Cell, empty: Cell, torn: Cell, directory: Cell, others: Cell) -> dict[str, Cell]:
    """Return the cells of a file."""
    return dict(zip(DAMAGES, (missing, empty, torn, directory, others), strict=True))


LOST_PLAN = Cell(
    merge=2,
    merge_says="holds no run.json: it is lost; isaaclab-arena recover restores it",
    report=2,
    resume=2,
    resume_says="has lost its run.json; isaaclab-arena recover restores it",
    way_out=recover,
)


def no_plan(why: str) -> Cell:
    mend = "run.json: isaaclab-arena recover restores it from its copy"
    return Cell(merge=2, merge_says=why, report=2, resume=2, resume_says=mend, way_out=recover)


def no_line(merge_says: str = "", resume_says: str = "", aside: str | None = None, lacks: str = "4 episodes") -> Cell:
    adopted = "recorded, but not committed"
    return Cell(
        merge=1, merge_says=merge_says or f"job 'a' lacks {lacks}", resume_says=resume_says or adopted, aside=aside
    )


def no_recording(says: str = "but no matching recording, and will run again", aside: str | None = None) -> Cell:
    return Cell(resume_says=says, again=NUM_EPISODES, aside=aside or "episode_results_rank0.jsonl")


def no_report(why: str | None = None) -> Cell:
    if why is None:
        return Cell(merge=1, merge_says="job 'a' was interrupted", resume_says="1 of 1 jobs are unfinished")
    says = f"job_report_rank0.json: {why}"
    return Cell(merge=1, merge_says=says, resume_says=says, aside="job_report_rank0.json")


def told_attempt(why: str) -> Cell:
    says = f"attempt_1.json: {why}"
    return Cell(merge_says=says, resume_says=says)


def table(name: str) -> dict[str, Cell]:
    anew = Cell(resume_says=f"{name} did not match the commit record, and is written again")
    in_the_way = Cell(
        merge=1,
        merge_says=f"{name}: Is a directory; move it away",
        resume_says=f"{name}: is a directory, not a file",
        aside=name,
    )
    return row(missing=anew, empty=anew, torn=anew, directory=in_the_way, others=anew)


def unread(name: str, *, report: int = 0) -> dict[str, Cell]:
    """A file that these commands write, or that nothing depends on."""
    aside = Cell(resume_says=f"{name}: is a directory, not a file", aside=name, report=report)
    return row(missing=Cell(), empty=Cell(), torn=Cell(), directory=aside, others=Cell())


LIKE_OTHERS = ("episodes.csv", "timing.csv", "timing.parquet", "episode_timing.csv", "episode_timing.parquet")
TABLES = (*LIKE_OTHERS, "results.csv", "results.parquet", "episodes.parquet", "results.json")

FINISHED: dict[str, dict[str, Cell]] = {
    "run.json": row(
        missing=LOST_PLAN,
        empty=no_plan("run.json: is empty"),
        torn=no_plan("run.json: is not valid JSON"),
        directory=LOST_PLAN,
        others=Cell(
            merge=1,
            merge_says="4 lines are of another run and do not count",
            resume=2,
            resume_says="is a different run ",
            way_out=bring_back,
        ),
    ),
    "attempts/plan.json": unread("plan.json"),
    "attempts/attempt_1.json": row(
        missing=Cell(),
        empty=told_attempt("is empty; run.json and the recordings hold the versions"),
        torn=told_attempt("is not valid JSON"),
        directory=told_attempt("is a directory, not a file; run.json and the recordings hold"),
        others=told_attempt("is of another run; run.json and the recordings hold the versions"),
    ),
    "a/episode_results_rank0.jsonl": row(
        missing=no_line(),
        empty=no_line(),
        torn=no_line(resume_says="its last line was torn when its process died", lacks="3 episodes"),
        directory=no_line("is a directory, not a file", aside="episode_results_rank0.jsonl"),
        others=no_line("4 lines are of another run and do not count", aside="episode_results_rank0.jsonl"),
    ),
    "a/dataset_a.hdf5": row(
        missing=no_recording(),
        empty=no_recording("file signature not found", aside="dataset_a.hdf5"),
        torn=no_recording("truncated file", aside="dataset_a.hdf5"),
        directory=no_recording("set aside dataset_a.hdf5: cannot read", aside="dataset_a.hdf5"),
        others=no_recording("its commit line says seed 0, its recording 100", aside="e000003.h5"),
    ),
    "a/job_report_rank0.json": row(
        missing=no_report(),
        empty=no_report("is empty"),
        torn=no_report("is not valid JSON"),
        directory=no_report("is a directory, not a file"),
        others=no_report("is of another run"),
    ),
    **{name: table(name) for name in TABLES},
    "report.html": unread("report.html", report=1),
    "verification.json": row(
        missing=Cell(page_says="<dt>check it</dt>"),
        empty=Cell(page_says="cannot be read: "),
        torn=Cell(page_says="is not valid JSON"),
        directory=Cell(
            resume_says="verification.json: is a directory", aside="verification.json", page_says="check it"
        ),
        others=Cell(page_says="The run has changed since."),
    ),
    "logs/rank0.log": unread("rank0.log"),
    "logs/rank0.status.json": unread("rank0.status.json"),
    ".lock": row(
        missing=Cell(),
        empty=Cell(),
        torn=Cell(),
        directory=Cell(resume=1, resume_says=".lock: Is a directory; move it away", way_out=Path.rmdir),
        others=Cell(),
    ),
}
"""What becomes of each file of a finished run."""

FAST = ("run.json", "a/episode_results_rank0.jsonl", "a/dataset_a.hdf5", "results.csv", "a/episodes/e000000.h5")
"""Files that hold what a run has found; the others wait for the nightly tests."""


def on_its_way(resume_says: str = "100%, episodes", **cell: object) -> Cell:
    return Cell(**{"merge": 1, "merge_says": "it was interrupted", "resume_says": resume_says, **cell})


def begun(why: str) -> Cell:
    says = f"job_begun_rank0_attempt1.json: {why}"
    return on_its_way(says, merge_says=says, aside="job_begun_rank0_attempt1.json")


def lost_recording(why: str = "had a commit line but no matching recording", aside: str | None = None) -> Cell:
    return on_its_way(why, again=1, aside=aside or "episode_results_rank0.jsonl")


def part(name: str) -> dict[str, Cell]:
    aside = on_its_way(f"{name}: is a directory, not a file", aside=name)
    return row(missing=on_its_way(), empty=on_its_way(), torn=on_its_way(), directory=aside, others=on_its_way())


def unheeded() -> dict[str, Cell]:
    return dict.fromkeys(DAMAGES, on_its_way())


INTERRUPTED: dict[str, dict[str, Cell]] = {
    "a/episodes/e000000.h5": row(
        missing=lost_recording(),
        empty=lost_recording("set aside episode 0 of e000000.h5", aside="e000000.h5"),
        torn=lost_recording("set aside episode 0 of e000000.h5", aside="e000000.h5"),
        directory=lost_recording("e000000.h5: is a directory, not a file", aside="e000000.h5"),
        others=lost_recording("its commit line says seed 0, its recording 100", aside="e000000.h5"),
    ),
    "a/job_begun_rank0_attempt1.json": row(
        missing=on_its_way(),
        empty=begun("is empty"),
        torn=begun("is not valid JSON"),
        directory=begun("is a directory, not a file"),
        others=begun("is of another run"),
    ),
    "attempts/attempt_1.json": row(
        missing=on_its_way(),
        empty=on_its_way(merge_says="attempt_1.json: is empty"),
        torn=on_its_way(merge_says="attempt_1.json: is not valid JSON"),
        directory=on_its_way(merge_says="attempt_1.json: is a directory, not a file"),
        others=on_its_way(merge_says="attempt_1.json: is of another run"),
    ),
    **dict.fromkeys((f"claims/attempt_1/j000000_p00000.{end}" for end in ("g1", "done")), unheeded()),
    **{f"logs/{name}": part(name) for name in ("rank0.log", "rank0.status.json", "rank0.watchdog.txt")},
}
"""The same of a run whose rank died between its third recording and its line, for files that such a run alone has or
writes on."""


@pytest.fixture(scope="module")
def world(server, tmp_path_factory) -> World:
    return _world(server, tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(server, tmp_path_factory) -> World:
    """Another run of jobs of the same names."""
    return _world(server, tmp_path_factory.mktemp("theirs"), seed=100)


@pytest.fixture(scope="module")
def shown(world) -> str:
    """What the page of the undamaged run shows."""
    world.bring_back("finished")
    return page(world)


def _world(server, directory: Path, **keys: Any) -> World:
    world = World(directory, server, "--assignment=dynamic", num_jobs=1, num_episodes=NUM_EPISODES, **keys)
    fault = Fault(effect=Effect.DIES, at=3, only="write a/episode_results_rank0.jsonl")
    assert world.run("--output_dir", world.output, faults={0: fault}).met[0]
    world.keep("interrupted")
    shutil.rmtree(world.output)
    shutil.copytree(world.undisturbed, world.output)
    for command in (["verify", "--sample", "0"], ["report"]):
        assert main([*command, str(world.output)]) == 0
    world.keep("finished")
    return world


def damage(world: World, theirs: World, kind: str, name: str, how: str) -> None:
    """Bring the run back as it was, with one damaged file."""
    world.bring_back(kind)
    path = world.output / name
    content = path.read_bytes()
    path.unlink()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "torn":
        # Not the half: there one of four lines ends, a few bytes before or after.
        path.write_bytes(content[: len(content) * 7 // 16])
    elif how == "directory":
        path.mkdir()
    elif how == "another run's":
        theirs.bring_back(kind)
        shutil.copyfile(theirs.output / name, path)


def page(world: World) -> str:
    return _TIME.sub("", (world.output / "report.html").read_text())


def check(world: World, theirs: World, kind: str, name: str, how: str, cell: Cell, capsys) -> None:
    damage(world, theirs, kind, name, how)
    capsys.readouterr()
    assert main(["merge", str(world.output)]) == cell.merge
    said = "".join(capsys.readouterr())
    assert cell.merge_says in said
    assert "Traceback" not in said

    damage(world, theirs, kind, name, how)
    ended = world.run("--output_dir", world.output, "--resume")
    assert ended.exit_code == cell.resume, ended.output
    assert cell.resume_says in ended.output
    assert "Traceback" not in ended.output
    if cell.way_out is not None:
        cell.way_out(world.output / name)
        ended = world.run("--output_dir", world.output, "--resume")
        assert ended.exit_code == 0, ended.output
    # Of the run that was interrupted three of four episodes were recorded.
    assert world.started.total() == cell.again + (kind == "interrupted")
    aside = {path.name for path in world.output.rglob("set_aside/*")}
    assert (cell.aside in aside) if cell.aside else not aside - {"run.json"}
    check_results(world.output, world.undisturbed)


def cells(rows: dict[str, dict[str, Cell]]) -> list:
    return [
        pytest.param(name, how, id=f"{name}-{how}", marks=[] if name in FAST else [pytest.mark.slow])
        for name, own in rows.items()
        for how in own
    ]


@pytest.mark.parametrize(("name", "how"), cells(FINISHED))
def test_of_a_finished_run_a_damaged_file_is_named_and_a_resume_mends_it(world, theirs, shown, name, how, capsys):
    cell = FINISHED[name][how]
    damage(world, theirs, "finished", name, how)
    assert main(["report", str(world.output)]) == cell.report
    if cell.page_says is not None:
        assert cell.page_says in page(world)
    elif not cell.report and not cell.merge_says:
        assert page(world) == shown
    check(world, theirs, "finished", name, how, cell, capsys)


@pytest.mark.parametrize(("name", "how"), cells(INTERRUPTED))
def test_of_an_interrupted_run_a_damaged_file_is_named_and_a_resume_ends_it(world, theirs, name, how, capsys):
    check(world, theirs, "interrupted", name, how, INTERRUPTED[name][how], capsys)


@pytest.mark.parametrize("content", [None, b"", b'{"schema_version": 1, "jobs": 3}'])
def test_a_lost_or_damaged_plan_is_brought_back_from_its_copy(world, capsys, content):
    world.bring_back("finished")
    plan, command = world.output / "run.json", ["recover", str(world.output)]
    whole = plan.read_bytes()
    assert main(command) == 2
    assert "nothing is lost" in capsys.readouterr().err
    plan.unlink() if content is None else plan.write_bytes(content)
    assert main(command) == 0
    assert plan.read_bytes() == whole
    assert content is None or (world.output / "set_aside" / "run.json").read_bytes() == content
    for path in (plan, world.output / "attempts" / "plan.json"):
        path.unlink()
    assert main(command) == 2
    assert "plan.json: is missing too" in capsys.readouterr().err


def test_the_tables_above_have_a_row_for_every_file_of_a_run(world):
    for kind, rows in (("finished", FINISHED), ("interrupted", FINISHED | INTERRUPTED)):
        world.bring_back(kind)
        files = {path.relative_to(world.output).as_posix() for path in world.output.rglob("*") if path.is_file()}
        others = {
            name for name in files - rows.keys() if not re.search(r"/e00000[123]\.h5$|_p0000[0-9]\.|\.tmp$", name)
        }
        assert others == set()

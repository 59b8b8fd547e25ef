"""Every benchmark says how it is used, and the quick ones run with little to do and write their page."""

import ast
import subprocess
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import tyro

from benchmarks import RESULTS, ROOT
from benchmarks.harness.workers import module
from benchmarks.runs.many_episodes import measure
from tests.end_to_end.launching import patience_s

FILES = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "benchmarks").rglob("*.py"))}
PROGRAMS = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path, text in FILES.items()
            if "\nclass Options" in text]  # fmt: skip
LITTLE = {
    "analysis.clustered_intervals": {"repeats": 2, "resamples": 10},
    "analysis.comparison_speed": {"episodes": (12,), "jobs": 2, "repeats": 1},
    "analysis.decision_quality": {"repeats": 50, "looks": 60},
    "scheduling.scale": {"ranks": 8, "draws": 1},
}
OF_GR00T = {
    **dict.fromkeys(("batch_sizes", "num_envs", "counted_num_envs"), (2,)), "devices": ("cpu",), "compiled_on": (),
    **dict.fromkeys(("repetitions", "starts", "runs", "counted_episodes"), 1),
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_benchmark_shows_its_options(program, capsys):
    with pytest.raises(SystemExit) as left:
        tyro.cli(import_module(program).Options, args=["--help"])
    assert left.value.code in {0, None}
    assert "--" in capsys.readouterr().out


def tables(page: str) -> Iterator[list[list[str]]]:
    """Yield the tables of a page, as the cells of their lines."""
    for part in page.split("\n\n"):
        if part.startswith("| "):
            yield [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()]


@pytest.mark.parametrize(
    ("program", "little"), [*LITTLE.items(), pytest.param("gr00t.policy", OF_GR00T, marks=pytest.mark.slow)]
)
def test_a_benchmark_writes_its_page(program, little, tmp_path):
    measuring: Any = import_module(f"benchmarks.{program}")
    measuring.main(measuring.Options(output=tmp_path / "page.md", **little))
    page = (tmp_path / "page.md").read_text()
    assert f"python -m benchmarks.{program} --" in page
    found = list(tables(page))
    assert found
    for heading, _, *lines in found:
        assert lines
        assert {len(line) for line in lines} == {len(heading)}


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.md")), ids=lambda path: path.stem)
def test_a_committed_page_names_a_program_that_exists(path):
    text = path.read_text(encoding="utf-8")
    program = text.split("python -m ")[1].split()[0].rstrip("`.") if "python -m " in text else ""
    if program or path.stem != "camera_throughput":
        assert (ROOT / f"{program.replace('.', '/')}.py").is_file()


def test_a_benchmark_imports_nothing_of_the_tests_and_leaves_the_import_path_alone():
    for path, text in FILES.items():
        nodes = list(ast.walk(ast.parse(text)))
        imported = [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
        imported += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        assert "tests" not in {name.partition(".")[0] for name in imported}, path
        assert "sys.path" not in text, path


# Large runs, measured by their benchmarks.


@pytest.mark.slow
def test_memory_and_time_do_not_grow_with_the_episodes_of_a_job_or_the_number_of_jobs():
    few, many = (measure(num_jobs=1, num_episodes=number, num_envs=64) for number in (1_000, 10_000))
    assert many.late_mb - many.halfway_mb < 2
    assert many.late_mb - few.late_mb < 10
    few, many = (measure(num_jobs=number, num_episodes=1, num_envs=1) for number in (250, 1_000))
    # The plan, and what is known of each job, may cost a few kilobytes.
    assert many.late_mb - few.late_mb < 15
    assert many.cpu_s - few.cpu_s < 3.5 * few.cpu_s


@pytest.mark.slow
def test_a_job_leaves_nothing_behind_in_the_process_that_ran_it(tmp_path):
    """In a process of its own: what earlier tests have left to the allocator moves by more than a job leaves."""
    command = module("benchmarks.runs.memory", "--jobs", 120, "--camera_jobs", 120, "--output", tmp_path / "memory.md")
    measured = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience_s(600), check=False)
    assert measured.returncode == 0, measured.stderr
    lines = [line for table in tables((tmp_path / "memory.md").read_text()) for line in table]
    found = {line[0]: line for line in lines if line[0] in {"state", "cameras"}}
    assert set(found) == {"state", "cameras"}
    for _, number, _, _, _, growth_kb, files, threads in found.values():
        assert number == "120"
        assert int(growth_kb) < 1000
        assert len(set(files.split(", "))) == len(set(threads.split(", "))) == 1

from importlib import import_module
from pathlib import Path

import pytest
import tyro

from benchmarks import RESULTS, ROOT
from benchmarks.gr00t.policy import Options as PolicyOptions
from benchmarks.harness.pages import Page, command_line
from benchmarks.runs.two_ranks import Options

WITH_PAGES = sorted(
    path for path in (ROOT / "benchmarks").glob("*/*.py") if "Options(PageOptions)" in path.read_text(encoding="utf-8")
)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_a_page_begins_with_its_command_and_the_machine(tmp_path):
    Page("two_ranks", "Two", Options(output=tmp_path / "new" / "page.md", pairs=2), "numpy").write("Text.", "Table")
    title, command, machine, *rest = (tmp_path / "new" / "page.md").read_text().split("\n\n")
    assert (title, command) == ("# Two", "    python -m benchmarks.runs.two_ranks --pairs 2")
    assert "load average" in machine
    assert "numpy " in machine
    assert rest == ["Text.", "Table\n"]


def test_a_page_goes_among_the_results_unless_told_otherwise():
    assert Page("two_ranks", "Two", Options()).path == RESULTS / "two_ranks.md"


def test_a_command_says_what_is_not_the_default_but_for_the_output(tmp_path):
    options = PolicyOptions(batch_sizes=(1, 2), devices=("cpu",), compiled_on=(), output=tmp_path)
    words = command_line(options).split(" --")
    assert words[0] == "python -m benchmarks.gr00t.policy"
    assert "batch_sizes 1 2" in words
    assert not any(word.startswith("output") for word in words)


@pytest.mark.parametrize("path", WITH_PAGES, ids=module_of)
def test_a_benchmark_with_a_page_reads_where_it_goes(path, tmp_path):
    options = tyro.cli(import_module(module_of(path)).Options, args=["--output", str(tmp_path / "page.md")])
    assert options.output == tmp_path / "page.md"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.md")), ids=lambda path: path.stem)
def test_a_committed_page_names_a_program_that_exists(path):
    text = path.read_text(encoding="utf-8")
    program = text.split("python -m ")[1].split()[0].rstrip("`.") if "python -m " in text else ""
    if program or path.stem != "camera_throughput":
        assert (ROOT / f"{program.replace('.', '/')}.py").is_file()

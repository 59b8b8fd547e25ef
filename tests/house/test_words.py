"""One word for one thing: `docs/glossary.md` says which, and words of before do not come back."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"

# What is not said any more, and what is said instead.
BANNED = {
    "bench": "build cache",
    "board": "claim table",
    "collector": "result sync",
    "courier": "result sync",
    "folder": "directory",
    "surroundings": "provenance",
    "workbench": "build cache",
}
BANNED_PHRASES = {
    "legged machine": "legged robot",
    "number that is none": "NaN",
    "numbers that are none": "NaN",
    "walking machine": "legged robot",
}
# Names of others that hold one of these words, and the target of the Makefile.
SPARED = re.compile(r"TensorBoard|tensorboard|make bench\b|\"bench\"")
# The changelog tells of what was before, and this file has to name it.
TELL_OF_BEFORE = ("CHANGELOG.md", "tests/house/test_words.py")


@cache
def texts() -> dict[str, str]:
    """Return every file of the project that people read."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    endings = (".py", ".md", ".toml", ".yaml", ".sbatch")
    names = [name for name in listed.splitlines() if name.endswith(endings) and name not in TELL_OF_BEFORE]
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names if (ROOT / name).is_file()}


def words(text: str) -> set[str]:
    """Return the words of a text in lower case, those inside identifiers too, and the singular of each."""
    parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", SPARED.sub(" ", text))}
    return parts | {part.removesuffix("s") for part in parts}


@cache
def words_of_files() -> dict[str, set[str]]:
    """Return the words of each file, those of its name too."""
    return {name: words(f"{Path(name).stem} {text}") for name, text in texts().items()}


@pytest.mark.parametrize("banned", BANNED)
def test_a_word_of_before_does_not_come_back(banned):
    found = [name for name, said in words_of_files().items() if banned in said]
    assert not found, f"say '{BANNED[banned]}' instead of '{banned}'"


@cache
def phrases_of_files() -> dict[str, str]:
    """Return the text of each file in lower case and without line breaks."""
    return {name: " ".join(text.lower().split()) for name, text in texts().items()}


@pytest.mark.parametrize("banned", BANNED_PHRASES)
def test_a_phrase_of_before_does_not_come_back(banned):
    found = [name for name, text in phrases_of_files().items() if banned in text]
    assert not found, f"say '{BANNED_PHRASES[banned]}' instead of '{banned}'"


def test_every_word_of_the_glossary_is_explained_once_and_in_sentences():
    entries = re.findall(r"^\| ([a-z_ ]+) \| (.+) \|$", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)[1:]
    assert len(entries) > 20
    assert len({word for word, _ in entries}) == len(entries)
    assert all(meaning.endswith(".") for _, meaning in entries)


# Files and directories where a row is a line of a table: of results, of a document, of figures, of a Parquet file.
TABLES = (
    "benchmarks/gpu/",
    "benchmarks/harness/tables.py",
    "benchmarks/success/event_labels.py",
    "docs/glossary.md",
    "docs/how_to/tracking.md",
    "docs/reference/results.md",
    "docs/start/read_the_results.md",
    "isaaclab_arena/analysis/comparison_",
    "isaaclab_arena/analysis/robustness/table.py",
    "isaaclab_arena/cli/commands/compare/",
    "isaaclab_arena/cli/commands/machine/rank_views.py",
    "isaaclab_arena/evaluation/console.py",
    "isaaclab_arena/evaluation/plan/variation_listing.py",
    "isaaclab_arena/evaluation/progress.py",
    "isaaclab_arena/report/",
    "isaaclab_arena/results/",
    "isaaclab_arena/tracking/",
    "isaaclab_arena_gr00t/data/files/",
    "isaaclab_arena_gr00t/data/stored_dataset.py",
    "tests/analysis/test_comparison_",
    "tests/benchmarks/gpu/",
    "tests/benchmarks/harness/test_tables.py",
    "tests/documentation/",
    "tests/gr00t/data/",
    "tests/mutants/results.yaml",
    "tests/outsiders/lerobot_",
    "tests/outsiders/test_hostile_lerobot_datasets.py",
    "tests/report/",
    "tests/results/",
    "tests/tracking/",
    # The texts of a column that others may compare.
    "isaaclab_arena/evaluation/batching/settling.py",
    "tests/evaluation/batching/test_settling.py",
)
# Names of what makes the results' rows, a key of job files, and texts of a column that others may compare.
SPARED_ROWS = re.compile(
    r"results[./]rows|test_rows\.py|`job_row` \| makes the job's row|extent\.num_rows|rows_per_query"
    r"|a row's (answer|noise) depends on|in a batch of 4 rows|a single row has neither|the rows that share its query"
    r"|a query has as many rows as need a chunk"
)


def test_a_row_is_a_line_of_a_table_and_nothing_else():
    found = [
        name
        for name, said in words_of_files().items()
        if not name.startswith(TABLES)
        and "row" in said
        and "row" in words(f"{Path(name).stem} {SPARED_ROWS.sub(' ', texts()[name])}")
    ]
    assert not found, "say env slot, batch entry, world, line or pixel, or name the file in TABLES"


@pytest.mark.parametrize("table", TABLES)
def test_a_file_that_is_named_for_its_tables_has_rows(table):
    assert any(
        "row" in words(text) for name, text in texts().items() if name.startswith(table) and "row" in text.lower()
    )

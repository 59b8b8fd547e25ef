"""Cells of tables, as a spreadsheet and a terminal take them."""

import csv
import io

import pandas as pd
import pytest

from isaaclab_arena.results.merge import csv_text
from tests.security.test_names import WICKED, steers


@pytest.mark.parametrize(
    "cell", ["=cmd()", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1dcmd()", "\uff20a", "\x00=1", *WICKED[:-1]]
)
def test_a_cell_neither_runs_in_a_spreadsheet_nor_steers_a_terminal(cell):
    table = pd.DataFrame({"text": pd.array([cell], dtype="string"), "mixed": pd.Series([cell], dtype=object)})
    text = csv_text(table)
    [cells] = csv.DictReader(io.StringIO(text))
    assert not steers(text)
    assert all(value[0] not in "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20" for value in cells.values())


def test_numbers_in_a_table_are_no_formulas():
    assert csv_text(pd.DataFrame({"a": [-1.5], "b": pd.array([-2], dtype="Int64")})) == "a,b\n-1.5,-2\n"

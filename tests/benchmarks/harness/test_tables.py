import pytest

from benchmarks.harness.tables import Table, line_of, markdown_table, spread


def test_columns_of_numbers_are_aligned_to_the_right():
    assert markdown_table(("a", "b"), [("x", "1")]) == ["| a | b |", "| --- | --: |", "| x | 1 |"]


def test_a_row_is_printed_as_soon_as_it_is_measured(capsys):
    table = Table("what", "times")
    table.add("a", 2)
    assert capsys.readouterr().out == f"{table}\n"
    assert str(table).splitlines()[-1] == "| a | 2 |"


def test_a_spread_is_the_median_with_the_smallest_and_the_largest():
    assert spread([3.0, 1.0, 2.0]) == "2.00 (1.00 to 3.00)"
    assert spread([1000.0, 2000.0], 0) == "1,500 (1,000 to 2,000)"


def test_a_figure_is_read_from_the_line_of_a_page_that_has_its_name():
    page = "# Page\n\n| measure | figure |\n| --- | --: |\n| speed | 2.5 ms |\n"
    assert line_of(page, "speed") == ["2.5 ms"]
    with pytest.raises(LookupError, match="no line 'weight'"):
        line_of(page, "weight")

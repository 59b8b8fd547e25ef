from tests.results.reference_page import PAGE, written


def test_the_page_of_the_results_says_of_every_column_what_its_table_says():
    page = PAGE.read_text()
    assert page == written(page), "make columns writes it"

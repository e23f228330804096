"""Tables of the docs are those that the benchmarks measured."""

import pytest
from benchmarks.tables import DOCS, PAGES


@pytest.mark.parametrize(("page", "table"), [(page, table) for page, tables in PAGES.items() for table in tables])
def test_a_table_of_the_docs_was_measured(page, table):
    assert table() in (DOCS / page).read_text()

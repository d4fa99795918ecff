"""The page lists the waits that tests compare with runs."""

from tests.docs.host_waits_page import PAGE, table, written


def test_the_table_is_the_list_of_the_tests() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert table() in text, "Run: python -m tests.docs.host_waits_page"
    assert text == written(text)

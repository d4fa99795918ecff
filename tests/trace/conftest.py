"""Recordings of these tests share what they know of operators."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _operators_are_remembered(operators_are_remembered: None) -> None:
    """`test_operator_memo.py` makes memos of its own."""

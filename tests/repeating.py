"""Runs each test many times, to find one that fails by chance: `pytest -p tests.repeating --repeat 100 tests/data`."""

import pytest

_FIXTURE = "_number_of_the_repetition"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--repeat", type=int, default=1, help="run each test this many times")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    num_times: int = metafunc.config.getoption("--repeat")
    if num_times > 1:
        metafunc.fixturenames.append(_FIXTURE)
        metafunc.parametrize(_FIXTURE, range(num_times), ids=[f"time {number}" for number in range(num_times)])


@pytest.fixture
def _number_of_the_repetition() -> None:
    """Only its name is needed."""

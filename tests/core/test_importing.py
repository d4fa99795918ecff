"""Imports that take less time leave the process as it was."""

import contextlib
import gc
import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from foretune.core.importing import collector_paused, imported_at_use

PACKAGE = "package_of_test_importing"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that leaves a file where it is executed."""
    folder = tmp_path / PACKAGE
    folder.mkdir()
    executed = tmp_path / "executed"
    (folder / "__init__.py").write_text(
        f"from pathlib import Path\nassert not Path({str(executed)!r}).exists(), 'executed twice'\n"
        f"Path({str(executed)!r}).touch()\nanswer = 42\n"
    )
    (folder / "part.py").write_text("number = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield executed
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_paused_and_put_back(before: bool) -> None:
    was_enabled = gc.isenabled()
    (gc.enable if before else gc.disable)()
    try:
        with collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == before
        with contextlib.suppress(ValueError), collector_paused():
            raise ValueError("in between")
        assert gc.isenabled() == before
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_a_package_is_imported_when_it_is_first_used(package: Path) -> None:
    finders = list(sys.meta_path)
    with imported_at_use(PACKAGE):
        stand_in = import_module(PACKAGE)
        assert import_module(PACKAGE) is stand_in
    assert not package.exists()
    assert PACKAGE not in sys.modules
    assert sys.meta_path == finders
    assert stand_in.answer == 42
    real = sys.modules[PACKAGE]
    assert real is not stand_in
    assert import_module(PACKAGE) is real
    assert stand_in.answer is real.answer


def test_a_package_can_be_used_at_once(package: Path) -> None:
    with imported_at_use(PACKAGE):
        assert import_module(PACKAGE).answer == 42
        assert import_module(f"{PACKAGE}.part").number == 7
    assert sys.modules[PACKAGE].answer == 42
    assert package.exists()


def test_a_part_of_a_package_can_be_imported_at_once(package: Path) -> None:
    with imported_at_use(PACKAGE):
        import_module(PACKAGE)
        part = import_module(f"{PACKAGE}.part")
    assert part.number == 7
    assert sys.modules[PACKAGE].part is part


def test_looking_for_a_package_or_through_all_modules_does_not_import_it(package: Path) -> None:
    """As libraries look for optional packages, and as `inspect` looks for the module of a frame."""
    with imported_at_use(PACKAGE):
        assert import_module("importlib.util").find_spec(PACKAGE) is not None
        import_module(PACKAGE)
        assert import_module("importlib.util").find_spec(PACKAGE) is not None
        inspect.getmodule(sys._getframe())
    assert not package.exists()


def test_a_package_that_is_not_installed_is_not_found() -> None:
    with imported_at_use("not_installed_anywhere"), pytest.raises(ModuleNotFoundError):
        import_module("not_installed_anywhere")


def test_a_package_that_is_imported_already_is_left_alone(package: Path) -> None:
    real = import_module(PACKAGE)
    with imported_at_use(PACKAGE):
        assert import_module(PACKAGE) is real
    assert sys.modules[PACKAGE] is real

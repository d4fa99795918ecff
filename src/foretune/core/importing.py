"""Imports of large libraries that take less time."""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses Python's garbage collector, for code that creates many objects which all stay.

    Importing torch, diffusers and transformers creates over a million. The collector would go through them again and
    again and find hardly anything: a fifth of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def imported_at_use(name: str) -> Iterator[None]:
    """Code that imports this package meanwhile gets a stand-in, which imports the package when it is first used.

    Afterwards the package can be imported as ever, and `sys.modules` has no entry of the stand-in.
    `importlib.util.LazyLoader` is not used, because its modules stay in `sys.modules`: `inspect`, which goes through
    all modules there, would import the package.
    """
    if name in sys.modules:
        yield
        return
    finder = _StandInFinder(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


class _StandIn(ModuleType):
    """Has the attributes of the package of its name, which it imports to return the first of them."""

    def __getattr__(self, attribute: str) -> Any:
        name = self.__name__
        if sys.modules.get(name) is self:
            del sys.modules[name]
        return getattr(import_module(name), attribute)


class _StandInFinder(MetaPathFinder, Loader):
    """Finds the stand-in the first time that the package is imported; after that, the package."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_imported = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._is_imported:
            return None
        real = PathFinder.find_spec(fullname, path, target)
        if real is None:
            return None  # not installed: code that can do without it expects an ImportError
        spec = ModuleSpec(fullname, self, origin=real.origin)
        spec.has_location = True  # `inspect` asks every module for its `__file__`
        return spec

    def exec_module(self, module: ModuleType) -> None:
        self._is_imported = True
        # Not earlier: the import system itself looks for attributes of a new module.
        module.__class__ = _StandIn

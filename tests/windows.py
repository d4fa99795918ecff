"""A stand-in for Windows: the package's modules see neither the names nor the modules that only POSIX systems have."""

import importlib
import os
import pkgutil
import platform
import signal
import sys
from types import ModuleType
from typing import Any

import psutil
import pytest

import foretune
from tests.architecture.posix_names import NOT_ON_WINDOWS, windows_lacks


class _OnWindows(ModuleType):
    """A module without what Windows lacks."""

    def __init__(self, real: ModuleType, **values: Any) -> None:
        super().__init__(real.__name__)
        names, _ = windows_lacks()
        self.__dict__.update(
            {name: value for name, value in vars(real).items() if f"{real.__name__}.{name}" not in names} | values
        )


class _Memory:
    def __init__(self, rss: int) -> None:
        self.rss = self.peak_wset = rss


def pretend_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the end of the test. Other packages keep what they have."""
    never_there = {path.removeprefix("src/").removesuffix(".py").replace("/", ".") for path in NOT_ON_WINDOWS}
    for layer in ("core", "record", "config", "choices", "data", "models", "step", "training", "measure", "api"):
        package = importlib.import_module(f"{foretune.__name__}.{layer}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name not in never_there:
                importlib.import_module(found.name)
    replaced = {
        real: _OnWindows(real, **values)
        for real, values in ((os, {"name": "nt"}), (signal, {}), (sys, {"platform": "win32"}))
    }
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == foretune.__name__:
            for real, there in replaced.items():
                if vars(module).get(real.__name__) is real:
                    monkeypatch.setattr(module, real.__name__, there)
    for name in ("fcntl", "resource"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    rss = psutil.Process().memory_info().rss
    monkeypatch.setattr(psutil.Process, "memory_info", lambda self: _Memory(rss))

"""Libraries with CUDA kernels of their own are imported as on a machine without CUDA: their CPU kernels compute."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

HIDDEN_FROM = ("bitsandbytes",)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in HIDDEN_FROM:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_without_cuda(module: ModuleType) -> None:
            cuda, version = self._torch.cuda, self._torch.version
            before = cuda.is_available, version.cuda, version.hip
            cuda.is_available, version.cuda, version.hip = lambda: False, None, None
            try:
                execute(module)
            finally:
                cuda.is_available, version.cuda, version.hip = before
            cuda.sim.register_library(name)

        spec.loader.exec_module = execute_without_cuda  # type: ignore[method-assign]
        return spec


def install(torch: ModuleType) -> None:
    """Watches imports from now on."""
    sys.meta_path.insert(0, _Finder(torch))

"""Which part of the package may know which: layers, circles, and the layers that work without torch."""

import graphlib
from pathlib import Path

from tests.architecture.source_tree import PACKAGE, Module, by_name, imports_of, read_tree

# Top to bottom: an import points down this list or stays in its folder.
LAYERS = (
    "cli",
    "api",
    "reports",
    "analyse",
    "studies",
    "sweeps",
    "checkup",
    "quality",
    "measure",
    "training",
    "backtests",
    "planner",
    "trace",
    "step",
    "models",
    "data",
    "accelerator",
    "hub",
    "executors",
    "record",
    "config",
    "choices",
    "catalog",
    "stats",
    "core",
)
WITHOUT_TORCH = frozenset(
    {"core", "stats", "catalog", "choices", "config", "executors", "hub", "backtests", "planner", "analyse", "reports"}
)
# torch and what cannot be imported without it.
TORCH_PACKAGES = frozenset(
    {"accelerate", "bitsandbytes", "diffusers", "peft", "torch", "torchao", "torchvision", "transformers"}
)


def unknown_folders(source: Path) -> list[str]:
    """Folders of the package that are no layer."""
    found = {module.layer for module in read_tree(source)} - {""}
    return [f"src/{PACKAGE}/{folder}/ is in no layer" for folder in sorted(found - set(LAYERS))]


def upward_imports(source: Path) -> list[str]:
    """Imports of a higher layer by a lower one, lazy ones and those for the type checker included."""
    modules = read_tree(source)
    known = by_name(modules)
    violations = []
    for module in modules:
        for imported in imports_of(module, known):
            target_layer = _layer_of(imported.target)
            if target_layer in LAYERS and not _may_import(module, target_layer):
                violations.append(f"{module.at(imported.line)}: {module.name} imports {imported.target} above it")
    return violations


def _may_import(module: Module, target_layer: str) -> bool:
    if module.layer in LAYERS:
        return LAYERS.index(module.layer) <= LAYERS.index(target_layer)
    # The package itself is imported by every layer: it only names the functions of the API, and what they take and
    # raise. Its other modules start the program.
    return module.name != PACKAGE or target_layer in ("api", "core")


def _layer_of(target: str) -> str | None:
    parts = target.split(".")
    return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else None


def import_circle(source: Path) -> list[str]:
    """One circle of modules that import each other while they load, or an empty list."""
    modules = read_tree(source)
    known = by_name(modules)
    graph = {
        module.name: {i.target for i in imports_of(module, known) if i.when_loaded and i.target in known}
        - {module.name}
        for module in modules
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as circle:
        # graphlib lists each module before the one that imports it.
        return [" imports ".join(reversed(circle.args[1]))]
    return []


def torch_imports(source: Path) -> list[str]:
    """Imports of torch, or of what needs it, at any depth in a layer that must work without it."""
    modules = read_tree(source)
    known = by_name(modules)
    return [
        f"{module.at(imported.line)}: {module.name} imports {imported.target}"
        for module in modules
        if module.layer in WITHOUT_TORCH or module.name == PACKAGE
        for imported in imports_of(module, known)
        if imported.target.split(".")[0] in TORCH_PACKAGES
    ]


def modules_without_torch(source: Path) -> list[str]:
    """The modules whose import must leave torch alone: those layers, and the command line, which is lazy."""
    lazy = ("cli", "api")
    return [m.name for m in read_tree(source) if m.layer in (*WITHOUT_TORCH, *lazy) or m.name == PACKAGE]


_OF_THE_COMMAND_LINE = ("foretune.cli", "foretune.api", "foretune.core", "foretune.reports.terminal")


def more_than_a_client(source: Path) -> list[str]:
    """Imports of the command line that go past the API: it parses, calls one function and prints."""
    modules = read_tree(source)
    known = by_name(modules)
    return [
        f"{module.at(imported.line)}: {module.name} imports {imported.target}"
        for module in modules
        if module.layer == "cli"
        for imported in imports_of(module, known)
        if imported.target.startswith(f"{PACKAGE}.")
        and not any(imported.target == name or imported.target.startswith(f"{name}.") for name in _OF_THE_COMMAND_LINE)
    ]

"""Calls that run code from a file, a hub or a shell. None of them is needed here, so none is allowed."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source_tree import by_name, imports_of, read_tree

# Reading one of these formats can run whatever the file says.
UNSAFE_FORMATS = frozenset(
    {"cloudpickle", "dbm", "dill", "jsonpickle", "joblib", "klepto", "marshal", "pickle", "_pickle", "shelve", "skops"}
)
# Modules of libraries whose purpose is a format that is pickled.
UNSAFE_MODULES = frozenset(
    {
        "numpy.lib.format",
        "multiprocessing.connection",
        "torch.distributed.checkpoint.filesystem",
        "torch.distributed.checkpoint.format_utils",
        "torch.package",
        "torch.serialization",
    }
)
FORBIDDEN_CALLS = frozenset(
    {
        "eval",
        "exec",
        "builtins.eval",
        "builtins.exec",
        "os.system",
        "os.popen",
        "joblib.load",
        "numpy.fromregex",
        "pandas.read_pickle",
        "runpy.run_module",
        "runpy.run_path",
        "tarfile.open",
        "torch.hub.load",
        "torch.jit.load",
        "torch.save",
        "yaml.full_load",
        "yaml.full_load_all",
        "yaml.load_all",
        "yaml.unsafe_load",
        "yaml.unsafe_load_all",
    }
)
EXTRACTING_METHODS = frozenset({"extractall", "unpack_archive"})
PICKLING_READERS = frozenset(
    {"FileSystemReader", "FsspecReader", "FileSystemWriter", "FsspecWriter", "dcp_to_torch_save", "torch_save_to_dcp"}
)
FORBIDDEN_WHEN_TRUE = frozenset({"allow_pickle", "shell", "trust_remote_code"})


def hazards(source: Path) -> list[str]:
    """Every hazard in the tree, with its place."""
    modules = read_tree(source)
    known = by_name(modules)
    violations = []
    for module in modules:
        violations += [
            f"{module.at(imported.line)}: imports {imported.target}"
            for imported in imports_of(module, known)
            if imported.target.split(".")[0] in UNSAFE_FORMATS or _is_below(imported.target, UNSAFE_MODULES)
        ]
        found = (*_unsafe_names(module.tree), *_in_expressions(module.tree))
        violations += [f"{module.at(line)}: {what}" for line, what in found]
    return violations


def _is_below(target: str, modules: frozenset[str]) -> bool:
    return any(target == module or target.startswith(f"{module}.") for module in modules)


def _unsafe_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Modules that are imported as names of their package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not _is_below(node.module or "", UNSAFE_MODULES):
            for imported in (f"{node.module}.{alias.name}" for alias in node.names):
                if _is_below(imported, UNSAFE_MODULES):
                    yield node.lineno, f"imports {imported}"


def _in_expressions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call():
                called = ast.unparse(node.func)
                if called in FORBIDDEN_CALLS:
                    yield node.lineno, f"calls {called}"
                if called == "yaml.load" and not _says_safe_loader(node, tree):
                    yield node.lineno, "calls yaml.load without a SafeLoader"
                if called.split(".")[-1] in EXTRACTING_METHODS:
                    yield node.lineno, f"calls {called}, which writes where an archive says"
                if called.split(".")[-1] in PICKLING_READERS:
                    yield node.lineno, f"calls {called}, which reads pickled metadata"
                if called == "torch.load" and not _says_weights_only(node):
                    yield node.lineno, "calls torch.load without weights_only=True"
                for keyword in node.keywords:
                    if keyword.arg in FORBIDDEN_WHEN_TRUE and not _is_false(keyword.value):
                        yield node.lineno, f"passes {keyword.arg}={ast.unparse(keyword.value)}"
            case ast.Dict():
                for key, value in zip(node.keys, node.values, strict=True):
                    name = key.value if isinstance(key, ast.Constant) else None
                    if name in FORBIDDEN_WHEN_TRUE and isinstance(value, ast.Constant) and value.value is True:
                        yield node.lineno, f"sets {name!r} to True"


def _says_weights_only(call: ast.Call) -> bool:
    return any(
        keyword.arg == "weights_only" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in call.keywords
    )


def _says_safe_loader(call: ast.Call, tree: ast.Module) -> bool:
    """Whether the loader is PyYAML's safe one or a class of this module that is derived from it."""
    safe = {"yaml.SafeLoader", "yaml.CSafeLoader"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and safe & {ast.unparse(base) for base in node.bases}:
            safe.add(node.name)
    return any(keyword.arg == "Loader" and ast.unparse(keyword.value) in safe for keyword in call.keywords)


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False

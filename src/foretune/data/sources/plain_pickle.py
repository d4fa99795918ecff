"""Reads pickles of plain data without unpickling: nothing in the file is imported or called.

`pickletools` lists the operations of the file without executing them. Those that build dicts, lists, tuples, numbers,
text and uint8 arrays are interpreted here; everything else is refused.
"""

import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretune.core.errors import UserError
from foretune.core.input_files import shown

MOST_BYTES = 256 * 2**20
"""Limit for a file, and for the arrays built from its text."""
# Names that may occur in the file. They are compared as text; nothing is imported.
_RECONSTRUCT = frozenset({"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"})
_NDARRAY, _DTYPE, _ENCODE = "numpy ndarray", "numpy dtype", "_codecs encode"
_NAMES = _RECONSTRUCT | {_NDARRAY, _DTYPE, _ENCODE}
_VALUES = frozenset(
    {"BININT", "BININT1", "BININT2", "INT", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINUNICODE"}
    | {"SHORT_BINUNICODE"}
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_MARK = object()
_ARRAY_STATE = 5


@dataclass(frozen=True)
class _Name:
    """A global that the file names, as text."""

    text: str


@dataclass
class UInt8Array:
    """An array of bytes: its shape, and its content row by row."""

    shape: tuple[int, ...] = ()
    content: bytes = b""


@dataclass(frozen=True)
class _Dtype:
    code: str


class NotPlain(UserError):
    """Raised if a pickle contains, or would do, something other than plain data."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{shown(path)} is not read: {why}. Only pickles of plain numbers, text and uint8 arrays are, because a "
            "pickle can run any code when it is loaded. Download the file again from its publisher."
        )


def parse_plain_pickle(data: bytes, path: Path) -> Any:
    """Returns the content of a file; `path` is for the error. Python 2 strings and bytes both become bytes."""
    try:
        return _Reader(path).read(data)
    except NotPlain:
        raise
    # Errors that a damaged file causes: operations without operands, invalid text.
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise NotPlain(path, f"it is damaged ({error})") from error


class _Reader:
    """A stack and a memo, as in the format."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._num_encoded_bytes = 0

    def read(self, data: bytes) -> Any:
        for operation, argument, _ in pickletools.genops(data):
            if operation.name == "STOP":
                return self._stack.pop()
            self._follow(operation.name, argument)
        raise NotPlain(self._path, "it ends too early")

    def _follow(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in ("PROTO", "FRAME"):
            return
        if name in _VALUES:
            is_old_text = name.endswith("BINSTRING")
            stack.append(argument.encode("latin-1") if is_old_text else argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self._name(argument if name == "GLOBAL" else " ".join(reversed([stack.pop(), stack.pop()])))
        elif name in ("REDUCE", "BUILD"):
            operand, target = stack.pop(), stack.pop()
            stack.append(self._made(target, operand) if name == "REDUCE" else self._built(target, operand))
        else:
            self._collect(name)

    def _collect(self, name: str) -> None:
        stack = self._stack
        if name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            stack.append({"EMPTY_DICT": {}, "EMPTY_LIST": [], "EMPTY_TUPLE": ()}[name])
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            num = int(name[-1])
            stack[-num:] = [tuple(stack[-num:])]
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name == "APPEND":
            value = stack.pop()
            stack[-1].append(value)
        elif name == "APPENDS":
            values = self._since_mark()
            stack[-1].extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            pairs = self._since_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            # A tuple of tuples of tuples, each twice in the next, would take for ever to hash.
            if not all(isinstance(key, str | bytes | int) for key in pairs[::2]):
                raise NotPlain(self._path, "it has a dict with keys that are neither text nor numbers")
            stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))
        else:
            raise NotPlain(self._path, f"it uses the operation {name}")

    def _since_mark(self) -> list[Any]:
        for place in range(len(self._stack) - 1, -1, -1):
            if self._stack[place] is _MARK:
                values = self._stack[place + 1 :]
                del self._stack[place:]
                return values
        raise ValueError("a mark is missing")

    def _name(self, text: str) -> None:
        if text not in _NAMES:
            raise NotPlain(self._path, f"it names {text.replace(' ', '.')}")
        self._stack.append(_Name(text))

    def _made(self, target: Any, operands: Any) -> Any:
        """Interprets the three calls that NumPy arrays are pickled with, without making them."""
        match target, operands:
            case _Name(text), (_Name("numpy ndarray"), *_) if text in _RECONSTRUCT:
                return UInt8Array()
            case _Name("numpy dtype"), (bytes(code), *_):
                return _Dtype(code.decode("ascii"))
            case _Name("numpy dtype"), (str(code), *_):
                return _Dtype(code)
            case _Name("_codecs encode"), (str(text), *_):
                # One text can be referenced any number of times.
                self._num_encoded_bytes += len(text)
                if self._num_encoded_bytes > MOST_BYTES:
                    raise NotPlain(self._path, f"it makes more than {MOST_BYTES // 2**20} MiB of its text")
                return text.encode("latin-1")
        raise NotPlain(self._path, "it calls something")

    def _built(self, target: Any, state: Any) -> Any:
        if isinstance(target, _Dtype):
            return target
        if not isinstance(target, UInt8Array) or not isinstance(state, tuple) or len(state) != _ARRAY_STATE:
            raise NotPlain(self._path, "it sets the state of an object")
        _, shape, dtype, is_fortran, content = state
        if dtype != _Dtype("u1") or is_fortran or not isinstance(content, bytes):
            raise NotPlain(self._path, "it has an array that is not of uint8 row by row")
        target.shape, target.content = shape, content
        return target

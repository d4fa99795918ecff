"""Safetensors files that others wrote, opened and read; what is wrong with one is reported with its name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from foretune.core.errors import UserError
from foretune.core.input_files import shown
from foretune.core.tensor_files import require_tensor_file


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Yields the file as `safe_open` does. Raises `UserError` where it is damaged, a pipe, a device or too large."""
    with opened_tensors(path) as file:
        yield file


def opened_tensors(path: Path) -> Any:
    """Returns the file as `safe_open` does, for a caller that reads from it for longer."""
    require_tensor_file(path)
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error


def get_tensor(opened: Any, path: Path, name: str) -> Tensor:
    """Returns one tensor of an opened file. It is pages of the file until it is moved or put into another dtype."""
    try:
        tensor: Tensor = opened.get_tensor(name)
    # What tensors of impossible shapes do to torch.
    except (SafetensorError, RuntimeError, ValueError, OverflowError, TypeError) as error:
        raise _damaged(path, error) from error
    return tensor


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Returns all tensors of a file by name."""
    with open_tensors(path) as file:
        return {name: get_tensor(file, path, name) for name in file.keys()}  # noqa: SIM118 - not a mapping


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{shown(path)} is damaged or not a safetensors file: {error}")

"""Which operators of torch have a kernel on MPS, by torch's own list of operators and their kernels."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

_LIST = "packaged/ATen/native/native_functions.yaml"


def operators_on_mps() -> list[str]:
    """Returns names such as `add.Tensor`. Operators that torch composes of others are not among them."""
    spec = find_spec("torchgen")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    text = (Path(spec.submodule_search_locations[0]) / _LIST).read_text(encoding="utf-8")
    rows = {row["func"].partition("(")[0]: row for row in yaml.load(text, Loader=yaml.CSafeLoader)}
    return [name for name, row in rows.items() if "MPS" in _keys(rows[row.get("structured_delegate", name)])]


def _keys(row: dict[str, Any]) -> set[str]:
    """The backends with a kernel. Structured operators have the kernels of the one they delegate to."""
    return {key.strip() for keys in row.get("dispatch") or {} for key in keys.split(",")}

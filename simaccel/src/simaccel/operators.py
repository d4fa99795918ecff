"""Which operators have a kernel in a CUDA build of torch, by the list from which torch generates its code."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

_COMPUTES_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
"""Called here for attention on a device."""


class Operators(TypedDict):
    """Names as in `native_functions.yaml`: without the namespace, with the overload."""

    with_cuda: list[str]
    without_cuda: list[str]
    """Those that have a kernel for the CPU and none that serves CUDA."""


def read_operators() -> Operators:
    """Reads the list that torch ships for its code generator."""
    spec = find_spec("torchgen")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0]) / "packaged/ATen/native/native_functions.yaml"
    return _sorted_by_keys(path.read_text(encoding="utf-8"))


def _sorted_by_keys(text: str) -> Operators:
    keys, delegates = {}, {}
    for entry in re.split(r"^- func: ", text, flags=re.MULTILINE)[1:]:
        name = entry.split("(", 1)[0]
        lines = re.findall(r"^    ([A-Za-z0-9_, ]+):", entry, flags=re.MULTILINE)
        keys[name] = {key.strip() for line in lines for key in line.split(",")}
        if delegate := re.search(r"^  structured_delegate: (\S+)", entry, flags=re.MULTILINE):
            delegates[name] = delegate.group(1)
    for name, target in delegates.items():
        keys[name] |= keys[target]
    # These are composites that choose a library; a GPU's call ends in the library's kernel.
    with_cuda = {name for name, found in keys.items() if "CUDA" in found} | {"convolution", "convolution_backward"}
    without_cuda = {
        name
        for name, found in keys.items()
        if "CPU" in found
        and "CUDA" not in found
        and not any(key.startswith("Composite") for key in found)
        and not name.startswith(_COMPUTES_ATTENTION)
    }
    return {"with_cuda": sorted(with_cuda), "without_cuda": sorted(without_cuda)}

"""The cards that can be simulated, and which of them a process sees."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simaccel.personalities import PERSONALITIES, personality, uuid_of, visible_cards

pytestmark = pytest.mark.simulated

_ROOT = Path(__file__).parents[3]
MIB = 2**20


def described(**variables: str) -> Any:
    hidden = {
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "SIMACCEL_DEVICES",
        "SIMACCEL_MEMORY_MIB",
    }
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | variables
    completed = subprocess.run(
        [sys.executable, "-m", "tests.simulated.simulator.personality_program"],
        env=environment,
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def test_a_t4_has_no_bf16_and_hidden_cards_keep_their_uuids() -> None:
    card = described(SIMACCEL="t4", SIMACCEL_DEVICES="8", CUDA_VISIBLE_DEVICES="6,1", SIMACCEL_WORKSPACES="1")
    assert card["names"] == ["Tesla T4"] * 2
    assert card["capability"] == [7, 5]
    assert not card["has_bf16"]
    assert not card["has_tf32"]
    assert card["attention"] != "ScaledDotProductFlashAttentionBackward0"
    assert card["uuids"] == [str(uuid_of("t4", 6)), str(uuid_of("t4", 1))]
    assert len(set(card["buses"])) == 2
    assert "sm_75" in card["architectures"]
    # One workspace of cuBLAS for the thread of forward and one for autograd's; cuBLASLt shares them.
    assert card["workspace_bytes"] == [8320 * 1024] * 2


def test_an_mi300x_is_a_device_of_rocm() -> None:
    card = described(
        SIMACCEL="mi300x",
        SIMACCEL_DEVICES="8",
        ROCR_VISIBLE_DEVICES="5,6,7",
        HIP_VISIBLE_DEVICES="2",
        SIMACCEL_WORKSPACES="1",
    )
    assert card["names"] == ["AMD Instinct MI300X"]
    assert card["capability"] == [9, 4]
    assert card["cuda"] is None
    assert card["hip"]
    assert card["architecture"].startswith("gfx942")
    assert card["memory_bytes"] == 196592 * MIB
    assert card["uuids"] == [str(uuid_of("mi300x", 7))]
    # hipBLASLt has a workspace of its own; the layer's forward pass uses it, and its backward pass hipBLAS.
    assert card["workspace_bytes"] == [76 * MIB, 128 * MIB]


def test_an_h100_has_larger_workspaces_and_cublaslt_may_have_its_own() -> None:
    card = described(SIMACCEL="h100", SIMACCEL_WORKSPACES="1", TORCH_CUBLASLT_UNIFIED_WORKSPACE="0")
    assert card["names"] == ["NVIDIA H100 80GB HBM3"] * 2
    assert card["capability"] == [9, 0]
    assert card["has_bf16"]
    assert card["attention"] == "ScaledDotProductFlashAttentionBackward0"
    assert card["workspace_bytes"] == [MIB, 32 * MIB]


def test_uuids_differ_between_cards() -> None:
    uuids = {uuid_of(name, number) for name in PERSONALITIES for number in range(8)}
    assert len(uuids) == 8 * len(PERSONALITIES)


def test_an_unknown_card_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"SIMACCEL=rtx-9090: .* rtx-4090, t4, h100, mi300x"):
        personality("rtx-9090")


@pytest.mark.parametrize(
    ("name", "environment", "cards"),
    [
        ("cuda", {}, [0, 1, 2, 3]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": ""}, []),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "1,7,2"}, [1]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "1,1"}, []),
        ("cuda", {"CUDA_VISIBLE_DEVICES": f"GPU-{uuid_of('cuda', 3)},GPU-{str(uuid_of('cuda', 0))[:8]}"}, [3, 0]),
        ("cuda", {"HIP_VISIBLE_DEVICES": "1"}, [0, 1, 2, 3]),
        ("mi300x", {"HIP_VISIBLE_DEVICES": "1"}, [1]),
        ("mi300x", {"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ("mi300x", {"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1"}, [1]),
        ("mi300x", {"ROCR_VISIBLE_DEVICES": "3,1", "CUDA_VISIBLE_DEVICES": "0"}, [3]),
    ],
)
def test_variables_hide_cards_as_drivers_do(name: str, environment: dict[str, str], cards: list[int]) -> None:
    assert visible_cards(name, 4, environment) == cards

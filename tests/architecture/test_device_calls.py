import pytest

from tests.architecture.device_calls import LAYER, device_calls
from tests.architecture.source_tree import PACKAGE, SOURCE, Plant


def test_one_layer_copies_waits_and_times() -> None:
    assert device_calls(SOURCE) == []


def test_control_the_layer_itself_does(plant: Plant) -> None:
    assert (SOURCE / PACKAGE / LAYER).is_dir()
    assert device_calls(plant({f"{LAYER}/a.py": "import torch\ntorch.cuda.synchronize()"})) == []


@pytest.mark.parametrize(
    "text",
    [
        "t.to(d, non_blocking=True)",
        "def to(d, non_blocking): ...",
        "torch.empty(1, pin_memory=True)",
        "t.pin_memory()",
        "def pin_memory(self): ...",
        "t.is_pinned()",
        "torch.cuda.synchronize()",
        "torch.accelerator.synchronize(d)",
        "stream.synchronize()",
        "t.record_stream(s)",
        "torch.cuda.Event()",
        "torch.Event(device=d)",
        "torch.mps.Event",
        "torch.cuda.Stream(d)",
        "torch.cuda.current_stream(d)",
        "torch.mps.empty_cache()",
        "torch.cuda.max_memory_allocated(d)",
        "torch.mps.get_rng_state()",
        "torch.cuda.set_rng_state(s)",
    ],
)
def test_control_elsewhere(plant: Plant, text: str) -> None:
    assert device_calls(plant({"step/a.py": text}))[0].startswith("src/foretune/step/a.py:1: ")


def test_control_words_of_other_modules(plant: Plant) -> None:
    fine = """
threading.Event()
KEYS = "offload_use_pin_memory max_memory_allocated"
torch.get_rng_state()
torch.random.fork_rng()
open_stream.stream(path)
"""
    assert device_calls(plant({"step/a.py": fine})) == []

"""The page names the hardware that results were received from, and says so while there are none."""

from tests.docs.gpu_proofs_page import NOWHERE, PAGE, received, table, written
from tools.gpu_proofs.results import GpuProofs, ProofResult

RESULT = GpuProofs(
    environment={"device": "NVIDIA X|Y", "driver": "580.1", "torch": "2.13.0+cu130"},
    commit=None,
    date="2026-11-20",
    proofs=(
        ProofResult(name="tests marked gpu", outcome="passed", took_s=1.0),
        ProofResult(name="a", outcome="failed", reason="out of memory", took_s=1.0),
        ProofResult(name="b", outcome="skipped", took_s=0.0),
    ),
    score={"memory": {"num_rows": 3, "median_abs_error": 0.021}, "speed": {"num_rows": 0}},
)


def test_the_table_is_that_of_the_received_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == written(text, received()), "Run: python -m tests.docs.gpu_proofs_page"
    assert (NOWHERE in text) == (not received())


def test_a_result_becomes_a_line() -> None:
    last = table([RESULT]).splitlines()[-1]
    assert last == "| NVIDIA X Y | 580.1 | 2.13.0+cu130 | 2026-11-20 | 1 | 1 | 1 | 2.1% of 3 | - |"

"""Plans from shipped traces: figures that stand in order, and verdicts that follow the memory."""

from itertools import pairwise

import pytest

from foretune import catalog
from foretune.catalog.devices import Device
from foretune.core.values import Plan
from foretune.core.values.plan import PhaseMemory
from tests.planner.asked_plans import GIB, VERDICTS, plan, plans

KEPT = "levers.gradient_checkpointing=0"
QUESTIONS = (
    ("sd3-medium", ()),
    ("sd3-medium", (KEPT, "train.batch_size=8")),
    ("flux.1-dev", ()),
    ("cogvideox-2b", ("levers.gradient_checkpointing=0.5",)),
)
# In order of memory, of one architecture each: what driver and libraries take is not the same for all.
CARDS = "rtx-3060,l4,rtx-4090,a100-80gb-sxm,h100-sxm,mi300x"


def l4_with(num_gib: float) -> Device:
    return catalog.device("l4").model_copy(update={"reported_memory_mib": round(num_gib * 1024)})


def check_order(found: Plan) -> None:
    """What a figure holds is in every later one."""
    assert 0 < found.allocated_bytes <= found.reserved_bytes
    assert found.process_low_bytes <= found.process_bytes <= found.process_high_bytes
    assert found.allocated_bytes < found.process_bytes
    if found.verdict == "fits":
        assert found.reserved_bytes < found.process_bytes
    assert found.reserved_bytes < found.process_high_bytes


@pytest.mark.parametrize(("target", "overrides"), QUESTIONS)
def test_totals_stand_in_order_and_the_verdict_follows(target: str, overrides: tuple[str, ...]) -> None:
    for found in plans(target, *overrides, on=CARDS, advice="none"):
        check_order(found)
        fits, runs = found.process_high_bytes <= found.usable_bytes, found.process_low_bytes <= found.usable_bytes
        assert found.verdict == ("fits" if fits else "tight" if runs else "does not fit")


@pytest.mark.parametrize(("target", "overrides"), QUESTIONS)
def test_phases_add_up_to_the_worst(target: str, overrides: tuple[str, ...]) -> None:
    found = plan(target, *overrides, on="h100-sxm", advice="none")
    by_name = {phase.phase: phase.device_bytes for phase in found.phases if phase.phase != "validation"}
    assert found.worst_phase == max(by_name, key=lambda name: by_name[name])
    # Workspaces of the libraries stand beside every phase.
    assert 0 <= found.allocated_bytes - by_name[found.worst_phase] < GIB // 4
    assert found.largest
    assert all(tensor.num_bytes * tensor.count <= by_name[found.worst_phase] for tensor in found.largest)


def test_more_memory_never_makes_a_verdict_worse() -> None:
    sizes_gib = [8 + 0.75 * number for number in range(16)]
    found = plans("sd3-medium", KEPT, "train.batch_size=2", on=[l4_with(n) for n in sizes_gib], advice="none")
    verdicts = [VERDICTS.index(one.verdict) for one in found]
    assert set(verdicts) == {0, 1, 2}, "the sizes span all verdicts"
    assert all(later <= earlier for earlier, later in pairwise(verdicts))
    for one in found:
        check_order(one)


@pytest.mark.parametrize("share", ["0", "0.5", "1"])
def test_a_larger_batch_never_needs_less(share: str) -> None:
    overrides = (f"levers.gradient_checkpointing={share}",)
    found = [
        plan("sd3-medium", *overrides, f"train.batch_size={batch}", on="h100-sxm", advice="none")
        for batch in (1, 2, 3, 4, 8, 16)
    ]
    steps = [next(phase.device_bytes for phase in one.phases if phase.phase == "training step") for one in found]
    assert all(later > earlier for earlier, later in pairwise(steps))
    assert all(later.allocated_bytes >= earlier.allocated_bytes for earlier, later in pairwise(found))


def test_what_saves_memory_saves_it() -> None:
    def needs(*overrides: str) -> int:
        found = plan("sd3-medium", "train.batch_size=4", *overrides, on="h100-sxm", advice="none")
        return next(phase.device_bytes for phase in found.phases if phase.phase == "training step")

    kept, half, all_again = (needs(f"levers.gradient_checkpointing={share}") for share in ("0", "0.5", "1"))
    assert kept > half > all_again
    assert needs("method.rank=128") > needs("method.rank=4")
    assert needs("train.ema={}") > needs()
    assert needs("levers.cache_latents=false", "levers.cache_text=false") > needs() + 5 * GIB


def test_expandable_segments_hold_no_more() -> None:
    plain, expandable = (
        plan("sd3-medium", KEPT, "train.batch_size=8", on="h100-sxm", expandable_segments=flag, advice="none")
        for flag in (False, True)
    )
    # Plain segments hand out blocks with up to 1 MiB too much rather than split them, and that counts as allocated.
    assert 0.99 * plain.allocated_bytes < expandable.allocated_bytes <= plain.allocated_bytes
    assert expandable.reserved_bytes < plain.reserved_bytes
    assert "expandable" in " ".join(expandable.assumptions)


def test_a_plan_says_what_it_rests_on() -> None:
    found = plan("flux.1-dev", on="h100-sxm", advice="none")
    names = {line.split()[0] for line in found.traces}
    assert "flux.1-dev.lora.bf16.checkpointed" in names
    assert {"flux.1-dev.sample.bf16", "t5-v1_1-xxl-encoder.text.bf16", "vae-flux.encode.fp32"} <= names
    assert "flux.1-dev.lora.bf16.kept" not in names
    assert any("512 tokens" in text for text in found.assumptions)
    assert found.sizes == {
        "batch_size": 1,
        "height_px": 1024,
        "width_px": 1024,
        "num_frames": 1,
        "num_text_tokens": 512,
    }
    assert Plan.from_json(found.to_json()) == found


def phase_of(found: Plan, name: str) -> PhaseMemory:
    return next(phase for phase in found.phases if phase.phase == name)


def test_compiled_blocks_are_not_modelled_and_need_more_room() -> None:
    plain, compiled = (
        plan("sd3-medium", f"levers.compile={choice}", on="l4", advice="none") for choice in ("off", "regional")
    )
    assert compiled.error_band > 2 * plain.error_band
    assert compiled.process_low_bytes == plain.process_low_bytes, "a wider band never makes a verdict better"
    assert compiled.process_high_bytes > plain.process_high_bytes
    assert compiled.process_bytes == plain.process_bytes
    assert any("effect of torch.compile" in note for note in compiled.notes)
    assert not plain.notes


def test_swapped_blocks_leave_the_device_for_the_host() -> None:
    plain, swapped = (plan("sd3.5-large", f"levers.block_swap={n}", on="rtx-4090", advice="none") for n in (0, 19))
    before, after = (phase_of(found, "training step") for found in (plain, swapped))
    assert before.host_bytes is not None
    assert after.host_bytes is not None
    # Half of the blocks, but for one that runs.
    assert 5 * GIB < before.device_bytes - after.device_bytes < 8 * GIB
    assert 6 * GIB < after.host_bytes - before.host_bytes < 8 * GIB
    assert plain.transfers is None
    assert swapped.transfers is not None
    # Forward and backward, in each of the four passes that make a step; the last block, a small one, stays in between.
    there_and_back = 8 * (after.host_bytes - before.host_bytes)
    assert 37 / 38 * there_and_back < swapped.transfers.to_device_bytes < there_and_back
    in_turn = plan("sd3.5-large", "levers.block_swap=19", "levers.block_swap_prefetch=0", on="rtx-4090", advice="none")
    assert in_turn.transfers is not None
    assert in_turn.transfers.to_device_bytes == pytest.approx(there_and_back, rel=1e-6)
    assert swapped.transfers.to_host_bytes == 0


def test_where_the_host_is_the_device_copies_come_on_top() -> None:
    plain, swapped = (
        plan("sd3.5-large", f"levers.block_swap={n}", on="laptop-cpu-8core", advice="none") for n in (0, 19)
    )
    before, after = (phase_of(found, "training step").device_bytes for found in (plain, swapped))
    assert after > before
    assert swapped.transfers is None


def test_an_assumed_link_is_said() -> None:
    found = plan("sd3.5-large", "levers.block_swap=19", on="h100-sxm", advice="none")
    assert any("PCIe 5.0 x16" in assumption for assumption in found.assumptions)
    known = plan("sd3.5-large", "levers.block_swap=19", on="rtx-4090", advice="none")
    assert not any("PCIe" in assumption for assumption in known.assumptions)


def test_quantised_text_encoders_take_half_and_what_is_assumed_is_said() -> None:
    plain, eight, four = (
        plan("sd3-medium", f"quantize.text_encoders={kind}", on="h100-sxm", advice="none")
        for kind in ("none", "int8", "nf4")
    )
    sizes = [phase_of(one, "caching text").device_bytes_by_part["text encoders"] for one in (plain, eight, four)]
    assert 0.5 < sizes[1] / sizes[0] < 0.55
    assert 0.25 < sizes[2] / sizes[0] < 0.35
    assert any("token embeddings" in assumption for assumption in eight.assumptions)
    # Cached and freed, they are no part of the step.
    assert phase_of(plain, "training step") == phase_of(eight, "training step")

"""What follows a training: evaluate, sample and export, on the device and in host memory."""

import pytest

from foretune.choices.picture_size import small_num_frames, small_sides_px
from foretune.core.units import GIB
from foretune.core.values.plan import CommandMemory, Plan
from foretune.planner.host_memory import budget_named
from foretune.reports.terminal.plans import answer_text
from foretune.reports.workflow_words import misfits, workflow_lines
from tests.planner.asked_plans import plan


def by_name(found: Plan) -> dict[str, CommandMemory]:
    return {command.command: command for command in found.commands}


def device_bytes(command: CommandMemory, phase: str) -> dict[str, int]:
    (memory,) = (one for one in command.phases if one.phase == phase)
    return memory.device_bytes_by_part


@pytest.fixture(scope="module")
def flux() -> Plan:
    return plan("flux.1-dev", "quantize.denoiser=int8", on="rtx-4090", advice="none", host=budget_named("32GiB"))


def test_the_whole_workflow_of_flux_fits_24_gb(flux: Plan) -> None:
    assert [(one.command, one.verdict) for one in flux.commands] == [
        ("evaluate", "fits"), ("sample", "fits"), ("export", "fits"),
    ]  # fmt: skip
    assert all(one.host is not None and one.host.verdict != "does not fit" for one in flux.commands)
    assert all(len(line) <= 120 for line in workflow_lines([flux]))
    deciding, after = workflow_lines([flux])
    assert deciding.startswith("Peak on the device: ")
    # A base is loaded layer by layer, so that loading does not decide.
    assert "Peak of host memory: sampling in evaluate" in deciding
    assert after.startswith("After the training: evaluate or sample ")
    assert "export 1." in after, "an export takes host memory only"
    assert misfits(flux) == ()


def test_encoders_are_gone_when_the_denoiser_is_there(flux: Plan) -> None:
    for name in ("evaluate", "sample"):
        command = by_name(flux)[name]
        text, images = (device_bytes(command, phase) for phase in ("encoding text", "sampling"))
        assert "frozen weights" not in text
        assert "text encoders" not in images
        # The base in 8 bits, the autoencoder in fp32 beside it.
        assert images["frozen weights"] == pytest.approx(11.9e9, rel=0.02)
        assert images["autoencoder"] > 300 * 2**20


def test_an_adapter_is_exported_without_its_base(flux: Plan) -> None:
    export = by_name(flux)["export"]
    (writing,) = (one for one in export.phases if one.phase == "writing files")
    assert writing.device_bytes == 0
    assert writing.host_bytes is not None
    assert writing.host_bytes < GIB
    assert (export.process_bytes, export.worst_phase, export.left_out) == (0, "writing files", ())
    checked = device_bytes(export, "sampling for the check")
    assert sum(checked.values()) < sum(device_bytes(by_name(flux)["sample"], "sampling").values())


def test_a_base_that_only_fits_by_block_swap_does_not_fit_afterwards() -> None:
    found = plan("flux.1-dev", "levers.block_swap=20", on="rtx-4090", advice="none")
    assert found.verdict == "fits"
    evaluate = by_name(found)["evaluate"]
    assert evaluate.verdict == "does not fit"
    assert (evaluate.settings, evaluate.verdict_with_settings) == ({"quantize.denoiser": "int8"}, "fits")
    assert [one.command for one in misfits(found)] == ["evaluate", "sample"]
    lines = list(workflow_lines([found]))
    assert lines[2].startswith("Evaluate or sample does not fit on rtx-4090: 28.")
    assert lines[3] == "  With quantize.denoiser=int8 it fits."
    assert answer_text([found]).startswith("Training fits on rtx-4090, but not evaluate or sample: ")
    swapped = device_bytes(evaluate, "sampling")["frozen weights"]
    dense = plan("flux.1-dev", on="rtx-4090", advice="none")
    assert swapped == device_bytes(by_name(dense)["evaluate"], "sampling")["frozen weights"]


def test_commands_are_not_in_the_verdict_of_the_training() -> None:
    """The figures of the training are those of its own phases."""
    found = plan("flux.1-dev", "levers.block_swap=20", on="rtx-4090", advice="none")
    assert {phase.phase for phase in found.phases}.isdisjoint(
        {phase.phase for command in found.commands for phase in command.phases}
    )
    assert found.process_bytes < by_name(found)["evaluate"].process_bytes


def test_a_whole_model_is_exported_from_pages_of_files() -> None:
    found = plan("sd3.5-medium", "method.kind=full", on="h100-sxm", advice="none", host=budget_named("16GiB"))
    host = by_name(found)["export"].host
    assert host is not None
    assert host.bytes_by_part["pages of weight files"] > 0.8 * host.likely_bytes - GIB
    assert host.verdict != "does not fit"


def test_sharded_weights_are_whole_afterwards() -> None:
    settings = ("parallel.devices=2", "parallel.sharding=full")
    sharded = plan("sd3.5-medium", *settings, on="h100-sxm", advice="none")
    alone = plan("sd3.5-medium", on="h100-sxm", advice="none")
    weights = [device_bytes(by_name(one)["sample"], "sampling")["frozen weights"] for one in (sharded, alone)]
    assert weights[0] == pytest.approx(weights[1], rel=0.001)


@pytest.mark.parametrize("device", ["laptop-cpu-8core", "m4-max-40"])
def test_where_the_host_is_the_device_there_is_one_figure(device: str) -> None:
    found = plan("sd3-medium", on=device, advice="none")
    assert [one.host for one in found.commands] == [None] * 3
    assert all("host memory" not in line for line in workflow_lines([found]))


def test_a_model_without_captions_encodes_none() -> None:
    found = plan("ddpm-cifar10-32", on="rtx-4090", advice="none")
    assert {phase.phase for phase in by_name(found)["export"].phases} == {"writing files", "sampling for the check"}


def test_nothing_is_added_to_a_training_that_does_not_fit() -> None:
    found = plan("flux.1-dev", on="8GiB", advice="none")
    assert found.verdict == "does not fit"
    assert list(workflow_lines([found])) == []


def test_the_size_of_a_check() -> None:
    assert small_sides_px(1024, 1024, 16) == (256, 256)
    assert small_sides_px(832, 480, 16) == (256, 144)
    assert small_sides_px(128, 64, 16) == (128, 64), "small ones stay"
    assert small_sides_px(8192, 64, 16) == (256, 16)
    assert (small_num_frames(81, 4), small_num_frames(1, 4), small_num_frames(2, 8)) == (5, 1, 2)

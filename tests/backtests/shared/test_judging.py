"""The plan judged on shared rows: forecast again where possible, else as the row has it; beside rules of thumb."""

import json
from pathlib import Path
from typing import Any

import pytest

from foretune.api.sharing import share
from foretune.backtests.shared.forecasting import baseline_bytes, baseline_step_s
from foretune.backtests.shared.scoring import RowComparison, forecaster, score_shared
from foretune.choices.experiment import Experiment
from foretune.cli.main import app
from foretune.core.errors import UserError
from foretune.planner.asking import PlanRequest, asked_of, devices_named, plan_question
from foretune.reports.terminal.shared_rows import print_shared, row_lines
from tests.backtests.shared.rows import PLAN, environment, experiment, measured, row

UNLISTED = "not in the catalogue: UNet2DModel"


def test_a_listed_model_is_forecast_as_plan_forecasts_it() -> None:
    score = score_shared([row()], forecaster())
    (memory,), (speed,) = score.memory, score.speed
    (plan,) = plan_question(
        asked_of(
            PlanRequest(
                target={**json.loads(experiment().model_dump_json(by_alias=True)), "validate": {"num_held_out": 0}}
            )
        ),
        PlanRequest(target="", advice="none"),
        devices_named("rtx-4090"),
        None,
    )
    assert (memory.origin, speed.origin) == ("now", "now")
    assert plan.time is not None
    assert memory.planned == plan.reserved_bytes
    assert speed.planned == plan.time.step_s
    assert (speed.planned_low, speed.planned_high) == (plan.time.low_s, plan.time.high_s)
    assert (memory.measured, speed.measured) == (8 * 2**30, 1.25)
    assert memory.error == pytest.approx(plan.reserved_bytes / (8 * 2**30) - 1)


def test_what_cannot_be_forecast_here_is_judged_by_the_forecast_of_the_row() -> None:
    score = score_shared([row(model=UNLISTED)], forecaster())
    (memory,), (speed,) = score.memory, score.speed
    assert (memory.origin, speed.origin) == ("then", "then")
    assert (memory.planned, speed.planned) == (PLAN.reserved_bytes, PLAN.step_s)
    # The band is that of the process, and 1 GiB of it is not the allocator's.
    assert (memory.planned_low, memory.planned_high) == (7 * 2**30, 9 * 2**30)


def test_a_row_without_any_forecast_is_named() -> None:
    score = score_shared([row(model=UNLISTED, plan=None)], forecaster())
    assert (score.memory, score.speed) == ((), ())
    assert [one.reason.partition(":")[0] for one in score.not_forecast] == ["memory", "step time"]


def test_a_forecast_that_fails_is_a_reason_not_an_end() -> None:
    def fails(_: object) -> None:
        raise UserError("no trace of this step")

    score = score_shared([row(plan=None), row()], fails)  # type: ignore[arg-type]
    assert len(score.memory) == 1
    assert "no trace of this step" in score.not_forecast[0].reason


def test_memory_of_a_cpu_is_that_of_the_process() -> None:
    on_cpu = environment(device_kind="cpu", device="a CPU", device_bytes=2**34)
    held = measured(process_bytes=2 * 2**30, context_bytes=2**29, reserved_bytes=None, allocated_bytes=None)
    (memory,) = score_shared([row(model=UNLISTED, environment=on_cpu, measured=held)], forecaster()).memory
    assert (memory.measured, memory.planned) == (2 * 2**30, PLAN.process_bytes)


@pytest.mark.parametrize("device_bytes", [2**28, 2**42])
@pytest.mark.parametrize("kind", ["cpu", "cuda", "rocm", "mps"])
def test_the_smallest_and_the_largest_device_are_forecast(kind: str, device_bytes: int) -> None:
    held = measured(process_bytes=2**30, context_bytes=2**29)
    one = row(environment=environment(device_kind=kind, device="X", device_bytes=device_bytes), measured=held)
    (memory,) = score_shared([one], forecaster()).memory
    assert memory.origin == "now"


@pytest.mark.parametrize(
    "changes",
    [
        {"levers": {"block_swap": 10**9}},
        {"levers": {"gradient_checkpointing": 1.0, "checkpoint_segment": 10**9}},
        {"method": {"kind": "lora", "targets": ["(" * 200]}},
        {"quantize": {"denoiser": "int8", "keep": ["(a+)+$"]}},
    ],
)
def test_settings_that_no_model_has_are_a_reason_not_an_end(changes: dict[str, Any]) -> None:
    asked = {"model": "sdxl-unet", "data": {"kind": "shapes"}, "train": {"steps": 1}, **changes}
    (memory,) = score_shared([row(experiment=Experiment.model_validate(asked))], forecaster()).memory
    assert memory.origin == "then"


def test_the_baselines_are_those_anybody_can_compute() -> None:
    # 2 bytes of a frozen weight; of a trained one weight, gradient and two states in fp32.
    frozen, trained = 2_567_463_684 - 23_224_320, 23_224_320
    assert baseline_bytes(experiment(), measured()) == 2 * frozen + 16 * trained
    assert baseline_bytes(experiment(), measured(context_bytes=10**9)) == 2 * frozen + 16 * trained + 10**9
    assert baseline_step_s(measured()) == pytest.approx(6e13 / (0.4 * 1.65e14))
    assert baseline_step_s(measured(hardware_flops=None)) is None


@pytest.mark.parametrize(
    ("low", "high", "planned", "is_in"),
    [(1.0, 2.0, (2.0, 3.0), True), (1.0, 1.9, (2.0, 3.0), False), (None, None, (1.2, 3.0), False),
     (None, None, (1.0, 3.0), True), (3.1, 4.0, (2.0, 3.0), False)],
)  # fmt: skip
def test_within_the_band(low: float | None, high: float | None, planned: tuple[float, float], is_in: bool) -> None:
    one = RowComparison(
        row=row(), measured=1.0, low=low, high=high, planned=planned[0], planned_low=planned[0],
        planned_high=planned[1], baseline=None, origin="now",
    )  # fmt: skip
    assert one.is_in_band is is_in


def test_the_figures_are_of_all_rows() -> None:
    rows = [row(model=UNLISTED, measured=measured(step_s=step_s)) for step_s in (1.0, 1.5, 3.0)]
    figures = score_shared(rows, forecaster()).as_dict()["shared"]["speed"]
    assert figures["num_rows"] == 3
    assert figures["median_abs_error"] == pytest.approx(0.5)
    assert figures["p90_abs_error"] == pytest.approx(0.5)
    assert figures["baseline_median_abs_error"] == pytest.approx(abs(0.9090909 / 1.5 - 1))


def test_the_command_prints_measured_beside_planned_and_names_what_it_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "rows.csv", tmp_path / "other.csv"
    share(row(), file)
    share(row(model=UNLISTED, measured=measured(step_s=2.0)), other)
    other.write_text(other.read_text() + other.read_text().splitlines()[1].replace("FT-", "[/bold]") + "\n")
    app(["backtest", "--data", str(file), "--data", str(other)], standalone_mode=False)
    text = capsys.readouterr().out
    assert "Refused: [/bold]" in text
    assert "NVIDIA GeForce RTX 4090" in text
    assert "1.25 s (1.20 s to 1.30 s)" in text
    assert "1.50 s*" in text
    assert "Shared measurements, peak memory: 2 rows" in text
    assert "40 % of the device's peak: 2 rows" in text
    # There are no rows of other programs, so nothing is said of them.
    assert "No row with" not in text


def test_the_command_gives_the_same_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.csv"
    share(row(), file)
    app(["backtest", "--data", str(file), "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["shared"]["memory"]["num_rows"] == 1
    assert found["shared_speed_rows"][0]["id"] == row().row_id
    assert found["memory"]["num_rows"] == 0


def test_brackets_in_rows_of_others_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.csv"
    peak = "peak_mem,peak_mem_unit,peak_mem_kind,peak_bound"
    file.write_text(
        f"id,task,model,method,framework,grade,{peak}\n[/x],train,[red]m,lora,[link=file:///etc]f,A,1,GiB,peak,exact\n"
    )
    app(["backtest", "--data", str(file)], standalone_mode=False)
    assert "[link=file:///etc]f" in capsys.readouterr().out


def test_all_that_will_be_written_is_shown() -> None:
    lines = row_lines(row())
    cells = {name: text for name, text in row().cells().items() if text}
    assert [line.split(maxsplit=1)[1] for line in lines] == list(cells.values())


def test_nothing_is_printed_of_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    print_shared(score_shared([], forecaster()))
    assert capsys.readouterr().out == ""

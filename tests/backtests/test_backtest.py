"""The backtest: on several processes as on one, nothing asked twice, and without statements that were inferred."""

from dataclasses import replace

import pytest

from foretune import catalog
from foretune.backtests import DIALECTS, BacktestQuestion, question
from foretune.backtests.backtest import Backtest
from foretune.backtests.inferred import without_inferences
from foretune.choices.step_form import StepForm
from foretune.core.values.step_trace import StepTrace
from foretune.planner.sizing import StepSize
from foretune.planner.traces import NotTraced, Traces

ROWS = catalog.measurements()
SOME = ("GT0416", "GT0417", "GT0104", "GT0003", "GT0080")


def test_several_processes_say_what_one_says() -> None:
    rows = [ROWS[row_id] for row_id in SOME]
    reported: list[tuple[str, int, int]] = []
    several = Backtest(progress=lambda *what: reported.append(what), num_processes=2).score(rows)
    assert several.as_dict() == Backtest(num_processes=1).score(rows).as_dict()
    assert len(several.results) >= 4
    assert reported[-1][1] == reported[-1][2]


class Counting(Traces):
    """Knows no step, and counts how often one was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.num_asked = 0

    def step(self, form: StepForm, size: StepSize) -> StepTrace:
        self.num_asked += 1
        raise NotTraced(f"{form.slug()} is not there")


def test_the_same_training_is_forecast_once() -> None:
    traces = Counting()
    backtest = Backtest(lambda _model: traces)
    row = ROWS["GT0416"]
    assert len(backtest.score([row, row.model_copy(update={"id": "again"})]).left_out) == 2
    assert traces.num_asked == 1
    backtest.score([row, row.model_copy(update={"batch_size_per_gpu": 1})])
    assert traces.num_asked == 2


INFERENCES = {one.statement + " " + dialect.name: (dialect, one) for dialect in DIALECTS for one in dialect.inferred}


@pytest.mark.parametrize("name", INFERENCES)
def test_an_inference_changes_questions_of_its_program_alone(name: str) -> None:
    dialect, one = INFERENCES[name]
    others = [dialect.without(one) if each is dialect else each for each in DIALECTS]
    changed = set()
    for row in ROWS.values():
        usual, other = question(row), question(row, others)
        if not isinstance(usual, BacktestQuestion):
            continue
        is_same = (
            isinstance(other, BacktestQuestion)
            and replace(other, dialect=usual.dialect) == usual
            and other.dialect.while_running() == usual.dialect.while_running()
        )
        if not is_same:
            changed.add(row.framework.lower())
    assert changed
    assert all(program.startswith(dialect.name) for program in changed)


def test_figures_without_an_inference() -> None:
    """GT0080 is a training of LTX-Video by finetrainers, whose autoencoder works inside the step."""
    rows = [ROWS[row_id] for row_id in ("GT0416", "GT0080")]
    backtest = Backtest(num_processes=1)
    usual = backtest.score(rows)
    assert len(usual.results) == 2
    found = {one.statement: one for one in without_inferences(backtest, rows, usual)}
    tiles = found["the autoencoder works on tiles"]
    assert (tiles.num_changed, tiles.num_lost, tiles.num_rows) == (1, 0, 2)
    assert tiles.changed_median_abs_error is not None
    assert tiles.changed_median_abs_error > 0.15
    assert tiles.p90_abs_error == pytest.approx(tiles.changed_median_abs_error)
    untouched = found["HiDream and Qwen-Image ignore the checkpoint interval"]
    assert (untouched.num_changed, untouched.changed_median_abs_error) == (0, None)
    assert untouched.median_abs_error == usual.as_dict()["memory"]["median_abs_error"]
    as_reserved = found["the published peak is max_memory_allocated"]
    assert as_reserved.num_changed == 1

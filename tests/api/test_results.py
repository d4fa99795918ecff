"""Runs that are there already: compared, gated, reported, summed up."""

from pathlib import Path

import pytest

import foretune as ft
from tests.analyse.made_runs import make_run

LEVELS_S = (0.100, 0.101, 0.099, 0.102, 0.098, 0.1005)


def runs(folder: Path, times: float) -> list[Path]:
    return [make_run(folder / f"run-{number}", [times * s] * 40) for number, s in enumerate(LEVELS_S)]


def test_lists_of_runs_are_compared(tmp_path: Path) -> None:
    a, b = runs(tmp_path / "a", 1.0), runs(tmp_path / "b", 1.5)
    as_lists = ft.compare([ft.open_run(path) for path in a], b)
    as_folders = ft.compare(tmp_path / "a", str(tmp_path / "b"))
    first = as_lists.quantities[0].comparison
    assert first.ratio == pytest.approx(1.5, rel=0.01)
    assert first.interval is not None
    assert first.interval.low > 1.4
    assert [one.comparison.ratio for one in as_folders.quantities] == [
        one.comparison.ratio for one in as_lists.quantities
    ]


def test_an_experiment_file_is_not_a_run(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("model: flux.1-dev\n")
    with pytest.raises(ft.UserError, match="nothing measured"):
        ft.compare(file, tmp_path)


def test_gate(tmp_path: Path) -> None:
    runs(tmp_path / "good", 1.0)
    runs(tmp_path / "same", 1.001)
    runs(tmp_path / "slow", 1.5)
    assert ft.gate(tmp_path / "good", tmp_path / "same").passes
    slower = ft.gate(tmp_path / "good", tmp_path / "slow")
    assert slower.answer.verdict == "slower"
    assert not slower.passes
    assert ft.gate(tmp_path / "good", tmp_path / "slow", max_slowdown=0.8).passes
    with pytest.raises(ft.UserError, match="share between 0 and 1"):
        ft.gate(tmp_path / "good", tmp_path / "slow", max_slowdown=5)


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = runs(tmp_path / "runs", 1.0)
    report = ft.report([ft.open_run(path) for path in made], tmp_path / "out" / "report.html", title="Mine")
    assert (tmp_path / "out" / "report.html").read_text() == report.html
    assert "<title>Mine</title>" in report.html
    assert report.csv.count("\n") == len(made) + 1
    assert "run-0" in report.markdown
    assert str(report)
    framed = report._repr_html_()
    assert framed.startswith("<iframe srcdoc=")
    assert 'sandbox=""' in framed
    assert capsys.readouterr() == ("", "")


def test_without_a_place_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs(tmp_path / "runs", 1.0)
    monkeypatch.chdir(tmp_path)
    ft.report("runs")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_lists_and_schema() -> None:
    assert {"name", "family", "num_params"} <= set(ft.list_models()[0])
    assert any(device.name == "rtx-4090" for device in ft.list_devices())
    assert {"lora", "full"} <= {row["name"] for row in ft.list_methods()}
    assert {"model", "method"} <= set(ft.schema()["properties"])


def test_init(tmp_path: Path) -> None:
    started = ft.init(tmp_path / "x.yaml", model="sd3-medium", data=str(tmp_path / "nowhere"))
    assert "model: sd3-medium" in started.path.read_text()
    assert "does not exist" in started.warnings[0]
    with pytest.raises(ft.UserError, match="exists already"):
        ft.init(tmp_path / "x.yaml")


def test_backtest_of_a_file(tmp_path: Path) -> None:
    from importlib.resources import files

    rows = (files("foretune.catalog") / "data" / "published_measurements.csv").read_text(encoding="utf-8").splitlines()
    some = [row for row in rows if row.startswith(("id,", "GT0105,", "GT0320,"))]
    (tmp_path / "some.csv").write_text("\n".join(some) + "\n", encoding="utf-8")
    score = ft.backtest(tmp_path / "some.csv")
    assert len(score.results) + len(score.fits) >= 1


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ft.UserError):
        ft.study(tmp_path, plot=False)
    with pytest.raises(ft.UserError, match="There is no study"):
        ft.study("batchsize", plot=False)

"""The lines at the end of a run."""

from pathlib import Path

from foretune.choices.running import Profile
from foretune.record.run_directory import RunDirectory
from foretune.reports.terminal.run import measurements
from tests.analyse.made_runs import make_run


def test_a_profiler_in_the_numbers_is_reported(tmp_path: Path) -> None:
    record = RunDirectory(make_run(tmp_path / "run", [0.1] * 20)).read_record()
    assert record is not None
    reported = measurements(record, Profile(at_step=19, steps=3))
    assert any(line.startswith("Steps 19 to 20 ran under the profiler") for line in reported)
    assert measurements(record, Profile(at_step=30)) == measurements(record, None), "it never came to it"

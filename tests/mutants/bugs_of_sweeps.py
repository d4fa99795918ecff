"""In sweeps: which combinations are tried, what is run again, and what is called best."""

from tests.mutants.bug import bug

_CONTROLLER = "sweeps/test_controller.py"
_STRATEGIES = "sweeps/test_strategies.py"
BUGS = (
    bug(
        "the quick form wins over the command line",
        "config/sweep_files.py",
        '"axes": {**axes, **given_axes},',
        '"axes": axes,',
        "config/test_sweep_files.py",
    ),
    bug(
        "trials may have fewer processes on one node than on another",
        "config/sweep_files.py",
        "if num_devices % num_nodes:",
        "if num_devices < num_nodes:",
        "sweeps/test_several_nodes.py",
    ),
    bug(
        "a node of a trial runs one process, whatever its devices",
        "executors/slurm_options.py",
        "else resources.num_processes or max(1, resources.num_devices)",
        "else 1",
        "executors/test_slurm.py",
    ),
    bug(
        "what a sweep measures before its trials is one of them",
        "analyse/run_index/scanning.py",
        "elif SWEEP_FILE in names:",
        "elif not names:",
        "analyse/test_watching.py",
    ),
    bug(
        "a trial that has ended is run again",
        "sweeps/controller.py",
        "        if outcome is not None and self._counts(outcome):",
        "        if outcome is not None and self.retries_failed:",
        _CONTROLLER,
    ),
    bug(
        "repeats are not in turns",
        "sweeps/controller.py",
        "for point in points if number % 2 == 0 else reversed(points):",
        "for point in points:",
        _CONTROLLER,
    ),
    bug(
        "the environment is not part of what a trial is",
        "config/sweep_files.py",
        '"environment": environment, **self.measured()',
        "**self.measured()",
        "config/test_sweep_files.py",
        _CONTROLLER,
    ),
    bug(
        "a forecast without margin keeps a trial from running",
        "sweeps/controller.py",
        "if estimate is not None and estimate.low_bytes > 0:",
        "if estimate is not None and estimate.likely_bytes > 0:",
        _CONTROLLER,
    ),
    bug(
        "the frontier believes its forecast",
        "sweeps/strategies/frontier.py",
        "return high - low <= 1",
        "return self.fits is not None",
        _STRATEGIES,
    ),
    bug(
        "a guided search forgets what was run before",
        "sweeps/strategies/guided.py",
        "if (point := self._point_of(result.labels)) is not None]",
        "if (point := None) is not None]",
        _STRATEGIES,
    ),
    bug(
        "one condition of an entry is enough to exclude",
        "choices/sweep.py",
        "return any(all(_holds(",
        "return any(any(_holds(",
        "config/test_sweep_files.py",
    ),
    bug(
        "samples/s of one device are those of all",
        "sweeps/trial_results.py",
        "self.samples_per_s / (self.num_devices or 1)",
        "self.samples_per_s",
        "analyse/test_sweep_summary.py",
    ),
)

"""All bugs that are planted. One more is one entry in one of the tables."""

from tests.mutants import bugs_of_answers, bugs_of_executors, bugs_of_runs, bugs_of_sweeps

BUGS = (*bugs_of_answers.BUGS, *bugs_of_executors.BUGS, *bugs_of_runs.BUGS, *bugs_of_sweeps.BUGS)

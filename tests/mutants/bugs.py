"""All bugs that are planted. One more is one entry in one of the tables."""

from tests.mutants import (
    bugs_of_answers,
    bugs_of_executors,
    bugs_of_inputs,
    bugs_of_runs,
    bugs_of_searches,
    bugs_of_stored_runs,
    bugs_of_sweeps,
)

BUGS = (
    *bugs_of_answers.BUGS,
    *bugs_of_executors.BUGS,
    *bugs_of_runs.BUGS,
    *bugs_of_searches.BUGS,
    *bugs_of_stored_runs.BUGS,
    *bugs_of_inputs.BUGS,
    *bugs_of_sweeps.BUGS,
)

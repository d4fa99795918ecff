"""In what is said of stored runs: the index, filters and groups, and watching."""

from tests.mutants.bug import bug

_INDEX = "analyse/test_run_index.py"
_WATCH = "analyse/test_watching.py"
BUGS = (
    bug(
        "a loss that is not a number is larger than any",
        "analyse/run_index/conditions.py",
        "(typeof({name}) IN ('integer', 'real') AND {name} {self.operator} ?)",
        "({name} {self.operator} ?)",
        f"{_INDEX}::test_what_is_not_finite_is_neither_small_nor_large",
    ),
    bug(
        "a run without a setting is left out of those that have another value",
        "analyse/run_index/conditions.py",
        "NOT coalesce(({text}), 0)",
        "NOT ({text})",
        f"{_INDEX}::test_conditions_select_runs",
    ),
    bug(
        "a record that changed is not read again",
        "analyse/run_index/scanning.py",
        'return f"{experiment} {record} {_stamp(other, now_ns)}"',
        'return f"{experiment} {record != _ABSENT} {_stamp(other, now_ns)}"',
        f"{_INDEX}::test_a_figure_that_is_edited_in_place_is_seen",
    ),
    bug(
        "a file that may change within the tick of its time is believed",
        "analyse/run_index/scanning.py",
        "if now_ns - changed_ns < _YOUNG_S * 1e9 else",
        "if now_ns - changed_ns < 0 else",
        f"{_INDEX}::test_a_file_that_was_written_a_moment_ago_is_looked_at_again",
    ),
    bug(
        "an index of another format is believed",
        "analyse/run_index/store.py",
        "if (application, version) != (_APPLICATION_ID, row_format()):",
        "if application != _APPLICATION_ID:",
        f"{_INDEX}::test_an_index_that_cannot_be_used_is_made_again",
    ),
    bug(
        "an index may hold triggers",
        "analyse/run_index/store.py",
        'if dict(found) != {**_SCHEMA, "runs": expected}:',
        'if found.get("runs") != expected:',
        f"{_INDEX}::test_an_index_that_cannot_be_used_is_made_again",
    ),
    bug(
        "an interrupted first look keeps nothing",
        "analyse/run_index/indexing.py",
        "        draft.publish()\n        raise\n",
        "        raise\n",
        f"{_INDEX}::test_what_was_read_before_an_interrupt_is_kept",
    ),
    bug(
        "a group's speed is that of runs that failed, too",
        "analyse/run_index/summarising.py",
        '[row for row in rows if row[0] == "finished"]',
        "list(rows)",
        f"{_INDEX}::test_a_summary_counts_by_status_and_measures_what_finished",
    ),
    bug(
        "a table that is sorted by speed begins with the slowest",
        "analyse/run_index/columns.py",
        "return column in _HIGHER_IS_BETTER or",
        "return",
        f"{_INDEX}::test_a_sorted_table_begins_with_the_best",
    ),
    bug(
        "a killed run counts as running while its log is young",
        "analyse/watching/watched_run.py",
        "return is_fresh if held is None else held",
        "return is_fresh",
        f"{_WATCH}::test_a_killed_run_never_counts_as_running",
    ),
    bug(
        "a run of another machine counts as gone",
        "analyse/watching/watched_run.py",
        "if held or is_of_this_machine(lock) is not False:",
        "if True:",
        f"{_WATCH}::test_a_run_of_another_machine_runs_while_it_shows_that_it_lives",
    ),
    bug(
        "looking at a lock gives it away",
        "record/locking.py",
        "    if path.resolve() in _held:\n        return True\n    if os.name",
        "    if os.name",
        f"{_WATCH}::test_a_lock_is_looked_at_without_touching_it",
    ),
    bug(
        "steps before a resume are counted as done",
        "analyse/watching/watched_run.py",
        "isinstance(first, int) and step < first}",
        "isinstance(first, int)}",
        f"{_WATCH}::test_steps_that_a_resume_makes_again_count_once",
    ),
    bug(
        "time left forgets validations",
        "analyse/watching/watched_run.py",
        "max(mean_s, passed_s / between) if between >= _FEWEST_FOR_PACE else mean_s",
        "mean_s",
        f"{_WATCH}::test_validations_between_steps_are_in_the_time_left",
    ),
    bug(
        "a page that is written no more loads itself for ever",
        "api/watch.py",
        "None if state.is_over else every_s",
        "every_s",
        "cli/test_watch_verb.py::test_it_looks_until_nothing_waits",
    ),
)

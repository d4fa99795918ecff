"""In how tasks are run: locks, outcomes, ends of processes, clusters."""

from tests.mutants.bug import bug

BUGS = (
    bug(
        "a worker does not look for an outcome",
        "executors/worker.py",
        "if files.read_outcome(folder) is not None:\n            return 0\n        attempt",
        "attempt",
        "executors/test_worker.py",
    ),
    bug(
        "a worker does not care who holds the task",
        "executors/worker.py",
        "    if not take_lock(folder):\n        return 0\n",
        "    take_lock(folder)\n",
        "executors/test_worker.py",
    ),
    bug(
        "the last outcome wins",
        "executors/task_files.py",
        "    if path.exists():\n        return False\n",
        "    path.unlink(missing_ok=True)\n",
        "executors/test_task_files.py::test_the_first_outcome_stays",
    ),
    bug(
        "attempts of all submissions count",
        "executors/task_files.py",
        "sum(attempt.submission == submission for attempt in read_attempts(folder))",
        "len(read_attempts(folder))",
        "executors/test_task_files.py::test_attempts_count_from_the_last_submission",
    ),
    bug(
        "secrets stay in a task that has ended",
        "executors/task_files.py",
        "    _remove_secrets(folder / TASK)\n",
        "",
        "executors/test_local.py::test_secrets_stay_out_of_what_an_ended_task_leaves",
    ),
    bug(
        "children of a task that is out of time live on",
        "executors/watching.py",
        "os.killpg(self.pid, number)",
        "os.kill(self.pid, number)",
        "executors/test_local.py::test_a_task_beyond_its_time_is_ended_with_its_children",
    ),
    bug(
        "a process number that is used again is the same process",
        "executors/process_identity.py",
        "return process_start(pid) == start",
        "return process_start(pid) is not None",
        "executors/test_task_files.py::test_a_number_that_the_system_uses_again_is_another_process",
    ),
    bug(
        "every SIGKILL is for memory",
        "executors/classifying.py",
        'if name == "SIGKILL" and memory is not None:',
        'if name == "SIGKILL":',
        "executors/test_classifying.py",
    ),
    bug(
        "a task goes to a device that another one has",
        "executors/slots.py",
        "taken, self.devices = self.devices[: resources.num_devices], self.devices[resources.num_devices :]",
        "taken = self.devices[: resources.num_devices]",
        "executors/test_devices.py",
    ),
    bug(
        "copies draw the same numbers",
        "executors/local_server.py",
        "        numpy.random.seed()\n",
        "        pass\n",
        "executors/test_copies.py::test_copies_train_bit_for_bit_what_fresh_interpreters_train",
    ),
    bug(
        "tasks outlive a controller that is killed",
        "executors/local_server.py",
        '                running.worker.end("interrupted")\n',
        "                pass\n",
        "executors/test_local.py::test_what_was_interrupted_by_closing_is_performed_by_the_next_executor",
    ),
    bug(
        "an interrupted job counts as a crash",
        "executors/slurm.py",
        '    "NODE_FAIL": "its node failed",\n',
        "",
        "executors/test_slurm.py",
    ),
    bug(
        "a queue that does not answer is empty",
        "executors/slurm.py",
        "        if known is None:\n            return  # while its controller restarts\n",
        "        known = known or {}\n",
        "executors/test_slurm.py::test_nothing_is_decided_while_slurm_does_not_answer",
    ),
    bug(
        "a name may hold a line break",
        "executors/slurm_options.py",
        "if value is not None and not re.fullmatch(pattern, value):",
        "if value is not None and not re.match(pattern, value):",
        "proofs/test_s9_hostile_names.py",
    ),
)

"""Scripts that Python imports again in each process that loads data."""

import multiprocessing

from foretune.core.errors import UserError


def require_main_guard() -> None:
    """Refuses to train in a process that is only importing the script that started it.

    Once a GPU is in use, processes that load data are spawned, not forked. A spawned process imports the script first.
    """
    # Set by the standard library from the start of a spawned process until it has imported the script.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UserError(
            "A process that loads data (data.num_workers) imports this script and would start the training again. Put "
            'what the script runs below `if __name__ == "__main__":`, or set data.num_workers=0.'
        )

"""Run as a program: `forked_client.py SOCKET PYTHON ARGUMENTS...`, in place of `PYTHON ARGUMENTS...`.

`-m foretune...` and `-m tests...` become a copy of the server behind the socket (`tests/forked_python.py`), with this
process's folder, environment, input and outputs. It gets the signals that this process gets, and this process ends as
it does. All else is left to Python itself. Only the standard library is imported, so that asking takes hundredths of a
second.
"""

import json
import os
import signal
import socket
import struct
import sys
from types import FrameType

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Ends as what was asked for ends."""
    address, python, *arguments = sys.argv[1:]
    if len(arguments) > 1 and arguments[0] == "-m" and arguments[1].partition(".")[0] in ("foretune", "tests"):
        code = _forked(address, arguments[1], arguments[2:])
        if code is not None:
            _end(code)
    os.execv(python, [python, *arguments])  # noqa: S606 - it takes the place of a Python that a test started


def _forked(address: str, module: str, arguments: list[str]) -> int | None:
    """The exit code, negative for a signal; None where the server's imports do not go with this environment."""
    question = {
        "module": module,
        "arguments": arguments,
        "folder": os.getcwd(),  # noqa: PTH109 - importing pathlib takes longer than all else here
        "environment": dict(os.environ),
    }
    text = json.dumps(question).encode()
    with socket.socket(socket.AF_UNIX) as server:

        def pass_on(number: int, _frame: FrameType | None) -> None:
            server.send(bytes([number]))

        server.connect(address)
        # A signal that comes now waits: its number must not get into the middle of the question.
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        for number in PASSED_ON:
            signal.signal(number, pass_on)
        socket.send_fds(server, [struct.pack("!I", len(text))], [0, 1, 2])
        server.sendall(text)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        with server.makefile() as answers:
            code: int | None = json.loads(answers.readline())["code"]
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_DFL)
    return code


def _end(code: int) -> None:
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()

"""Messages between two processes: JSON lines over a socket that never blocks."""

import json
import socket
from contextlib import suppress
from typing import Any

_BLOCK_BYTES = 2**16


class LineChannel:
    """One end of a connection. Whoever uses it waits with `select` until it can be read or written."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._received, self._unsent = b"", b""
        self.is_open = True
        """False once the other side is gone."""

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent) and self.is_open

    def send(self, message: dict[str, Any]) -> None:
        """Sends what can be sent at once; `write` sends the rest."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self.write()

    def write(self) -> None:
        """Sends as much as the connection takes now."""
        with suppress(BlockingIOError):
            while self.has_unsent:
                try:
                    sent = self._connection.send(self._unsent)
                except (BrokenPipeError, ConnectionResetError):
                    self.is_open = False
                    return
                self._unsent = self._unsent[sent:]

    def read(self) -> list[dict[str, Any]]:
        """The messages that have arrived."""
        with suppress(BlockingIOError):
            while self.is_open:
                try:
                    block = self._connection.recv(_BLOCK_BYTES)
                except ConnectionResetError:
                    block = b""
                self._received += block
                self.is_open = bool(block)
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._connection.close()
        self.is_open = False

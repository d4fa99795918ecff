"""An in-memory LRU cache of entries: a small dataset is read from disk once, not once per epoch."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

Entry = dict[str, Tensor]

DEFAULT_MAX_BYTES = 256 * 2**20


class RecentEntries:
    """Entries up to a number of bytes, per process; the least recently used are dropped first.

    Entries are shared, not copied, so callers must not write to them.
    """

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()
        self._held_bytes = 0

    def get(self, what: Hashable, read: Callable[[], Entry]) -> Entry:
        """Returns an entry; reads it only if it is not in memory."""
        entry = self._entries.get(what)
        if entry is not None:
            self._entries.move_to_end(what)
            return entry
        entry = read()
        self._entries[what] = entry
        self._held_bytes += _num_bytes(entry)
        while self._held_bytes > self.max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self._held_bytes -= _num_bytes(oldest)
        return entry

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for another process, without entries: sending them would cost more than reading them."""
        return {"max_bytes": self.max_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["max_bytes"])  # type: ignore[misc]


def _num_bytes(entry: Entry) -> int:
    return sum(tensor.nbytes for tensor in entry.values())

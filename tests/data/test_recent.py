"""What was used last is at hand; what does not fit makes room; a copy for another process begins empty."""

import pickle

import torch

from foretune.data.recent import RecentEntries

ENTRY_BYTES = 400


class Reader:
    """Counts how often each entry is read."""

    def __init__(self) -> None:
        self.reads: list[str] = []

    def __call__(self, name: str) -> dict[str, torch.Tensor]:
        self.reads.append(name)
        return {"x": torch.full((100,), float(len(self.reads)))}


def ask(recent: RecentEntries, reader: Reader, *names: str) -> None:
    for name in names:
        recent.get(name, lambda name=name: reader(name))  # type: ignore[misc]


def test_an_entry_is_read_once() -> None:
    recent, reader = RecentEntries(), Reader()
    first = recent.get("a", lambda: reader("a"))
    assert recent.get("a", lambda: reader("a"))["x"] is first["x"]
    assert reader.reads == ["a"]


def test_whoever_was_used_longest_ago_makes_room() -> None:
    recent, reader = RecentEntries(max_bytes=2 * ENTRY_BYTES), Reader()
    ask(recent, reader, "a", "b", "a", "c", "a")
    assert reader.reads == ["a", "b", "c"]
    ask(recent, reader, "b")
    assert reader.reads == ["a", "b", "c", "b"]


def test_an_entry_larger_than_all_the_room_is_still_given() -> None:
    recent, reader = RecentEntries(max_bytes=ENTRY_BYTES - 1), Reader()
    ask(recent, reader, "a", "a")
    assert reader.reads == ["a", "a"]


def test_a_copy_begins_empty() -> None:
    recent, reader = RecentEntries(max_bytes=12345), Reader()
    ask(recent, reader, "a")
    copy = pickle.loads(pickle.dumps(recent))  # noqa: S301 - what a loader process does
    ask(copy, reader, "a")
    assert reader.reads == ["a", "a"]
    assert copy.max_bytes == 12345

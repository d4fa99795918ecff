"""What is said of a watched folder, on a terminal and on a page alike."""

import time
from collections.abc import Iterator

from foretune.analyse.watching.watched_run import WatchedRun
from foretune.analyse.watching.watcher import Watched
from foretune.core.input_files import shown
from foretune.core.units import counted_text, duration_text, memory_text, usd_text

HEADINGS = ("run", "step", "samples/s", "planned", "loss", "memory", "planned", "elapsed", "left", "spent")
_ABSENT = "-"


def counts_text(found: Watched) -> str:
    """How many of how many are in which state."""
    ended = ", ".join(f"{num:,} {shown(status)}" for status, num in found.num_by_status.items())
    states = [
        f"{found.num_ended:,} of {counted_text(found.num_all, 'runs')} ended" + (f" ({ended})" if ended else ""),
        *([f"{len(found.running):,} running"] if found.running else []),
        *([f"{len(found.preparing):,} preparing"] if found.preparing else []),
        *([f"{len(found.waiting):,} waiting"] if found.waiting else []),
        *([f"{len(found.silent):,} without a sign of life"] if found.silent else []),
    ]
    return ", ".join(states)


def money_and_time(found: Watched) -> Iterator[str]:
    """What is left, and what was spent."""
    if found.left_s is not None and not found.is_over:
        yield f"About {duration_text(found.left_s)} left"
    rates = [run.usd_per_hour for run in found.running if run.usd_per_hour is not None]
    if found.spent_usd:
        now = f", {usd_text(sum(rates))}/h now" if rates else ""
        missing = f" ({counted_text(found.num_without_price, 'runs')} without a price)" * bool(found.num_without_price)
        yield f"{usd_text(found.spent_usd)} spent{missing}{now}"
    elif found.num_without_price:
        yield "Cost not known: the catalogue has no price of the device; --price sets one"


def run_cells(run: WatchedRun) -> tuple[str, ...]:
    """In the order of the headings."""
    done = _ABSENT if run.steps_done is None else f"{run.steps_done:,}"
    return (
        shown(run.path) + ("" if run.kind == "training" else f" ({run.kind})"),
        done if run.num_steps is None else f"{done}/{run.num_steps:,}",
        _rate(run.samples_per_s),
        _rate(run.planned_samples_per_s),
        _ABSENT if run.loss is None else f"{run.loss:.4f}",
        _ABSENT if run.memory_bytes is None else memory_text(run.memory_bytes),
        _ABSENT if run.planned_memory_bytes is None else memory_text(run.planned_memory_bytes),
        _duration(run.elapsed_s),
        _duration(run.left_s),
        _ABSENT if run.usd is None else usd_text(run.usd),
    )


def silent_text(run: WatchedRun, now_s: float) -> str:
    """Since when nothing was heard of a run, and how far it was."""
    if run.last_sign_s is None:
        since = "No sign of life at all"
    else:
        ago = duration_text(max(0.0, now_s - run.last_sign_s))
        since = f"No sign of life since {moment_text(run.last_sign_s)} ({ago} ago)"
    of = "" if run.num_steps is None else f" of {run.num_steps:,}"
    done = "" if run.steps_done is None else f", after step {run.steps_done:,}{of}"
    return f"{since}{done}"


def moment_text(seconds: float) -> str:
    """Local time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, OSError, ValueError):
        return "a time that is no time"


def _rate(per_s: float | None) -> str:
    return _ABSENT if per_s is None else f"{per_s:.3g}"


def _duration(seconds: float | None) -> str:
    return _ABSENT if seconds is None else duration_text(seconds)

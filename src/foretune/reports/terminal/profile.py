"""The digest of a trace as tables."""

from typing import TYPE_CHECKING

from foretune.core.units import bytes_text, duration_text
from foretune.reports.terminal.tables import console, right, table

if TYPE_CHECKING:
    from foretune.analyse.trace_digest import ModuleTime, TraceDigest

_FEW_BLOCKS = 12


def say_digest(digest: "TraceDigest") -> None:
    """Operators, phases, blocks, shares and memory, each for one step."""
    out = console()
    step_s = digest.wall_s / digest.num_steps
    out.print(f"{digest.num_steps} steps of {duration_text(step_s)} under the profiler, which slows them")
    if digest.left_out:
        out.print(f"Left out of the trace: {digest.left_out}")
    for made in (_operators(digest), _phases(digest), _modules(digest)):
        out.print()
        out.print(made)
    shares = digest.shares
    out.print()
    out.print(
        f"Of a step: input {shares.input:.1%}, launch {shares.launch:.1%}, idle {shares.idle:.1%}, "
        f"copy {shares.copy:.1%}, compute {shares.compute:.1%}"
    )
    if digest.memory is not None:
        peak = digest.memory.at_peak()
        parts = ", ".join(f"{name} {bytes_text(held)}" for name, held in peak.items() if held)
        out.print(f"Peak of tensors {bytes_text(sum(peak.values()))}: {parts}")


def _operators(digest: "TraceDigest") -> object:
    made = table("longest operators", "a step", "share", "calls a step")
    right(made, 1, 2, 3)
    for operator in digest.longest:
        calls = operator.num_calls / digest.num_steps
        made.add_row(
            operator.name, duration_text(operator.seconds / digest.num_steps), f"{operator.share:.1%}", f"{calls:g}"
        )
    return made


def _phases(digest: "TraceDigest") -> object:
    made = table("phase", "a step", "share")
    right(made, 1, 2)
    for name, seconds in sorted(digest.phases_s.items(), key=lambda item: -item[1]):
        made.add_row(name, duration_text(seconds / digest.num_steps), f"{seconds / digest.wall_s:.1%}")
    return made


def _modules(digest: "TraceDigest") -> object:
    """Every block where there are few; else the longest."""
    made = table("block", "forward", "backward", "share of all")
    right(made, 1, 2, 3)
    total_s = sum(module.seconds for module in digest.modules) or 1.0
    shown: tuple[ModuleTime, ...] = digest.modules
    if len(shown) > _FEW_BLOCKS:
        shown = tuple(sorted(shown, key=lambda module: -module.seconds)[:_FEW_BLOCKS])
    for module in shown:
        times = (duration_text(seconds / digest.num_steps) for seconds in (module.forward_s, module.backward_s))
        made.add_row(module.name, *times, f"{module.seconds / total_s:.1%}")
    if len(shown) < len(digest.modules):
        made.add_row(f"and {len(digest.modules) - len(shown)} more", "", "", "")
    return made

"""The digest of a trace as a picture: longest operators, phases, blocks, and memory over time by category."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretune.analyse.memory_timeline import CATEGORIES
from foretune.analyse.trace_digest import TraceDigest
from foretune.core.units import GIB, MIB
from foretune.core.vocabulary import MemoryPart
from foretune.reports.figures import GRID, INK, save_figure

_BAR, _LIGHT = "#3b6ea5", "#9dbcdc"
# Of the palette that plans use for the same parts of memory.
_COLOURS = {
    "parameters": "#3d5078",
    MemoryPart.OPTIMIZER_STATE: "#8fcbea",
    MemoryPart.GRADIENTS: "#146b34",
    MemoryPart.ACTIVATIONS: "#e0ad36",
    MemoryPart.INPUTS: "#7d2350",
    MemoryPart.TEMPORARIES: "#d9788a",
}
_HEAD, _TAIL = 18, 19
"""Characters that a long operator's name keeps at its two ends: forward and backward often differ in the last ones."""
_MOST_TICKS = 12


def write_profile_plot(digest: TraceDigest, directory: Path) -> tuple[Path, ...]:
    """Draws into profile.svg and profile.png; returns their paths."""
    return save_figure(lambda: _figure(digest), directory, "profile", "a profile")


def _figure(digest: TraceDigest) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.6), layout="constrained")
    steps = f"{digest.num_steps} step{'s' if digest.num_steps > 1 else ''}"
    where = "the CPU" if digest.device == "cpu" else f"one {digest.device} device"
    figure.suptitle(f"{steps} on {where}, as the profiler saw them", color=INK, fontsize=11, fontweight="bold")
    (operators, phases), (modules, memory) = figure.subplots(2, 2)
    draw_operators(operators, digest)
    _draw_phases(phases, digest)
    _draw_modules(modules, digest)
    _draw_memory(memory, digest)
    for panel in (operators, phases, modules, memory):
        panel.spines[["top", "right"]].set_visible(False)
        panel.title.set_color(INK)
        panel.set_axisbelow(True)
    return figure


def draw_operators(panel: Any, digest: TraceDigest) -> None:
    """One bar for each operator, the longest at the top. Bars have places, not names, which may be shortened alike."""
    places = range(len(digest.longest))
    times_ms = [1000 * operator.seconds / digest.num_steps for operator in digest.longest]
    bars = panel.barh(places, times_ms, color=_BAR)
    panel.set_yticks(places, _short_names([operator.name for operator in digest.longest]), fontsize=8)
    panel.invert_yaxis()
    panel.bar_label(bars, [f"{operator.share:.1%}" for operator in digest.longest], padding=3, fontsize=8)
    panel.set_title(f"The {len(digest.longest)} longest operators, without what they call", loc="left", fontsize=9.5)
    panel.set_xlabel("ms a step (share of the step)")
    panel.margins(x=0.14)
    panel.grid(axis="x", color=GRID)


def _draw_phases(panel: Any, digest: TraceDigest) -> None:
    order = sorted(digest.phases_s.items(), key=lambda item: item[1])
    bars = panel.barh([name for name, _ in order], [1000 * s / digest.num_steps for _, s in order], color=_BAR)
    panel.bar_label(bars, [f"{s / digest.wall_s:.1%}" for _, s in order], padding=3, fontsize=8)
    shares = digest.shares
    rows = (("input", shares.input), ("launch", shares.launch), ("idle", shares.idle), ("copy", shares.copy))
    words = "\n".join(f"{name} {share:.1%}" for name, share in (*rows, ("compute", shares.compute)))
    panel.set_title("Phases", loc="left", fontsize=9.5)
    panel.set_xlabel("ms a step (share of the step)")
    panel.text(0.97, 0.06, words, transform=panel.transAxes, ha="right", va="bottom", fontsize=8.5, color=INK)
    panel.margins(x=0.14)
    panel.grid(axis="x", color=GRID)


def _draw_modules(panel: Any, digest: TraceDigest) -> None:
    """One bar for each block in the order they run: forward, and backward on top of it."""
    modules = digest.modules
    places = list(range(len(modules)))
    forward = [1000 * module.forward_s / digest.num_steps for module in modules]
    backward = [1000 * module.backward_s / digest.num_steps for module in modules]
    panel.bar(places, forward, color=_BAR, label="forward")
    panel.bar(places, backward, bottom=forward, color=_LIGHT, label="backward")
    stride = max(1, -(-len(modules) // _MOST_TICKS))
    panel.set_xticks(
        places[::stride], [_block_text(module.name) for module in modules[::stride]], rotation=40, ha="right"
    )
    panel.set_title("Time in operators by block", loc="left", fontsize=9.5)
    panel.set_ylabel("ms a step")
    panel.margins(y=0.18)
    panel.legend(frameon=False, fontsize=8, loc="upper right", ncols=2)
    panel.grid(axis="y", color=GRID)


def _draw_memory(panel: Any, digest: TraceDigest) -> None:
    panel.set_title("Memory by category", loc="left", fontsize=9.5)
    memory = digest.memory
    if memory is None:
        panel.text(0.5, 0.5, "not in this trace", ha="center", transform=panel.transAxes)
        return
    unit, name = (GIB, "GiB") if max(memory.totals_bytes) >= GIB else (MIB, "MiB")
    times_ms = [1000 * time_s for time_s in memory.times_s]
    stacked = [[held / unit for held in memory.held_bytes[category]] for category in CATEGORIES]
    panel.stackplot(
        times_ms, *stacked, labels=CATEGORIES, colors=[_COLOURS[category] for category in CATEGORIES], linewidth=0
    )
    panel.set_xlabel("ms since the first step")
    panel.set_ylabel(name)
    panel.set_xlim(0, times_ms[-1])
    panel.set_ylim(0, max(memory.totals_bytes) / unit * 1.3)
    panel.legend(frameon=False, fontsize=8, ncols=3, loc="upper left")


def _short_names(names: Sequence[str]) -> list[str]:
    """Names without their usual prefix and the middle of long ones; whole where two would look the same."""
    plain = [name.removeprefix("aten::").removeprefix("autograd::engine::evaluate_function: ") for name in names]
    plain = [whole if plain.count(short) > 1 else short for whole, short in zip(names, plain, strict=True)]
    cut = [name if len(name) <= _HEAD + _TAIL else f"{name[:_HEAD]}…{name[-_TAIL:]}" for name in plain]
    return [whole if cut.count(short) > 1 else short for whole, short in zip(plain, cut, strict=True)]


def _block_text(name: str) -> str:
    """Initials of the stack and the number: `single_transformer_blocks.12` is `stb.12`."""
    stack, dot, number = name.rpartition(".")
    return "".join(word[0] for word in stack.split("_") if word) + dot + number if dot else name.split(maxsplit=1)[0]

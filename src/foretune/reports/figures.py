"""What plots have in common: size, colours, files."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from foretune.core.errors import MissingExtra

INK, GRID = "#1f2933", "#d5dbe1"
COLOURS = ("#3b6ea5", "#d9822b", "#4b8b5a", "#a5468b", "#7a6a3f", "#5b5ea6")
_PANEL_INCHES = (4.6, 3.4)
_DPI = 110
MOST_PANELS = 4


def save_figure(draw: Callable[[], Any], directory: Path, name: str, what: str) -> tuple[Path, ...]:
    """Saves what `draw` makes as <name>.svg and <name>.png; returns their paths. `what` is drawn, as in "a study"."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingExtra(f"Drawing {what}", "plots") from error
    mpl.use("Agg")
    # Text stays text: smaller files, and a reader can search in them. The same numbers give the same bytes.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "foretune", "font.size": 9})
    figure = draw()
    paths = []
    for suffix, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": _DPI})):
        path = directory / f"{name}.{suffix}"
        figure.savefig(path, **options)
        paths.append(path)
    return tuple(paths)


def new_figure(num_panels: int, title: str) -> tuple[Any, Sequence[Any]]:
    """A figure with so many panels, at most four in a row."""
    from matplotlib.figure import Figure

    num_columns = num_panels if num_panels < MOST_PANELS else num_panels // 2
    num_rows = math.ceil(num_panels / num_columns)
    size = (_PANEL_INCHES[0] * num_columns, _PANEL_INCHES[1] * num_rows + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, color=INK, fontsize=11, fontweight="bold")
    return figure, list(figure.subplots(num_rows, num_columns, squeeze=False).flat)


def name_below(figure: Any, panel: Any) -> None:
    """Names of the configurations, where they cover nothing."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(len(labels), 4) or 1, frameon=False, fontsize=8
    )


def plain(panel: Any) -> None:
    """Fewer lines."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(colors=INK)

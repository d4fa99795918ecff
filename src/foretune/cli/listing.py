"""`foretune list models|devices|methods`."""

import json
from typing import Annotated, Any

import typer

from foretune.core.units import count_text

app = typer.Typer(help="List models, devices and methods.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def models(as_json: AsJson = False) -> None:
    """Denoisers in the catalogue, and which of them can be trained."""
    from foretune.api.lists import list_models, shipped_models

    rows = list_models()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    _print_table(
        ("model", "family", "parameters", "can be trained"),
        [
            (
                r["name"],
                r["family"],
                count_text(r["num_params"]),
                "yes" if r["trainable"] else "not yet",
            )
            for r in rows
        ],
        f"{len(rows)} denoisers; {', '.join(shipped_models())} comes with Foretune.\n"
        "Sources: foretune list models --json",
    )


@app.command()
def devices(as_json: AsJson = False) -> None:
    """Devices in the catalogue, with their data sheets' figures."""
    from foretune.api.lists import list_devices

    rows = list_devices()
    if as_json:
        typer.echo(json.dumps([row.model_dump(mode="json") for row in rows], indent=2))
        return
    _print_table(
        ("device", "full name", "memory GB", "bandwidth GB/s", "bf16 TFLOPS", "USD/h"),
        [
            (
                row.name,
                row.title,
                f"{row.memory_gb:g}",
                _number(row.bandwidth_gb_per_s),
                _number(row.bf16_dense_tflops),
                _number(row.price_usd_per_hour),
            )
            for row in rows
        ],
        f"{len(rows)} devices; – is unknown. Sources of every figure: foretune list devices --json",
    )


@app.command()
def methods(as_json: AsJson = False) -> None:
    """Training methods and the settings each takes."""
    from foretune.api.lists import list_methods

    rows = list_methods()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    families = rows[0]["families"]
    assert all(row["families"] == families for row in rows), "each method trains every family"
    adapters = [set(row["settings"]) for row in rows if row["settings"]]
    shared = [name for name in rows[-1]["settings"] if all(name in settings for settings in adapters)]
    _print_table(
        ("method", "what it is", "settings"),
        [(r["name"], r["what"], ", ".join(name for name in r["settings"] if name not in shared) or "–") for r in rows],
        f"All but full also take {', '.join(shared)}.\nEach trains every family: {', '.join(families)}.\n"
        "Example: foretune train experiment.yaml method.kind=lora method.rank=32",
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def _print_table(headings: tuple[str, ...], rows: list[tuple[Any, ...]], footer: str) -> None:
    from foretune.reports.terminal.tables import table, wrapping_console

    out, made = wrapping_console(), table(*headings)
    for row in rows:
        made.add_row(*(str(cell) for cell in row))
    # A name is what is typed: it stays whole.
    made.columns[0].no_wrap = True
    out.print(made)
    out.print(footer, style="dim")

"""What the doctor found, as tables."""

from typing import TYPE_CHECKING, Any

from foretune.core.units import duration_text
from foretune.reports.terminal.tables import console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from foretune.checkup.finding import CheckResult


def print_findings(findings: "Sequence[CheckResult]", environment: "Mapping[str, Any]") -> None:
    """A table for each group, what fixes the rest, and the versions here."""
    from rich.markup import escape
    from rich.table import Table

    out = console()
    for group in dict.fromkeys(finding.group for finding in findings):
        table = Table("device", group, "verdict", "time", "detail", box=None, pad_edge=False)
        for f in (finding for finding in findings if finding.group == group):
            verdict = "[green]works[/]" if f.works else "[red]fails[/]" if f.needed else "[yellow]not available[/]"
            table.add_row(f.device, f.operation, verdict, duration_text(f.seconds), escape(f.detail))
        out.print(table)
        out.print()
    for remedy in dict.fromkeys(f.remedy for f in findings if f.remedy):
        out.print(f"To install or fix: {escape(remedy)}")
    packages = ", ".join(f"{name} {v}" for name, v in environment["packages"].items() if v)
    out.print(f"python {environment['python']}, {packages}", style="dim")

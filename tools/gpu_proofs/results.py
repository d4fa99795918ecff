"""The JSON that the proofs leave: device, versions, what each proof came to, and measurements beside the plan."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from foretune.core.errors import UserError
from foretune.core.input_files import read_text
from foretune.core.values.base import Part, Value
from foretune.hub.personal import Personal
from foretune.record.atomic import write_text
from foretune.record.redaction import redacted_text

MOST_BYTES = 4 * 2**20
_MOST_REASON = 500


class ProofResult(Part):
    """One proof."""

    name: str = Field(max_length=200)
    outcome: Literal["passed", "failed", "skipped"]
    reason: str | None = Field(default=None, max_length=_MOST_REASON)
    """Why it failed or was skipped."""
    took_s: float
    figures: dict[str, Any] = Field(default_factory=dict)


class GpuProofs(Value):
    """All of them, of one device with one set of versions."""

    environment: dict[str, Any]
    """As a shared measurement has it: device, driver, versions."""
    commit: str | None
    """Of the source, where it is a git checkout."""
    date: str
    """When it began."""
    proofs: tuple[ProofResult, ...] = ()
    rows: tuple[dict[str, str], ...] = ()
    """Measurements in the columns of `foretune bench --share`."""
    score: dict[str, Any] = Field(default_factory=dict)
    """Errors of the plan on these rows, beside rules of thumb."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing failed; what does not fit on the device is skipped."""
        return bool(self.proofs) and all(proof.outcome != "failed" for proof in self.proofs)

    def done(self) -> frozenset[str]:
        """Proofs that need not be repeated."""
        return frozenset(proof.name for proof in self.proofs if proof.outcome != "failed")

    def with_proof(self, proof: ProofResult, row: dict[str, str] | None = None) -> "GpuProofs":
        """The same with a proof that is new, or in the place of an earlier attempt."""
        others = tuple(one for one in self.proofs if one.name != proof.name)
        rows = self.rows if row is None else (*self.rows, row)
        return self.model_copy(update={"proofs": (*others, proof), "rows": rows})


def public_text(text: str) -> str:
    """The first line of an error, without folders and names of this machine."""
    line = redacted_text(text.strip().partition("\n")[0])[: _MOST_REASON - 1]
    for folder, instead in ((Path.cwd(), "."), (Path.home(), "~")):
        line = line.replace(str(folder), instead)
    found = Personal([]).found_in(line)
    return line if found is None else f"left out, because it has {found} in it"


def read_results(path: Path) -> GpuProofs:
    return GpuProofs.from_json(read_text(path, MOST_BYTES))


def write_results(path: Path, results: GpuProofs) -> None:
    """Written after each proof, so that an interrupted run can be continued. Raises if it names this machine."""
    text = results.to_json()
    found = Personal([]).found_in(text)
    if found is not None:
        raise UserError(f"The results would publish {found}, so they are not written to {path}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)

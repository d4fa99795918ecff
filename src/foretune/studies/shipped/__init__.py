"""Study files that come with Foretune: `foretune study batch-size` runs `batch-size.yaml` of this folder."""

from pathlib import Path

_FOLDER = Path(__file__).parent
SHIPPED_STUDIES = {path.stem: path for path in sorted(_FOLDER.glob("*.yaml"))}
"""Their files by name."""

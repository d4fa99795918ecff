"""Study files that come with Foretune: `foretune study batch-size` runs `batch-size.yaml` of this folder.

Series of studies, such as `foretune study cifar10-ddpm`, are in the folder `series` beside it.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent
SHIPPED_STUDIES = {path.stem: path for path in sorted(_FOLDER.glob("*.yaml"))}
"""Their files by name."""
SHIPPED_SERIES = {path.stem: path for path in sorted((_FOLDER.parent / "series").glob("*.yaml"))}
"""Those of series by name."""

"""What an installation has; what it lacks is named with the command that adds it."""

from foretune.core.errors import MissingExtra
from foretune.core.extras import is_installed


def require(extras: str, feature: str) -> None:
    """Raises the error that names the install command, before a long import fails half-way.

    Several extras have commas between them; all that lack are in one command.
    """
    lacking = [extra for extra in extras.split(",") if not is_installed(extra)]
    if lacking:
        raise MissingExtra(feature, ",".join(lacking))

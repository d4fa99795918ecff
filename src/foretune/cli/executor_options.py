"""`--option key=value` of commands that run an executor."""

from collections.abc import Sequence

from foretune.core.errors import UserError


def executor_options(given: Sequence[str]) -> dict[str, object]:
    """The options by name; values are read as YAML."""
    from foretune.config.yaml_files import parse

    found: dict[str, object] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--option {text!r} is not valid. Write --option key=value, for example partition=gpu.")
        found[key.strip()] = parse(value)
    return found

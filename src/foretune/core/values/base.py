"""What every value has in common: frozen, serialisable, versioned, and able to read its own past."""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from foretune.core.errors import UserError
from foretune.core.input_files import parse_json

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]

_MOST_FAULTS = 5


class WrongFormat(UserError):
    """A file that is not what it should be, or that a newer release wrote."""


class Part(BaseModel):
    """A piece of a value: frozen, and closed to unknown fields.

    Numbers that are not finite become text ("NaN"), because JSON has no word for them that every reader knows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")

    @classmethod
    def of_all_fields(cls, **fields: Any) -> Self:
        """A part from all of its fields, unchecked and without defaults.

        Several times as fast as `model_construct`: composing a trace makes tens of thousands of growths.
        """
        made = cls.__new__(cls)
        object.__setattr__(made, "__dict__", fields)
        object.__setattr__(made, "__pydantic_fields_set__", _fields_of(cls))
        object.__setattr__(made, "__pydantic_extra__", None)
        object.__setattr__(made, "__pydantic_private__", None)
        return made

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy without what cached properties computed from the fields before the update: pydantic would keep it."""
        copied = super().model_copy(update=update, deep=deep)
        if len(copied.__dict__) > len(_fields_of(type(self))):
            for name in copied.__dict__.keys() - _fields_of(type(self)):
                del copied.__dict__[name]
        return copied


@cache
def _fields_of(part: type[Part]) -> set[str]:
    return set(part.model_fields)


class Value(Part):
    """A value with a format version. A reader upgrades older files one version at a time.

    `upgrades[n]` turns a mapping of version n into one of version n + 1, so the current version is
    `len(upgrades) + 1` and no version can be forgotten.
    """

    upgrades: ClassVar[Mapping[int, Upgrade]] = {}

    @classmethod
    def format_version(cls) -> int:
        """The version this release writes."""
        return len(cls.upgrades) + 1

    def to_mapping(self) -> dict[str, Any]:
        """Plain data for JSON or YAML, with the format's name and version first."""
        body = json.loads(self.model_dump_json(by_alias=True))
        return {"format": type(self).__name__, "format_version": self.format_version(), **body}

    def to_json(self) -> str:
        return json.dumps(self.to_mapping(), indent=2, allow_nan=False) + "\n"

    @classmethod
    def upgraded(cls, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a stored mapping as this release knows them; its format and version are checked."""
        body = dict(mapping)
        name, version = body.pop("format", None), body.pop("format_version", None)
        if name != cls.__name__:
            found = "something that names no format" if name is None else f"a {name}"
            raise WrongFormat(f"Expected a {cls.__name__}, found {found}.")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise WrongFormat(f"This {cls.__name__} is damaged: its format version is {version!r}.")
        if version > cls.format_version():
            raise WrongFormat(
                f"This {cls.__name__} has format version {version}; this release reads up to "
                f"{cls.format_version()}. Run: pip install --upgrade foretune"
            )
        try:
            for step in range(version, cls.format_version()):
                body = cls.upgrades[step](body)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise WrongFormat(f"This {cls.__name__} of format version {version} is damaged: {error!r}.") from error
        return body

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        body = cls.upgraded(mapping)
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            faults = [f"{'.'.join(map(str, fault['loc'])) or 'the whole'}: {fault['msg']}" for fault in error.errors()]
            raise WrongFormat(f"This {cls.__name__} is damaged: {'; '.join(faults[:_MOST_FAULTS])}.") from error

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            mapping = parse_json(text)
        except ValueError as error:
            raise WrongFormat(f"This {cls.__name__} is not JSON: {error}") from error
        if not isinstance(mapping, dict):
            raise WrongFormat(f"Expected a {cls.__name__}, found {type(mapping).__name__}.")
        return cls.from_mapping(mapping)


def content_hash(data: Any) -> str:
    """Sixteen hex digits that are equal exactly when the JSON data are equal."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

"""Validation errors as sentences: where, what is the case, what was probably meant."""

from collections.abc import Callable, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from foretune.choices.experiment import Experiment
from foretune.config.places import KeyPlace, fields_by_key, find_place, kind_of, places_of_key, sections_in
from foretune.config.yaml_files import typed
from foretune.core.errors import closest


def describe_mistakes(error: ValidationError, root: type[BaseModel] = Experiment) -> list[str]:
    """One sentence for each mistake in a file of this kind, however many errors it causes."""
    found = [(find_place(details["loc"], root), details) for details in error.errors()]
    guessed = {(*place.path[:-1], _guess(place)) for place, details in found if _is_unknown_key(details)}
    return [
        f"{place}{'.kind' if details['type'].startswith('union_tag') else ''}: {_sentence(place, details)}"
        for place, details in found
        if not (details["type"] == "missing" and place.path in guessed) and not _follows(place, details, found)
    ]


def _follows(place: KeyPlace, details: ErrorDetails, found: Sequence[tuple[KeyPlace, ErrorDetails]]) -> bool:
    """Whether a list counts as too short only because entries of it are wrong, which is said of each entry."""
    return details["type"] == "too_short" and any(other.path[:-1] == place.path for other, _ in found)


def _sentence(place: KeyPlace, details: ErrorDetails) -> str:
    describe = _SENTENCES.get(details["type"])
    if describe is not None:
        return describe(place, details)
    return f"{details['msg']}{_found(details)}"


def _is_unknown_key(details: ErrorDetails) -> bool:
    return details["type"] in ("extra_forbidden", "invalid_key")


def _guess(place: KeyPlace) -> str | None:
    return closest(place.key, fields_by_key(place.section))


def _unknown_key(place: KeyPlace, _: ErrorDetails) -> str:
    if place.key.isdecimal() and "resolution" in fields_by_key(place.section):
        return "unknown key: in braces, a comma begins a key. A width and a height are written 416x240."
    kinds = [kind_of(sibling) for sibling in place.siblings if place.key in fields_by_key(sibling)]
    if kinds:
        return f"goes with kind {_either(kinds)}, but this is kind {kind_of(place.section)}."
    elsewhere = list(places_of_key(place.key, place.root))
    if elsewhere:
        return f"unknown key. Did you mean {_either(list(map(repr, elsewhere)))}?"
    guess = _guess(place)
    hint = f"Did you mean {guess!r}?" if guess else f"Known here: {', '.join(fields_by_key(place.section))}."
    return f"unknown key. {hint}"


def _missing(place: KeyPlace, details: ErrorDetails) -> str:
    if isinstance(details["loc"][-1], int):
        return f"is missing; the list should have {_fixed_length(place)} entries{_found(details)}"
    return f"is missing. {_help(place)}".rstrip()


def _kind_missing(place: KeyPlace, _: ErrorDetails) -> str:
    return f"is missing. Known: {', '.join(map(kind_of, _sections(place)))}."


def _kind_unknown(place: KeyPlace, details: ErrorDetails) -> str:
    asked = details["input"].get("kind")
    if asked is None:
        return _kind_missing(place, details)
    return not_one_of(asked, [kind_of(section) for section in _sections(place)])


def _not_in_list(_: KeyPlace, details: ErrorDetails) -> str:
    expected = details["ctx"]["expected"]
    known = [part.strip().strip("'") for part in expected.replace(" or ", ", ").split(",")]
    return not_one_of(details["input"], known)


def _not_a_section(place: KeyPlace, details: ErrorDetails) -> str:
    """Where the value shows which section was meant (`method: lora`), that section is the answer."""
    value, sections = details["input"], _sections(place)
    kinds = {kind_of(section): section for section in sections} if len(sections) > 1 else {}
    guess = closest(value, kinds) if isinstance(value, str) else None
    if guess is not None:
        return f"should be a section. Did you mean `{_as_written(place, _outline(kinds[guess], kind=guess))}`?"
    required = _required(sections[0])
    if len(sections) == 1 and len(required) == 1 and isinstance(value, str):
        return f"should be a section. Did you mean `{_as_written(place, typed({required[0]: value}))}`?"
    return f"should be a section, for example `{_example(place)}`{_found(details)}"


def _not_a_list(place: KeyPlace, details: ErrorDetails) -> str:
    value = details["input"]
    if value is None:
        return "should be a list; an empty one is []."
    length = _fixed_length(place)
    if length is not None:
        return f"should be a list of {length}{_found(details)}"
    return f"should be a list. Did you mean `{_as_written(place, typed([value]))}`?"


def _too_long(_: KeyPlace, details: ErrorDetails) -> str:
    return f"should have {details['ctx']['max_length']} entries{_found(details)}"


def _too_short(place: KeyPlace, _: ErrorDetails) -> str:
    return f"should not be empty. {_help(place)}".rstrip()


def _not_text(place: KeyPlace, details: ErrorDetails) -> str:
    value = details["input"]
    if value is None or isinstance(value, (list, dict)):
        return f"should be text{_found(details)}. {_help(place)}".rstrip()
    return f"should be text, so it needs quotes: '{typed(value)}'"


def _wrong_form(place: KeyPlace, details: ErrorDetails) -> str:
    return f"{shown_value(details['input'])} is not valid. {_help(place)}".rstrip()


def _our_own(_: KeyPlace, details: ErrorDetails) -> str:
    return f"{details['ctx']['error']}."


def _should_be(what: str) -> Callable[[KeyPlace, ErrorDetails], str]:
    """A sentence with the error's limit in it, where it has one."""

    def describe(_: KeyPlace, details: ErrorDetails) -> str:
        limits = {name: typed(int(limit) if limit == int(limit) else limit) for name, limit in _limits(details)}
        return f"should be {what.format(**limits)}{_found(details)}"

    return describe


def _limits(details: ErrorDetails) -> list[tuple[str, float]]:
    return [(name, limit) for name, limit in details.get("ctx", {}).items() if isinstance(limit, (int, float))]


_WHOLE_NUMBER = _should_be("a whole number")
_NUMBER = _should_be("a number")
_YES_OR_NO = _should_be("true or false")

_SENTENCES: dict[str, Callable[[KeyPlace, ErrorDetails], str]] = {
    "extra_forbidden": _unknown_key,
    "invalid_key": _unknown_key,
    "missing": _missing,
    "union_tag_not_found": _kind_missing,
    "union_tag_invalid": _kind_unknown,
    "literal_error": _not_in_list,
    "model_type": _not_a_section,
    "model_attributes_type": _not_a_section,
    "tuple_type": _not_a_list,
    "too_short": _too_short,
    "string_too_short": _too_short,
    "too_long": _too_long,
    "string_type": _not_text,
    "string_pattern_mismatch": _wrong_form,
    "value_error": _our_own,
    "int_type": _WHOLE_NUMBER,
    "int_parsing": _WHOLE_NUMBER,
    "int_parsing_size": _WHOLE_NUMBER,
    "int_from_float": _WHOLE_NUMBER,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": _should_be("a finite number"),
    "bool_type": _YES_OR_NO,
    "bool_parsing": _YES_OR_NO,
    "greater_than": _should_be("more than {gt}"),
    "greater_than_equal": _should_be("at least {ge}"),
    "less_than": _should_be("less than {lt}"),
    "less_than_equal": _should_be("at most {le}"),
}


def _sections(place: KeyPlace) -> tuple[type[BaseModel], ...]:
    return sections_in(place.field.annotation) if place.field is not None else ()


def _fixed_length(place: KeyPlace) -> int | None:
    """How many entries a list must have, where that is fixed."""
    annotation = place.field.annotation if place.field is not None else None
    arguments = get_args(annotation)
    return len(arguments) if get_origin(annotation) is tuple and Ellipsis not in arguments else None


def _help(place: KeyPlace) -> str:
    """What the documentation of the field says, with its example."""
    if place.field is None:
        return ""
    example = f" For example `{_example(place)}`." if place.field.examples else ""
    return f"{place.field.description or ''}{example}".strip()


def _example(place: KeyPlace) -> str:
    """The field as it could stand in a file."""
    if place.field is not None and place.field.examples:
        return _as_written(place, typed(place.field.examples[0]))
    (section,) = _sections(place)
    return _as_written(place, _outline(section))


def _outline(section: type[BaseModel], **known: str) -> str:
    """A section with the keys it cannot do without; if it can do without any, with one that has a default."""
    keys = dict.fromkeys(_required(section), "...") | known
    if not keys:
        defaults = {key: field.get_default() for key, field in fields_by_key(section).items()}
        keys = {key: typed(value) for key, value in defaults.items() if value}
        keys = dict(list(keys.items())[:1])
    return "{" + ", ".join(f"{key}: {value}" for key, value in keys.items()) + "}"


def _required(section: type[BaseModel]) -> list[str]:
    return [key for key, field in fields_by_key(section).items() if field.is_required()]


def _as_written(place: KeyPlace, text: str) -> str:
    """A value with its key before it; an entry of a list has none."""
    return text if place.key.isdecimal() else f"{place.key}: {text}"


def not_one_of(found: Any, known: Sequence[str]) -> str:
    if len(known) == 1:
        return f"should be {known[0]!r} (found {shown_value(found)})"
    guess = closest(str(found), known)
    hint = f" Did you mean {guess!r}?" if guess else ""
    return f"{shown_value(found)} is not one of {', '.join(known)}.{hint}"


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _found(details: ErrorDetails) -> str:
    return f" (found {shown_value(details['input'])})"


def shown_value(value: Any, most: int = 60) -> str:
    """A value that was found, text in quotes."""
    text = "nothing" if value is None else repr(value) if isinstance(value, str) else typed(value)
    return text if len(text) <= most else text[: most - 1] + "…"

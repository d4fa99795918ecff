"""Secrets are taken out of everything that a run directory keeps. One set of rules, used by every writer.

What counts as a secret:
1. the value of an environment variable, or of a command-line option, whose name says so (HF_TOKEN, --api-key);
2. what stands in such a field of a mapping, or behind such a name in a text: `password=...`, `Bearer ...`;
3. user and password of an address, and such parameters of its query;
4. text in the shape of a known kind of key (hf_..., ghp_..., AKIA..., a private key, a web token).

A secret that nothing names and that has no such shape is not known for one: do not put it into a prompt.
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

MARK = "[redacted]"
IS_ON = True
"""Switched off by nothing but the test that shows what would be written otherwise."""

_SHORTEST = 6
"""Shorter values of secret variables would be found in innocent text."""
_LONGEST_FIELD = 24
_NAMED = (
    r"(?:token|secret|passw(?:or)?d|passphrase|pwd|api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key"
    r"|credentials?|webhook|cookie|dsn)"
)
_FOLDERS = ("PWD", "OLDPWD")
"""Variables of the shell: the folder it is in, and the one before. Every path of a run may begin with them."""
_SECRET_NAME = re.compile(rf"(?i){_NAMED}(?![a-z])")
_VALUE = r"[^\s\"'\\,;&<>\[\]{}()]{6,}"
_QUOTE = r"(?:\\*[\"'])?"
"""Also as it stands in JSON, behind backslashes. A backslash without a quote begins something else, such as "\\n"."""
_RULES = (
    # Also in JSON, where the ends of its lines are written out, and where it was cut short.
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[A-Za-z0-9+/=\s]|\\n|\\r)*(?:-----END [A-Z ]*PRIVATE KEY-----)?"
        ),
        MARK,
    ),
    (re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@\"'<>\\]+@"), rf"\1{MARK}@"),
    (
        re.compile(
            r"(?i)([?&;][\w.-]*(?:token|key|secret|sig|signature|passw(?:or)?d|auth|credential|session)[\w.-]*=)"
            r"[^&\s\"'#<>\\]+"
        ),
        rf"\1{MARK}",
    ),
    (
        re.compile(rf"(?i)(\bauthorization{_QUOTE}\s*[:=]\s*{_QUOTE}(?:bearer|basic|token)?\s*)[^\s\"'\\,;<>]+"),
        rf"\1{MARK}",
    ),
    (re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{8,}"), rf"\1{MARK}"),
    (re.compile(rf"(?i)(?<![a-z])([\w.-]*{_NAMED}{_QUOTE}\s*[:=]\s*{_QUOTE}){_VALUE}"), rf"\1{MARK}"),
    (re.compile(rf"(?i)(--[\w-]*{_NAMED}[\s=]+{_QUOTE}){_VALUE}"), rf"\1{MARK}"),
    (
        re.compile(
            r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
            r"|(?:AKIA|ASIA)[0-9A-Z]{16}|xox[abeprs]-[\w-]{10,}|AIza[\w-]{30,}|npm_[A-Za-z0-9]{20,}"
            r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,})"
        ),
        MARK,
    ),
)


def redacted(value: Any) -> Any:
    """The same data without secrets: text, or anything made of mappings and sequences of it."""
    if not IS_ON or isinstance(value, (float, int)):
        return value
    if isinstance(value, str):
        return redacted_text(value)
    if isinstance(value, Mapping):
        # Events of steps are mappings of numbers: they are let through at once, because the loop waits for it.
        return {
            _key(key): inner if isinstance(inner, (float, int)) else MARK if _is_secret(key, inner) else redacted(inner)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return type(value)(redacted(inner) for inner in value)
    return value


def redacted_text(text: str) -> str:
    """A text, such as a whole file as it is about to be written."""
    if not IS_ON or len(text) < _SHORTEST:
        return text
    for secret in _known_secrets(tuple(os.environ.items()), tuple(sys.argv)):
        if secret in text:
            text = text.replace(secret, MARK)
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text


def _key(key: Any) -> Any:
    """Names of fields are short, and many: events of steps are made of them."""
    return redacted_text(key) if isinstance(key, str) and len(key) > _LONGEST_FIELD else key


def _is_secret(key: Any, value: Any) -> bool:
    return isinstance(value, str) and bool(value) and isinstance(key, str) and bool(_SECRET_NAME.search(key))


@lru_cache(maxsize=2)
def _known_secrets(environment: tuple[tuple[str, str], ...], arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Values that the environment and the command line name as secrets, longest first, as they are and as in JSON."""
    found = {value for name, value in environment if name not in _FOLDERS and _SECRET_NAME.search(name)}
    for before, argument in zip(("", *arguments), arguments, strict=False):
        name, _, value = argument.partition("=")
        if value and _SECRET_NAME.search(name):
            found.add(value)
        elif before.startswith("-") and "=" not in before and _SECRET_NAME.search(before):
            found.add(argument)
    usable = {secret for secret in found if len(secret) >= _SHORTEST}
    usable |= {json.dumps(secret)[1:-1] for secret in usable}
    return tuple(sorted(usable, key=lambda secret: (-len(secret), secret)))

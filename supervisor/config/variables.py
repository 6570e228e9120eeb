"""Replace `${NAME}` and `${NAME:-default}` in a scalar of the config; `$${` stands for a literal `${`.

The default is used if the variable is not set or is empty, as in a shell, and may contain variables itself. In the user, the
password and the query values of a URL, the value is percent-encoded, so that it may contain any character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote

_MAX_DEPTH = 10
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_START = re.compile(r"(\$)?\$\{")
_START_OR_END = re.compile(r"\$?\$\{|\}")
_VALUE = "\0"
"""Stands for the value of a variable where only the text around it matters."""
_USER_INFO = re.compile(r"://([^/@]*)@")
_QUERY_VALUE = re.compile(r"[?&][^=&#]*=([^&#]*)")


def expand(text: str, environ: Mapping[str, str], used: list[str], depth: int = 0) -> str:
    """Replace the variables in `text`, and add to `used` the texts that the environment gave. Raises ValueError."""
    parts: list[str] = []  # in turn a text and the value of a variable
    at = literal = 0
    while start := _START.search(text, literal):
        literal = start.end()
        if start[1] is None:
            literal = _end(text, start.end())
            value = _value(text[start.end() : literal - 1], environ, used, depth)
            parts += text[at : start.start()], value
            at = literal
    texts = [_START.sub("${", each) for each in (*parts[::2], text[at:])]
    values = parts[1::2]
    if depth == 0 and values:
        safe = _safe_characters(_VALUE.join(each.replace(_VALUE, " ") for each in texts))
        values = [value if kept is None else quote(value, kept) for value, kept in zip(values, safe, strict=True)]
    return "".join(part for pair in zip(texts, [*values, ""], strict=True) for part in pair)


def _end(text: str, at: int) -> int:
    """Return the place behind the `}` that ends the variable whose name begins at `at`."""
    depth = 1
    for token in _START_OR_END.finditer(text, at):
        depth += {"${": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    raise _not_a_variable()


def _value(inside: str, environ: Mapping[str, str], used: list[str], depth: int) -> str:
    name, has_default, default = inside.partition(":-")
    if not _NAME.fullmatch(name):
        raise _not_a_variable()
    value = environ.get(name)
    if has_default and not value:
        if depth == _MAX_DEPTH:
            raise ValueError(f"variables nested deeper than {_MAX_DEPTH}")
        return expand(default, environ, used, depth + 1)
    if value is None:
        raise ValueError(f"environment variable {name} is not set; set it, or write ${{{name}:-default}}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"environment variable {name} is not UTF-8") from None
    used.append(value)
    return value


def _not_a_variable() -> ValueError:
    return ValueError("expected ${NAME} or ${NAME:-default}; write $${ for a literal ${")


def _safe_characters(text: str) -> Iterator[str | None]:
    """Yield for each _VALUE in `text` the characters that it keeps, or None if it is not percent-encoded there at all.

    A variable that is the whole user info of a URL, as in `https://${LOGIN}@host`, has the `:` between user and password.
    """
    kept: dict[int, str] = {}
    if "://" in text:
        parts = [(part, "" if ":" in part[1] else ":") for part in _USER_INFO.finditer(text)]
        parts += [(part, "") for part in _QUERY_VALUE.finditer(text)]
        kept = {at: safe for part, safe in parts for at in range(*part.span(1))}
    return (kept.get(at) for at, character in enumerate(text) if character == _VALUE)

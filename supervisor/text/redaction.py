"""Keeps passwords and tokens of the config out of whatever is written for people: logs, errors, reports."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus, unquote

import orjson

MASK = "***"
SHORTEST = 5  # characters; masking shorter ones wherever they stand would spoil more than it hides

# Of whatever anybody prints: one repetition to a pattern, or a line made for it would take seconds.
_BEFORE_HOST = re.compile(r"(?<=://)[^\s/]*(?=@)")
_PASSWORD = re.compile(r"(?<=password=)\S+")


class Mask:
    """Of a text: the same without any of `secrets`, however they are quoted in it, and without passwords in URLs."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= SHORTEST for form in _forms(secret)}
        longest_first = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def __call__(self, text: str) -> str:
        return without_passwords(self._pattern.sub(MASK, text) if self._pattern else text)


NO_SECRETS = Mask()


def without_passwords(text: str) -> str:
    """Of any text: URLs and connection strings in it are without their password."""
    if "://" in text:
        text = _BEFORE_HOST.sub(lambda found: MASK if ":" in found[0] else found[0], text)
    return _PASSWORD.sub(MASK, text) if "password=" in text else text


def without_secrets(url: str) -> str:
    """The URL without its password and its query, which may hold another."""
    before, password, behind = _around_password(url)
    base, question, _ = behind.partition("?")
    return f"{before}{MASK if password else ''}{base}{question}{MASK if question else ''}"


def secrets_of(url: str) -> set[str]:
    """The password and the values of the query, as written and as meant."""
    _, password, behind = _around_password(url)
    query = behind.partition("?")[2].partition("#")[0]
    written = {pair.partition("=")[2] for pair in query.split("&")} | {password}
    return {form for text in written if text for form in (text, unquote(text))}


def _around_password(url: str) -> tuple[str, str, str]:
    """What stands before the password, it, and what stands behind. Like libpq, and unlike urlsplit, it takes `?` and `#` before an
    `@` for part of it."""
    scheme, colon, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user_info, at, host = authority.rpartition("@")
    user, second_colon, password = user_info.partition(":")
    return f"{scheme}{colon}{user}{second_colon}", password, f"{at}{host}{slash}{path}"


def _forms(secret: str) -> set[str]:
    """As it is, in a `repr`, in JSON and in a URL."""
    return {secret, repr(secret)[1:-1], orjson.dumps(secret).decode()[1:-1], quote(secret, safe=""), quote_plus(secret)}

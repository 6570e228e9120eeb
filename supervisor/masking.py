"""Keeps passwords and tokens of the config out of whatever is written for people: logs, errors, reports."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus, unquote, urlsplit

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
    base, question, _ = url.partition("?")
    try:
        password = urlsplit(base).password
    except ValueError:
        return f"{url.partition(':')[0]}:{MASK}"
    if password:
        base = base.replace(f":{password}@", f":{MASK}@", 1)
    return f"{base}?{MASK}" if question else base


def secrets_of(url: str) -> set[str]:
    """The password and the values of the query, as written and as meant; of what can't be read, all of it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return {url}
    written = {pair.partition("=")[2] for pair in parts.query.split("&")} | {parts.password or ""}
    return {form for text in written if text for form in (text, unquote(text))}


def _forms(secret: str) -> set[str]:
    """As it is, in a `repr`, in JSON and in a URL."""
    return {secret, repr(secret)[1:-1], orjson.dumps(secret).decode()[1:-1], quote(secret, safe=""), quote_plus(secret)}

"""Keep passwords and tokens of the config out of all text that people read: logs, errors, reports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

import orjson

MASK = "***"
MIN_LENGTH = 5
"""The length of the shortest secret that is masked: masking shorter ones everywhere would make texts unreadable."""

Replacement = tuple[re.Pattern[str], str]

# The text may come from an attacker, so no pattern may backtrack much: a line made for that would take minutes.
# Each pattern begins with literal text, for which the search is fast.
_PASSWORDS: tuple[Replacement, ...] = (
    (re.compile(r"://[^\s/:]*+:[^\s/]*(?=@)"), f"://{MASK}"),
    (re.compile(r"password=\S+"), f"password={MASK}"),
)
_PARTS_OF_NAME = re.compile(r"[._-]")
_SECRET_PARTS = frozenset({"password", "passwd", "passphrase", "secret", "pem", "jaas"})
_SECRET_ENDS = ("token", "oauthbearer.config")
_ENDS_OF_PARTS = re.compile(r"[@:/?#&%\s]+")
_HOSTS = re.compile(r"(?:(?:\[[^\]]*+\]|[^:,\[\]]*+)(?::\d*+)?(?:,|\Z))+")


class Mask:
    """Hides `secrets`, in whatever way they are quoted, and the passwords in URLs and connection strings.

    `replacements` are its patterns, each with the text to put in place of a match, in the order to apply them.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= MIN_LENGTH for form in _quoted(secret)}
        longest_first = sorted(forms, key=len, reverse=True)
        named = ((re.compile("|".join(map(re.escape, longest_first))), MASK),) if forms else ()
        self.replacements: tuple[Replacement, ...] = (*named, *_PASSWORDS)

    def __call__(self, text: str) -> str:
        for pattern, replacement in self.replacements:
            text = pattern.sub(replacement, text)
        return text


NO_SECRETS = Mask()
"""Hides only the passwords in URLs and connection strings."""


def is_secret_name(name: str) -> bool:
    """Return whether the value of a setting of this name, such as `sasl.password`, is a secret."""
    name = name.lower()
    return name.endswith(_SECRET_ENDS) or not _SECRET_PARTS.isdisjoint(_PARTS_OF_NAME.split(name))


def secrets_in(settings: Mapping[Any, Any]) -> Iterator[str]:
    """Yield the values of settings that have the name of a secret, and the passwords in URLs among the others."""
    for key, value in settings.items():
        if is_secret_name(str(key)):
            yield str(value)
        elif isinstance(value, str) and "://" in value:
            yield from secrets_of(value)


def without_secrets(url: str) -> str:
    """Return the URL with *** in place of its password and of its query, which may contain another password.

    A `/` before an `@` may be a part of the password, or not: it is hidden.
    """
    before, password, behind = _around_password(url, strict=True)
    base, question, _ = behind.partition("?")
    return f"{before}{MASK if password else ''}{base}{question}{MASK if question else ''}"


def secrets_of(url: str) -> set[str]:
    """Return the password and the query values of `url`, each as written and with its percent-encoding decoded, and the pieces of
    the password that an error shows if it was cut at a character which should have been encoded."""
    _, password, behind = _around_password(url, strict=False)
    query = behind.partition("?")[2].partition("#")[0]
    written = {pair.partition("=")[2] for pair in query.split("&")} | {password}
    pieces = {piece for piece in _ENDS_OF_PARTS.split(unquote(password)) if len(piece) >= MIN_LENGTH}
    return {form for text in written if text for form in (text, unquote(text))} | pieces


def _around_password(url: str, *, strict: bool) -> tuple[str, str, str]:
    """Split the URL into the text before the password, the password, and the text behind it.

    As in libpq, and unlike in urlsplit, a `?` or `#` before an `@` is a part of the password. So is a `/` where the text before it
    can't be a host and its port or, if `strict`, wherever an `@` of the path follows.
    """
    scheme, colon, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    is_cut = _HOSTS.fullmatch(authority.rpartition("@")[2]) is None or (strict and "@" in path.partition("?")[0])
    user_info = (rest if is_cut else authority).rpartition("@")[0]
    user, second_colon, password = user_info.partition(":")
    return f"{scheme}{colon}{user}{second_colon}", password, rest[len(user_info) :]


def _quoted(secret: str) -> set[str]:
    """Return the secret as it is, as in a `repr`, as in JSON and as in a URL."""
    in_json = {orjson.dumps(secret).decode()[1:-1], json.dumps(secret)[1:-1]}
    return {secret, repr(secret)[1:-1], *in_json, quote(secret), quote(secret, safe=""), quote_plus(secret)}

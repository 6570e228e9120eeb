"""Make text from any source safe for stores, logs and terminals."""

from __future__ import annotations

STEERING = (*range(127, 160), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Characters from 127 up that steer a terminal, break its lines or reverse its writing direction."""

JSON_ESCAPES = {code: f"\\u{code:04x}" for code in STEERING}
"""A table for `str.translate`: JSON text keeps its value, and has no character left that steers a terminal."""


def shortened(text: str, limit: int) -> str:
    """Return `text`, or only its beginning and its end if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def printable(text: str) -> str:
    """Return the text with NUL and lone surrogates escaped, so that every store and every terminal takes it."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def json_line(data: bytes) -> str:
    """Return JSON from orjson as text of the same value, without characters that steer a terminal."""
    return data.decode().translate(JSON_ESCAPES)

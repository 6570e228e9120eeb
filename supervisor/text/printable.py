"""Text from anywhere, made fit for stores, logs and terminals."""

from __future__ import annotations


def shortened(text: str, most: int) -> str:
    """Beginning and end of a text that is longer than `most` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def printable(text: str) -> str:
    """Error text that every store and every terminal takes: NUL and lone surrogates are escaped, never fatal."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


STEERING = (*range(127, 160), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Characters that steer a terminal, break its lines or turn their order about, beside those below 32."""


_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in STEERING}


def json_line(data: bytes) -> str:
    """JSON as orjson writes it, with nothing in it that steers a terminal: the same value."""
    return data.decode().translate(_JSON_ESCAPES)

"""Secrets that the config has from the environment are in no text that people read."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import orjson
import pytest

from supervisor.config.loading import load
from supervisor.telemetry.log_handler import FORMATS
from supervisor.text.redaction import Mask, secrets_of, without_secrets

TOKEN = "s3cr3t/\"to\\ken' é"


@pytest.mark.parametrize(
    "text",
    [
        f"refused: {TOKEN}",
        f"bad options { ({'key': TOKEN})!r}",
        orjson.dumps({"key": TOKEN}).decode(),
        "GET /hook?key=s3cr3t%2F%22to%5Cken%27%20%C3%A9",
        "GET /hook?key=s3cr3t%2F%22to%5Cken%27+%C3%A9",
        f"GET /hook/{quote(TOKEN)}",
        json.dumps({"key": TOKEN}),
        f"first line\n{TOKEN}\nlast line",
    ],
)
def test_a_secret_is_masked_however_it_is_quoted(text: str) -> None:
    masked = Mask([TOKEN])(text)
    assert "***" in masked
    assert "s3cr3t" not in masked


def test_of_two_secrets_that_overlap_the_longer_is_masked() -> None:
    assert Mask(["secret", "secret-and-more"])("a secret-and-more b secret") == "a *** b ***"


def test_short_secrets_are_not_masked() -> None:
    assert Mask(["", "5432", "jobs", "54321"])("released 5432 jobs, 54321") == "released 5432 jobs, ***"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("can't reach postgresql://me:p@ss:w@db/jobs now", "can't reach postgresql://***@db/jobs now"),
        ("host=db password=pw user=me", "host=db password=*** user=me"),
        ("see http://host:80/a@b and file:///x", "see http://host:80/a@b and file:///x"),
    ],
)
def test_passwords_in_urls_and_connection_strings_are_masked(text: str, masked: str) -> None:
    assert Mask()(text) == masked


@pytest.mark.parametrize(
    "line", ["://" + ":" * 500_000, "://" + "a:" * 250_000, "password=" * 50_000], ids=["colons", "words", "names"]
)
def test_no_line_that_a_job_prints_takes_long(line: str) -> None:
    """These lines take minutes where the time grows with the square of the length."""
    assert Mask()(f"{line} and on").endswith(" and on")


def test_a_url_is_shown_without_its_secrets() -> None:
    assert without_secrets("redis://me:me@host/0?password=x&db=1") == "redis://me:***@host/0?***"
    assert without_secrets("redis://[bad:word@host") == "redis://[bad:***@host"
    assert secrets_of("redis://me:p%20w@host/0?token=t%2Fk") == {"p%20w", "p w", "t%2Fk", "t/k"}


@pytest.mark.parametrize("password", ["pass#word", "pass?word", "p:ss#w?rd", "pass@word"])
def test_a_password_may_contain_characters_that_end_other_parts_of_a_url(password: str) -> None:
    """As libpq reads it."""
    url = f"postgresql://me:{password}@host:5432/db?sslmode=verify-full#not-a-fragment"
    assert without_secrets(url) == "postgresql://me:***@host:5432/db?***"
    assert secrets_of(url) == {password, "verify-full"}
    assert without_secrets("postgresql:///db?host=/run/a@b") == "postgresql:///db?***"


def test_no_piece_of_a_password_is_shown_where_the_url_is_cut() -> None:
    url = "postgresql://me:pw/Secret9x@host:5432/db"
    assert without_secrets(url) == "postgresql://me:***@host:5432/db"
    assert Mask(secrets_of(url))("no host Secret9x@host") == "no host ***@host"
    assert without_secrets("postgresql://me:12/Secret9x@host/db") == "postgresql://me:***@host/db"
    assert secrets_of("https://host:80/folder@v1") == set()


CONFIG = """
store: {url: "${URL}", key: "${KEY}"}
plugins: ["${FOLDER}"]
dlq:
  sinks:
    - {type: pager, name: "${NAME_}", number: "+${NUMBER}", path: "${FOLDER}", deep: {token: "${TOKEN}"}, other: "${X:-none given}"}
    - {type: hook, url: "https://me:literal@host/"}
"""
VALUES = {
    "URL": "redis://user:passw0rd@host/0", "KEY": "a-key", "FOLDER": "/folder", "NAME_": "night", "NUMBER": "123456",
    "TOKEN": "a-token",
}  # fmt: skip


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        (tmp_path / "supervisor.yaml").write_text(text)
        return tmp_path / "supervisor.yaml"

    return write


def test_values_from_the_environment_and_passwords_of_urls_are_secrets(write: Callable[[str], Path]) -> None:
    settings = load(write(CONFIG), VALUES)
    assert settings.secrets == {"passw0rd", "a-key", "123456", "a-token", "literal"}
    assert "passw0rd" not in settings.store.shown
    assert not any(secret in repr(settings.secrets) for secret in ("/folder", "night"))


def test_the_path_of_a_file_is_no_secret(write: Callable[[str], Path]) -> None:
    text = "store: 'sqlite:///${FOLDER}/jobs.db'\ndlq: {sinks: [{type: file, path: '${FOLDER}/dead.jsonl'}]}"
    assert load(write(text), VALUES).secrets == set()


def test_a_value_that_should_be_a_url_and_is_none_is_a_secret_as_a_whole(write: Callable[[str], Path]) -> None:
    with pytest.raises(Exception, match="expected a URL") as refused:
        load(write("store: ${URL}"), {"URL": "passw0rd"})
    assert refused.value.settings.secrets == {"passw0rd"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", FORMATS)
def test_a_log_line_has_no_secret_in_any_part(form: str) -> None:
    fields = {"traceback": f"boom {TOKEN}", "sink": TOKEN, "job": 7}
    record = logging.makeLogRecord({"msg": "sink raised %s", "args": (TOKEN,), "fields": fields, "name": "supervisor"})
    line = FORMATS[form](Mask([TOKEN])).format(record)
    assert "s3cr3t" not in line
    assert "sink raised ***" in line
    assert "boom ***" in line

"""The options beside the URL of a store, and errors in them."""

from __future__ import annotations

import sys

import pytest

from supervisor.config.loading import load
from supervisor.config.settings import StoreSettings
from supervisor.errors import ConfigError, StoreError
from supervisor.stores.opening import open_store

URL = "postgresql://u:sesame-0815@127.0.0.1:1/jobs"


def settings(folder, store):
    (folder / "supervisor.yaml").write_text(f"store: {store}\n")
    return load(folder / "supervisor.yaml")


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_postgresql_has_a_schema_and_may_listen(tmp_path, scheme):
    found = settings(tmp_path, f"{{url: '{scheme}://h/d', schema: mine, listen: false}}").store
    assert found.options == {"schema": "mine", "listen": False}


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("shema: x", "unknown key, did you mean 'schema'?"),
        ("listen: maybe", "expected true or false"),
        ("listen: 1", "expected true or false"),
        ("schema: 7", "expected text"),
        ("synchronous: full", "unknown key"),
    ],
)
def test_an_option_that_is_wrong_is_named_without_the_password(tmp_path, option, expected):
    with pytest.raises(ConfigError) as raised:
        settings(tmp_path, f"{{url: '{URL}', {option}}}")
    assert expected in str(raised.value)
    assert "sesame" not in str(raised.value)


def test_the_password_is_a_secret_and_not_shown(tmp_path):
    found = settings(tmp_path, URL)
    assert "sesame-0815" in found.secrets
    assert "sesame" not in found.store.shown


def test_without_psycopg_the_extra_is_named(tmp_path, monkeypatch):
    for module in [name for name in sys.modules if name.startswith(("psycopg", "supervisor.stores.postgres."))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install 'job-supervisor\[postgres\]'"):
        open_store(StoreSettings(url=URL), create=False, base=tmp_path)


def test_an_unreachable_server_is_named_without_the_password(tmp_path):
    with pytest.raises(StoreError, match="refused") as raised:
        open_store(StoreSettings(url=URL), create=False, base=tmp_path)
    assert "sesame" not in str(raised.value)

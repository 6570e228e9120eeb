"""Imports that a handler, or a program that enqueues, must not have to wait for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SLOW = {"pydantic", "rich", "importlib.metadata", "supervisor.plugins.manager"}


def imported(code: str, folder: Path) -> set[str]:
    """The modules that a new interpreter has after `code`."""
    ask = "\nimport sys, json; print(json.dumps(list(sys.modules)))"
    return set(json.loads(subprocess.check_output([sys.executable, "-c", code + ask], cwd=folder)))


@pytest.mark.parametrize("code", ["import supervisor", "from supervisor import handler, Job, Retry, StoreError"])
def test_a_handler_imports_neither_stores_nor_config_nor_plugins(tmp_path: Path, code: str) -> None:
    assert not imported(code, tmp_path) & {*SLOW, "pluggy", "yaml", "orjson", "supervisor.config", "supervisor.stores"}


def test_a_client_imports_no_plugins(tmp_path: Path) -> None:
    (tmp_path / "supervisor.yaml").write_text("store: sqlite:///jobs.db\nhandlers: {mail: {queue: post}}\n")
    code = "from supervisor import Client\nClient(create=True).enqueue('mail', {'to': 'me'})"
    assert not imported(code, tmp_path) & {*SLOW, "pluggy"}


def test_a_forkserver_imports_nothing_that_only_the_supervisor_uses(tmp_path: Path) -> None:
    unused = {"yaml", "rich", "asyncio", "click", "importlib.metadata", "importlib.resources", "zipfile", "email"}
    code = (
        "from pathlib import Path; import supervisor.workers.forkserver.main;"
        "from supervisor.plugins.discovery import discover; discover(['plugins'], Path.cwd())"
    )
    assert not imported(code, tmp_path) & unused


def test_every_public_name_is_imported_on_demand(tmp_path: Path) -> None:
    code = "import supervisor\nfor name in supervisor.__all__: getattr(supervisor, name)"
    assert "supervisor.client" in imported(code, tmp_path)

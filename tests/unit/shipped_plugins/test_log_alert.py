import logging
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from supervisor.plugins.importer import forget, import_file

PLUGIN = Path(__file__).parents[3] / "plugins" / "log_alert.py"


@pytest.fixture
def plugin() -> Iterator[ModuleType]:
    yield import_file(PLUGIN)
    forget(PLUGIN.parent)


def dead_letter(id: int, *errors: dict[str, Any]) -> dict[str, Any]:
    return {"id": id, "handler": "thumb", "errors": list(errors)}


def test_each_dead_letter_is_one_error_line_about_its_last_failure(
    plugin: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    sink = plugin.supervisor_sinks()["log-alert"]()
    first = {"cause": "timeout", "type": "", "message": ""}
    last = {"cause": "exception", "type": "ValueError", "message": "bad picture"}
    assert list(sink.publish([dead_letter(7, first, last), dead_letter(8, first), dead_letter(9)])) == [7, 8, 9]
    sink.close()
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.ERROR, "dead letter job=7 handler=thumb cause=exception: ValueError: bad picture"),
        (logging.ERROR, "dead letter job=8 handler=thumb cause=timeout: no message"),
        (logging.ERROR, "dead letter job=9 handler=thumb cause=None: no message"),
    ]
    assert vars(caplog.records[0])["fields"] == {"job": 7, "handler": "thumb", "cause": "exception"}

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from supervisor.config.settings import Settings
from supervisor.handlers import HandlerInfo
from supervisor.plugins.reports import SourceReport, nothing_served, reports_from

INFO = HandlerInfo("mail", {"timeout": "3s"}, "a.py", 2)
LOADED = SourceReport("a.py", (INFO,), ("supervisor_sinks",), ("pager",), warnings=("odd",))
FAILED = SourceReport("b.py", error="ValueError: no", line=3, traceback="...")


def as_sent(*reports: SourceReport) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = json.loads(json.dumps([asdict(report) for report in reports]))
    return sent


def test_a_supervisor_without_handlers_says_where_it_looked(tmp_path: Path) -> None:
    settings = Settings(base=tmp_path, plugins={"paths": ["plugins", "/more"]})
    looked, warning = nothing_served([FAILED], settings) or ("", "")
    assert looked == f"{tmp_path}/plugins, /more"
    assert warning.startswith(
        "no handler there, nor in an installed package, so no job can run; no config: $SUPERVISOR_CONFIG"
    )
    assert f"{tmp_path} has no supervisor.yaml and no etc/supervisor.yaml" in warning
    assert "config: x.yaml" in str(nothing_served([], settings.replace(path=Path("x.yaml"))))
    assert nothing_served([FAILED, LOADED], settings) is None


def test_reports_arrive_as_they_were_sent() -> None:
    assert reports_from(as_sent(LOADED, FAILED)) == [LOADED, FAILED]


@pytest.mark.parametrize(
    "forged",
    [
        {"source": 5},
        {"source": None},
        {"error": 5},
        {"line": "3"},
        {"traceback": None},
        {"hooks": [None]},
        {"hooks": 5},
        {"warnings": {"a": 1}, "sinks": [1]},
        {"handlers": [{"name": "mail"}]},
        {"handlers": ["mail"]},
        {"handlers": [{**asdict(INFO), "options": []}]},
        {"handlers": [{**asdict(INFO), "line": None}]},
        {"more": 1},
    ],
)
def test_forged_reports_are_refused(forged: dict[str, Any]) -> None:
    (sent,) = as_sent(LOADED)
    with pytest.raises(ValueError):
        reports_from([{**sent, **forged}])


@pytest.mark.parametrize("forged", [["a"], [None], [[]], [{}]])
def test_anything_else_is_no_report(forged: list[Any]) -> None:
    with pytest.raises(ValueError):
        reports_from(forged)

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor import Job
from tests.unit.plugins.conftest import HANDLER, Put


def test_helpers_of_one_name_in_two_directories_are_kept_apart_now_and_later(put: Put, load: Any) -> None:
    for folder in "ab":
        put(f"{folder}/util.py", f"X = {folder!r}\n")
        put(
            f"{folder}/work.py",
            f"""\
            from supervisor import handler
            import util
            from util import X
            @handler("work-{folder}")
            def work(job):
                import util as late
                return util.X + X + late.X
            """,
        )
    manager, reports = load("a", "b")
    assert all(report.error is None for report in reports.values())
    assert manager.handlers["work-a"].function(Job(1, "")) == "aaa"
    assert manager.handlers["work-b"].function(Job(1, "")) == "bbb"
    assert "util" not in sys.modules


def test_the_standard_library_goes_before_a_file_of_its_name(put: Put, load: Any) -> None:
    put("plugins/json.py", "raise RuntimeError('not this one')")
    put("plugins/work.py", "import json\nimport json.decoder\nfrom json import dumps\nassert dumps([]) == '[]'\n")
    _, reports = load()
    assert reports["plugins/work.py"].error is None


def test_a_file_does_not_find_itself(put: Put, load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put("lib/statsd_library.py", "CLIENT = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    put("plugins/statsd_library.py", "from statsd_library import CLIENT\n")
    _, reports = load()
    assert reports["plugins/statsd_library.py"].error is None
    sys.modules.pop("statsd_library")


def test_a_changed_file_is_read_again_by_the_next_manager(put: Put, load: Any) -> None:
    put("plugins/a.py", "from helper import N\n" + HANDLER.format(name="h", result=1))
    put("plugins/helper.py", "N = 1\n")
    load()
    put("plugins/a.py", "from helper import N\n" + HANDLER.format(name="h", result=2))
    helper = put("plugins/helper.py", "N = 2\n")
    manager, _ = load()
    assert manager.handlers["h"].function(Job(1, "h")) == 2
    assert not list(helper.parent.glob("__pycache__"))


def test_a_file_name_need_not_be_an_identifier(put: Put, load: Any) -> None:
    put("plugins/my-plugin.v2.py", HANDLER.format(name="h", result=1))
    manager, _ = load()
    assert list(manager.handlers) == ["h"]

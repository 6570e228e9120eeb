from __future__ import annotations

import builtins
import importlib
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


def test_a_name_added_to_the_builtins_later_is_seen_in_plugins(
    put: Put, load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("plugins/a.py", "from supervisor import handler\n@handler\ndef a(job):\n    return _('text')\n")
    manager, _ = load()
    monkeypatch.setattr(builtins, "_", str.upper, raising=False)
    assert manager.handlers["a"].function(Job(1, "a")) == "TEXT"


def test_every_way_to_import_finds_the_same_module_of_the_directory(put: Put, load: Any) -> None:
    for folder in "ab":
        put(f"{folder}/_helper.py", f"X = {folder!r}\n")
        put(f"{folder}/_package/__init__.py", "")
        put(f"{folder}/_package/part.py", f"X = {folder!r}\n")
        put(
            f"{folder}/work.py",
            f"""\
            import importlib
            from importlib import import_module
            from supervisor import handler
            import _helper, _package.part
            assert import_module("_helper") is importlib.import_module("_helper") is __import__("_helper") is _helper
            assert import_module("_package.part") is _package.part
            assert import_module("json").dumps is __import__("json").dumps
            assert import_module(".part", _package.__name__) is _package.part
            @handler("work-{folder}")
            def work(job):
                return import_module("_helper").X + import_module("_package.part").X
            """,
        )
    manager, reports = load("a", "b")
    assert [report.error for report in reports.values()] == [None, None]
    for folder in "ab":
        assert manager.handlers[f"work-{folder}"].function(Job(1, "")) == folder * 2
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("_helper")


def test_a_module_that_is_nowhere_is_missing_by_its_own_name(put: Put, load: Any) -> None:
    put("plugins/a.py", "import importlib\nimportlib.import_module('nowhere_at_all')\n")
    _, reports = load()
    assert reports["plugins/a.py"].error == "ModuleNotFoundError: No module named 'nowhere_at_all'"


def test_what_is_beside_the_configuration_comes_after_all_that_is_installed(put: Put, load: Any) -> None:
    put("json/__init__.py", "raise RuntimeError('not this one')")
    put("click/__init__.py", "raise RuntimeError('not this one')")
    put("shop_beside/__init__.py", "PRICE = 5\n")
    put(
        "plugins/a.py",
        "import json, click, shop_beside\nassert shop_beside.PRICE == 5 and click.command and json.dumps\n",
    )
    _, reports = load()
    assert reports["plugins/a.py"].error is None


def test_a_folder_into_which_any_user_can_put_a_module_is_not_imported_from(put: Put, load: Any) -> None:
    planted = put("planted.py")
    planted.parent.chmod(0o1777)
    put("plugins/a.py", "import planted\n")
    _, reports = load()
    reason = f"any user can put a module into {planted.parent}: use a folder of its own"
    expected = f"ModuleNotFoundError: No module named 'planted': {planted} is not imported, since {reason}"
    assert reports["plugins/a.py"].error == expected

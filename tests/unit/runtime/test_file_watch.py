from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from threading import Event
from typing import Any

import pytest

from supervisor.config.loading import load
from supervisor.runtime.file_watch import FileWatch, Watched, watched_by


def watched(folder: Path, plugins: str) -> Watched:
    config = folder / "supervisor.yaml"
    config.write_text(f"plugins: [{plugins}]")
    return watched_by(load(config, {}))


def write(file: Path, text: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path.resolve()


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("supervisor.yaml", True),
        ("plugins/mail.py", True),
        ("plugins/deep/er/helper.py", True),
        ("plugins", True),
        ("plugins/package", True),
        ("jobs.db", False),
        ("jobs.db-wal", False),
        ("module.py", True),
        ("package/deep/module.py", True),
        ("no_package/module.py", False),
        ("plugins/.#mail.py", False),
        ("plugins/.mail.py.swp", False),
        ("plugins/mail.py~", False),
        ("plugins/data.csv", False),
        ("plugins/__pycache__", False),
        ("plugins/.venv/lib/mail.py", False),
        ("plugins2/mail.py", False),
    ],
)
def test_changes_of_code_and_of_the_config_count(base: Path, path: str, counts: bool) -> None:
    for file in ("plugins/mail.py", "package/__init__.py", "no_package/module.py"):
        write(base / file)
    assert watched(base, "plugins").counts(str(base / path), is_modified=False) == counts


def test_a_change_inside_a_folder_is_none_of_the_folder(base: Path) -> None:
    write(base / "plugins/mail.py")
    assert not watched(base, "plugins").counts(str(base / "plugins/package"), is_modified=True)


def test_the_helpers_beside_a_plugin_file_count(base: Path) -> None:
    write(base / "jobs/mail.py")
    found = watched(base, "jobs/mail.py")
    assert not found.trees and {*found.folders} == {str(base), str(base / "jobs")}
    assert found.counts(str(base / "jobs/helper.py"), is_modified=True)


def test_the_file_behind_a_link_counts(base: Path) -> None:
    write(base / "elsewhere/mail.py")
    (base / "jobs").mkdir()
    (base / "jobs/mail.py").symlink_to(base / "elsewhere/mail.py")
    assert watched(base, "jobs/mail.py").counts(str(base / "elsewhere/mail.py"), is_modified=True)


def test_the_package_of_a_module_is_watched_but_not_imported(base: Path) -> None:
    write(base / "mycompany_jobs/__init__.py", "raise SystemExit")
    write(base / "mycompany_tasks.py", "raise SystemExit")
    found = watched(base, "mycompany_jobs.mail, mycompany_tasks, no_such_module, pytest.nothing")
    assert [*found.trees] == [str(base / "mycompany_jobs")]
    assert str(base / "mycompany_tasks.py") in found.files


def test_a_shared_folder_from_which_plugins_can_not_import_does_not_count(base: Path) -> None:
    base.chmod(0o1777)
    assert not watched(base, "plugins").counts(str(base / "module.py"), is_modified=True)


def test_a_folder_inside_a_watched_one_is_watched_once(base: Path) -> None:
    found = watched(base, ".")
    assert [*found.trees] == [str(base)] and str(base) not in found.folders


def test_a_folder_that_takes_the_place_of_another_is_a_difference(base: Path) -> None:
    write(base / "plugins/mail.py")
    before = watched(base, "plugins")
    assert watched(base, "plugins") == before
    (base / "plugins").rename(base / "old")
    write(base / "plugins/mail.py")
    assert watched(base, "plugins") != before


class Watches:
    """Takes the place of `watchfiles.watch`: a watch yields no change, and ends when it is renewed."""

    def __init__(self, error: OSError | None = None) -> None:
        self.error = error
        self.begun: Queue[tuple[str, ...]] = Queue()

    def __call__(self, *folders: str, stop_event: Event, **options: Any) -> Iterator[set[Any]]:
        if self.error is not None:
            raise self.error
        yield set()
        self.begun.put(folders)
        stop_event.wait()


def test_changes_between_two_watches_are_not_missed(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first watch begins before anything is read."""
    monkeypatch.setattr("watchfiles.watch", watches := Watches())
    changes: Queue[list[str]] = Queue()
    watched(base, "plugins")
    watch = FileWatch(load(base / "supervisor.yaml", {}), changes.put, pytest.fail)
    assert watches.begun.get(timeout=10) == (str(base),)
    assert changes.empty()
    write(base / "plugins/mail.py")
    watch.follow(load(base / "supervisor.yaml", {}))
    assert changes.get(timeout=10) == []
    watch.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "watch"]


def test_folders_that_can_not_be_watched_are_named(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchfiles.watch", Watches(OSError("OS file watch limit reached.")))
    errors: Queue[str] = Queue()
    watched(base, "plugins")
    watch = FileWatch(load(base / "supervisor.yaml", {}), pytest.fail, errors.put)
    assert errors.get(timeout=10) == f"can't watch {base}: OS file watch limit reached.; send HUP after a change"
    watch.close()

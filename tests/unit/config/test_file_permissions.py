"""Files that root refuses to run because others may change them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from supervisor import Client
from supervisor.config import file_permissions as trust
from supervisor.config.settings import PluginSettings, Settings, StoreSettings
from supervisor.errors import ConfigError

ALICE = 65_432  # nobody's number


class Disk:
    """Real files in `folder` that seem to belong to root and to be closed to others, except as `modes` and the like have it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modes: dict[Path, int] = {}
        self.owners: dict[Path, int] = {}
        self.groups: dict[Path, int] = {}

    def look(self, path: Path) -> os.stat_result:
        seen = list(os.lstat(path))
        mode = self.modes.get(path, 0o755 if path.is_dir() else 0o644)
        seen[stat.ST_MODE] = stat.S_IFMT(seen[stat.ST_MODE]) | mode
        seen[stat.ST_UID] = self.owners.get(path, 0)
        seen[stat.ST_GID] = self.groups.get(path, 0)
        return os.stat_result(seen)

    def write(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        return path

    def config(self, path: Path, **environ: str) -> list[str]:
        return trust.config_faults(path, environ, self.look)

    def plugins(self, *paths: str, allow: bool = False, **environ: str) -> list[str]:
        settings = Settings(
            plugins=PluginSettings(paths=paths or ("plugins",), allow_writable_by_others=allow), base=self.folder
        )
        return trust.plugin_faults(settings, environ, self.look)

    def store(self, allow: bool = False, **environ: str) -> list[str]:
        store = StoreSettings(url="sqlite:///data/jobs.db", allow_writable_by_others=allow)
        return trust.store_faults(Settings(store=store, base=self.folder), environ, self.look)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    disk = Disk(tmp_path.resolve() / "app")
    disk.write("plugins/mail.py")
    disk.write("supervisor.yaml")
    return disk


def test_files_that_only_root_can_change_are_trusted(disk: Disk) -> None:
    disk.modes[disk.folder / "plugins"] = 0o775  # group root: what a umask of 002 makes
    assert disk.config(disk.folder / "supervisor.yaml") == []
    assert disk.plugins() == []


@pytest.mark.parametrize("mode", [0o666, 0o646])
def test_a_config_that_everybody_may_write_is_refused(disk: Disk, mode: int) -> None:
    path = disk.folder / "supervisor.yaml"
    disk.modes[path] = mode
    assert disk.config(path) == [
        f"config: {path} (mode {mode:04o}) may be written by everybody, who can change what root runs: chmod go-w {path},"
        " or set SUPERVISOR_ALLOW_WRITABLE_BY_OTHERS=1 in the environment"
    ]


def test_a_plugin_directory_that_another_group_may_write_is_refused(disk: Disk) -> None:
    path = disk.folder / "plugins"
    disk.modes[path], disk.groups[path] = 0o775, 50
    assert disk.plugins() == [
        f"plugins: {path} (mode 0775) may be written by group 50, who can change what root runs: chmod go-w {path},"
        " or set plugins.allow_writable_by_others: true"
    ]


@pytest.mark.parametrize("name", ["plugins/mail.py", "plugins", "", ".."])
def test_a_folder_of_another_owner_above_the_plugins_is_refused(disk: Disk, name: str) -> None:
    path = (disk.folder / name).resolve()
    disk.owners[path] = ALICE
    (fault,) = disk.plugins()
    assert f"{path} belongs to user {ALICE}" in fault
    assert f"chown root {path}" in fault


def test_others_may_have_files_beside_the_folder_but_not_in_it(disk: Disk) -> None:
    """In a folder such as /tmp nobody can change the files of root, but anybody can add files."""
    disk.modes[disk.folder] = 0o1777
    assert disk.config(disk.folder / "supervisor.yaml") == []
    assert disk.plugins() == []
    disk.modes[disk.folder / "plugins"] = 0o1777
    assert len(disk.plugins()) == 1


def test_a_missing_directory_that_anybody_could_create_is_refused(disk: Disk) -> None:
    assert disk.plugins("later") == []
    disk.modes[disk.folder] = 0o1777
    (fault,) = disk.plugins("later")
    assert f"{disk.folder} (mode 1777)" in fault


def test_nobody_is_asked_to_close_a_folder_that_is_shared_on_purpose(disk: Disk) -> None:
    disk.modes[disk.folder] = 0o1777
    (fault,) = disk.plugins("later")
    assert "chmod" not in fault
    assert "keep what root runs in a folder of its own" in fault


@pytest.mark.parametrize("name", ["plugins/_helper.py", "plugins/pack/__init__.py", "plugins/pack/deep/data.txt"])
def test_files_beside_a_plugin_that_it_may_import_are_checked(disk: Disk, name: str) -> None:
    disk.write("plugins/pack/__init__.py")
    disk.modes[disk.write(name)] = 0o666
    (fault,) = disk.plugins()
    assert name in fault
    assert disk.plugins("plugins/mail.py") == [fault]


@pytest.mark.parametrize(
    "name", ["lib", "lib/deep", "lib/deep/code.py", "fast.so", "old.pyc", "lib/fast.cpython-311.so"]
)
def test_every_folder_below_the_plugins_and_all_code_in_it_is_checked(disk: Disk, name: str) -> None:
    for file in ("lib/deep/code.py", "lib/notes.txt", "fast.so", "old.pyc", "lib/fast.cpython-311.so"):
        disk.write(f"plugins/{file}")
    disk.modes[disk.folder / "plugins/lib/notes.txt"] = 0o666
    assert disk.plugins() == []
    disk.owners[disk.folder / "plugins" / name] = ALICE
    (fault,) = disk.plugins()
    assert f"plugins/{name} belongs to user {ALICE}" in fault
    assert disk.plugins("plugins/mail.py") == [fault]


def test_a_large_folder_of_another_user_is_not_looked_through_to_its_end(disk: Disk) -> None:
    for number in range(2 * trust.MAX_FOUND):
        disk.owners[disk.write(f"plugins/data/{number:03}.py")] = ALICE
    looked: list[Path] = []
    look = disk.look
    disk.look = lambda path: (looked.append(path), look(path))[1]  # type: ignore[method-assign]
    assert len(disk.plugins()) == trust.MAX_REPORTED + 1
    assert len({path for path in looked if path.parent.name == "data"}) < 2 * trust.MAX_FOUND


@pytest.mark.parametrize("name", ["", "data", "data/jobs.db", "data/jobs.db-wal", "data/jobs.db.notify"])
def test_a_database_that_others_can_change_is_refused(disk: Disk, name: str) -> None:
    disk.write("data/jobs.db")
    disk.write("data/jobs.db-wal")
    (disk.folder / "data/jobs.db.notify").mkdir()
    disk.modes[disk.write("data/jobs.db.copy")] = 0o666
    assert disk.store() == []
    path = disk.folder / name
    disk.owners[path] = ALICE
    assert disk.store() == [
        f"store: {path} belongs to user {ALICE}, who can change what root runs: chown root {path},"
        " or set store.allow_writable_by_others: true"
    ]
    assert disk.store(allow=True) == disk.store(SUPERVISOR_ALLOW_WRITABLE_BY_OTHERS="1") == []


def test_a_database_in_a_folder_where_others_can_put_a_log_beside_it_is_refused(disk: Disk) -> None:
    disk.write("data/jobs.db")
    disk.modes[disk.folder / "data"] = 0o1777
    (fault,) = disk.store()
    assert f"{disk.folder}/data (mode 1777) may be written by everybody" in fault


def test_the_folder_that_a_link_to_the_database_leads_to_is_checked(disk: Disk) -> None:
    disk.write("elsewhere/real.db")
    (disk.folder / "data").mkdir()
    (disk.folder / "data/jobs.db").symlink_to("../elsewhere/real.db")
    assert disk.store() == []
    disk.owners[disk.write("elsewhere/real.db-wal")] = ALICE
    assert "elsewhere/real.db-wal belongs to" in disk.store()[0]


@pytest.mark.parametrize("url", ["memory://", "postgresql://localhost/jobs"])
def test_a_store_without_files_is_not_checked(disk: Disk, url: str) -> None:
    disk.owners[disk.folder] = ALICE
    assert trust.store_faults(Settings(store=StoreSettings(url=url), base=disk.folder), {}, disk.look) == []


def test_a_folder_that_cannot_be_read_hides_no_other_file(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bool:
        if "closed" in self.parts:
            raise PermissionError(13, "Permission denied")
        return is_file(self)

    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", refuse)
    disk.write("plugins/closed/__init__.py")
    disk.modes[disk.write("plugins/zero.py")] = 0o666
    assert "zero.py" in disk.plugins()[0]
    assert disk.plugins("x" * 300, "~nosuchuser/x") == []


def test_files_that_no_plugin_imports_are_not_checked(disk: Disk) -> None:
    disk.modes[disk.write("plugins/notes.txt")] = 0o666
    disk.modes[disk.write("beside.py")] = 0o666
    assert disk.plugins() == []


def test_files_beside_a_package_are_checked(disk: Disk) -> None:
    disk.write("pack/__init__.py")
    disk.modes[disk.write("beside.py")] = 0o666
    assert "beside.py" in disk.plugins("pack")[0]


def test_links_and_their_targets_are_checked(disk: Disk) -> None:
    target = disk.write("elsewhere/real.py")
    link = disk.folder / "plugins/linked.py"
    link.symlink_to("../elsewhere/real.py")
    assert disk.plugins() == []
    disk.modes[target.parent] = 0o777
    assert f"{target.parent} (mode 0777)" in disk.plugins()[0]
    del disk.modes[target.parent]
    disk.owners[link] = ALICE
    assert f"chown -h root {link}" in disk.plugins()[0]


@pytest.mark.parametrize("name", ["elsewhere/pack", "elsewhere/pack/__init__.py", "elsewhere/pack/deep/code.py"])
def test_links_inside_a_package_are_followed(disk: Disk, name: str) -> None:
    disk.write("plugins/pack/__init__.py")
    disk.write("elsewhere/pack/__init__.py")
    disk.write("elsewhere/pack/deep/code.py")
    (disk.folder / "plugins/pack/inner").symlink_to("../../elsewhere/pack")
    (disk.folder / "elsewhere/pack/deep/round").symlink_to("..")
    assert disk.plugins() == []
    disk.owners[disk.folder / name] = ALICE
    assert f"{disk.folder / name} belongs to user {ALICE}" in disk.plugins()[0]


def test_as_many_links_are_followed_as_the_system_follows(disk: Disk) -> None:
    path = disk.folder / "supervisor.yaml"
    disk.modes[path] = 0o666
    for number in range(40):
        link = disk.folder / f"link{number}"
        link.symlink_to(path)
        path = link
    assert path.exists() and "supervisor.yaml (mode 0666)" in disk.config(path)[0]


def test_nobody_is_blamed_for_files_beside_a_plugin_that_is_missing(disk: Disk) -> None:
    disk.modes[disk.write("plugins/beside.py")] = 0o666
    assert disk.plugins("plugins/missing.py") == []


@pytest.mark.parametrize("target", ["loop.yaml", "/nowhere/at/all"])
def test_a_link_that_leads_nowhere_is_no_fault(disk: Disk, target: str) -> None:
    link = disk.folder / "loop.yaml"
    link.symlink_to(target)
    assert disk.config(link) == []


def test_many_faults_are_reported_in_few_lines(disk: Disk) -> None:
    for number in range(30):
        disk.modes[disk.write(f"plugins/p{number:02}.py")] = 0o666
    faults = disk.plugins()
    assert len(faults) == trust.MAX_REPORTED + 1
    assert faults[-1] == f"plugins: ... and {30 - trust.MAX_REPORTED} more"


def test_an_option_and_a_variable_switch_the_checks_off(disk: Disk) -> None:
    disk.modes[disk.folder] = 0o777
    config = disk.folder / "supervisor.yaml"
    assert disk.config(config)
    assert disk.plugins(allow=True) == []
    assert disk.config(config, SUPERVISOR_ALLOW_WRITABLE_BY_OTHERS="1") == []
    assert disk.plugins(SUPERVISOR_ALLOW_WRITABLE_BY_OTHERS="1") == []
    assert disk.plugins(SUPERVISOR_ALLOW_WRITABLE_BY_OTHERS="0") == disk.plugins() != []
    with pytest.raises(ConfigError, match="SUPERVISOR_ALLOW_WRITABLE_BY_OTHERS: expected 1 or 0"):
        disk.plugins(SUPERVISOR_ALLOW_WRITABLE_BY_OTHERS="yes")


def test_files_of_an_ordinary_user_are_not_checked(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: ALICE)
    disk.modes[disk.folder] = 0o777
    assert disk.config(disk.folder / "supervisor.yaml") == []
    assert disk.plugins() == []


def test_a_config_is_not_read_before_it_is_trusted(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    path = disk.write("supervisor.yaml")
    monkeypatch.setattr(trust, "config_faults", lambda path, environ: [f"config: {path}"])
    monkeypatch.delattr(trust, "load")
    with pytest.raises(ConfigError) as refused:
        trust.load_trusted(path, {})
    assert refused.value.errors == [f"config: {path}"]
    with pytest.raises(ConfigError) as found:
        trust.load_trusted(None, {"SUPERVISOR_CONFIG": str(path)})
    assert found.value.errors == [f"config: {path}"]


def test_a_client_imports_no_plugin_that_root_must_not_rely_on(disk: Disk) -> None:
    (disk.folder / "plugins").chmod(0o777)
    client = Client(Settings(store=StoreSettings(url="redis://host"), base=disk.folder))
    with pytest.raises(ConfigError, match=r"plugins: .*who can change what root runs"):
        client.enqueue("mail")


def test_root_imports_from_the_folder_of_the_config_only_if_others_can_change_no_code_there(disk: Disk) -> None:
    package = disk.write("shop/orders.py").parent
    disk.write("shop/data.csv")

    def is_refused(**environ: str) -> bool:
        return trust.code_of_others(disk.folder, environ, disk.look) is not None

    assert not is_refused()
    disk.modes[package / "data.csv"] = 0o666
    assert not is_refused(), "it is not code"
    for path in (disk.folder, package, package / "orders.py"):
        disk.owners[path] = ALICE
        found = trust.code_of_others(disk.folder, {}, disk.look)
        assert found and found.startswith(f"{path} belongs to user {ALICE}, who can change what root runs: chown root ")
        assert not is_refused(SUPERVISOR_ALLOW_WRITABLE_BY_OTHERS="1")
        del disk.owners[path]
    hidden = disk.write(".venv/lib/other.py")
    disk.owners[hidden] = ALICE
    assert not is_refused(), "no import can name its folder"
    disk.modes[package / "orders.py"] = 0o666
    assert is_refused()


def test_root_does_not_search_a_whole_disk_for_code_that_others_can_change(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = len([*trust._importable(disk.folder, named=True)])
    for limit, refused in ((looked_at, False), (looked_at - 1, True)):
        monkeypatch.setattr(trust, "MAX_LOOKED_AT", limit)
        assert (trust.code_of_others(disk.folder, {}, disk.look) is not None) is refused

"""Plugins import the packages beside the configuration, however and from wherever the command is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.command import Command
from tests.system.privileges import require_root

STARTS = {
    "the command": [str(Path(sys.executable).with_name("supervisor"))],
    "the module": [sys.executable, "-m", "supervisor"],
}
PLUGIN = """
    from supervisor import handler
    import shop.prices

    @handler
    def price(job):
        return shop.prices.APPLE

    @handler
    def elsewhere(job):
        import somewhere_else
"""


@pytest.mark.parametrize("worker", ["fork", "spawn"])
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS.keys())
def test_plugins_import_what_is_beside_the_configuration_and_nothing_from_the_current_directory(
    command: Command, tmp_path_factory: pytest.TempPathFactory, start: list[str], worker: str
) -> None:
    command.write(
        config=f"workers: {{count: 1, start: {worker}}}\nretry: {{max_retries: 0}}\n", plugins={"p.py": PLUGIN}
    )
    shop = command.folder / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "prices.py").write_text("APPLE = 5\n")
    current = tmp_path_factory.mktemp("current")
    (current / "somewhere_else.py").touch()
    ids = [command.enqueue("price"), command.enqueue("elsewhere")]
    ended = subprocess.run(
        [*start, "run", "--drain", "-c", str(command.config)],
        cwd=current,
        env=command.env,
        capture_output=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    price, elsewhere = map(command.job, ids)
    assert price["result"] == 5
    (error,) = elsewhere["errors"]
    assert (error["type"], error["message"]) == ("ModuleNotFoundError", "No module named 'somewhere_else'")
    assert "importer.py" not in error["traceback"], "the traceback shows the code of the job alone"


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS.keys())
def test_hooks_in_the_supervisor_and_checks_import_the_same(command: Command, tmp_path: Path, start: list[str]) -> None:
    (command.folder / "shop.py").write_text("NAME = 'shop'\n")
    plugin = """
        import click, shop
        from supervisor import hookimpl
        @hookimpl
        def supervisor_commands(group):
            group.command("shop")(lambda: click.echo(shop.NAME))
    """
    command.write(plugins={"p.py": plugin})
    for arguments, shown in ((["check"], "p.py"), (["shop"], "shop")):
        ended = subprocess.run(
            [*start, *arguments], cwd="/", env={**command.env, "SUPERVISOR_CONFIG": str(command.config)}, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
        assert (ended.returncode, shown in ended.stdout) == (0, True), ended.stderr


def test_a_module_beside_the_configuration_that_root_must_not_import_is_named_with_the_reason(command: Command) -> None:
    require_root("a file of another user")
    command.write(plugins={"p.py": "import shop.prices\n"})
    shop = command.folder / "shop"
    shop.mkdir()
    (shop / "prices.py").touch()
    os.chown(shop / "prices.py", 65534, -1)
    ended = command.call("check")
    assert ended.code == 2
    error = next(line for line in ended.err.splitlines() if line.startswith("Error: "))
    assert f"No module named 'shop': {shop} is not imported, since {shop}/prices.py belongs to user 65534" in error
    assert f"chown root {shop}/prices.py, or set SUPERVISOR_ALLOW_WRITABLE_BY_OTHERS=1 in the environment" in error
    os.chown(shop / "prices.py", 0, -1)
    assert "shop" not in command.call("check").err

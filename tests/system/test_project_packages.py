"""Plugins import the packages beside the configuration, however and from wherever the command is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.command import Command

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

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.cli.app import root
from tests.unit.cli.conftest import Call, write


def test_plugins_shows_handlers_hooks_sinks_and_errors(call: Call, scanned: None) -> None:
    write("plugins/a.py", "raise ValueError('no')\n")
    write(
        "plugins/b.py",
        "from supervisor import handler, hookimpl\n@handler(timeout='3s')\ndef mail(job): ...\n"
        "@hookimpl\ndef supervisor_sinks(): return {'pager': object}\n",
    )
    shown = call("plugins").out
    assert "error  " in shown
    assert "a.py:1: ValueError: no" in shown
    assert "handler mail  line 2: timeout 3s" in shown
    assert "supervisor_sinks" in shown
    assert "pager" in shown
    reports = [json.loads(line) for line in call("plugins", "--json").lines]
    assert [(report["line"], report["sinks"]) for report in reports] == [(1, []), (None, ["pager"])]


def test_plugins_in_files_with_names_that_are_not_unicode_are_shown(call: Call, scanned: None, tmp_path: Path) -> None:
    write("plugins/\udcff.py", "from supervisor import handler\n@handler\ndef mail(job): ...\n")
    answer = call("plugins", "--json")
    assert answer.code == 0
    assert answer.json["source"] == answer.json["handlers"][0]["file"] == f"{tmp_path}/plugins/\\udcff.py"
    assert answer.json["source"] in call("plugins").out
    assert call("check").code == 0


@pytest.mark.parametrize("arguments", [["plugins"], ["plugins", "--json"], ["check"]], ids=" ".join)
def test_secrets_in_errors_of_a_plugin_are_masked(
    call: Call, scanned: None, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("TOKEN", "hunter2hunter2")
    write("supervisor.yaml", "dlq: {sinks: [{type: http, url: 'http://here', token: '${TOKEN}'}]}\n")
    write("plugins/bad.py", "import os\n\nraise ValueError('no ' + os.environ['TOKEN'])\n")
    answer = call(*arguments)
    assert (answer.out + answer.err).count("ValueError: no ***") == 2
    assert "hunter2" not in answer.out + answer.err


def test_plugins_add_commands(call: Call, scanned: None) -> None:
    write(
        "plugins/extra.py",
        "import click\nfrom supervisor import hookimpl\n@hookimpl\ndef supervisor_commands(group):\n"
        "    @group.command()\n    def greet():\n        click.echo('hello')\n",
    )
    write("plugins/broken.py", "from supervisor import hookimpl\n@hookimpl\ndef supervisor_commands(group): 1 / 0\n")
    root.commands.pop("greet", None)
    answer = call("greet")
    root.commands.pop("greet", None)
    assert (answer.code, answer.out) == (0, "hello\n")
    assert len(answer.err.splitlines()) == 1
    assert "broken.py: supervisor_commands: ZeroDivisionError" in answer.err

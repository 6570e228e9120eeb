"""Root's trust, files of the owner alone, secrets of the config, descriptors and forged lines, on the real command."""

from __future__ import annotations

import os
import signal

import pytest

from tests.system.command import Command

CANARY = "c4n4ry-in-the-mine"

# --- what root runs


def test_root_runs_nothing_that_others_may_change(command: Command) -> None:
    """For an ordinary user the same folder is no risk."""
    command.write(plugins={"mail.py": "from supervisor import handler\n@handler\ndef mail(job): ..."})
    plugins = command.folder / "plugins"
    plugins.chmod(0o777)
    refused = f"{plugins} (mode 0777) may be written by everybody"
    root = os.geteuid() == 0
    for arguments in (("check",), ("run", "--drain"), ("plugins",)):
        ended = command.call(*arguments)
        assert (ended.code, refused in ended.err) == ((2, True) if root else (0, False)), arguments
    command.config.chmod(0o666)
    ended = command.call("check")
    assert (f"{command.config} (mode 0666) may be written by everybody" in ended.err) == root
    command.env["SUPERVISOR_ALLOW_WRITABLE_BY_OTHERS"] = "1"
    assert command.call("check").code == 0


def test_a_reload_is_refused_if_others_may_change_what_root_would_read(command: Command) -> None:
    command.write(plugins={"mail.py": "from supervisor import handler\n@handler\ndef mail(job): ..."})
    run = command.run()
    run.says("supervisor started")
    (command.folder / "plugins").chmod(0o777)
    run.signal(signal.SIGHUP)
    run.says("config refused, the old one stays" if os.geteuid() == 0 else "config read again")
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


# --- secrets

SPITEFUL = """
    from supervisor import hookimpl
    from supervisor.stores.base import StoreError

    class Spiteful:
        def __init__(self, token, fails=False):
            self.token = token
            if fails:
                raise ValueError(f"bad token {token!r}")

        def publish(self, letters):
            raise ConnectionError(f"POST /?token={self.token} with {self.__dict__}")

        def close(self):
            pass

    def open_store(settings, *, create, base):
        wrong = StoreError if settings.options.get("how") == "error" else RuntimeError
        raise wrong(f"can't open {settings.url} with {settings.options}")

    @hookimpl
    def supervisor_sinks():
        return {"spiteful": Spiteful}

    @hookimpl
    def supervisor_stores():
        return {"spiteful": open_store}
"""


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (["check"], "store: '${CANARY}'"),
        (["check"], "store: {url: 'spiteful://me:${CANARY}@host/x?y=${CANARY}', how: error, token: '${CANARY}'}"),
        (["check"], "store: {type: sqlite, token: '${CANARY}'}\nlease: {ttl: '${CANARY}'}\n'${CANARY}': 1"),
        (["check"], "dlq: {sinks: [{type: spiteful, tokens: '${CANARY}'}, {type: wrong, token: '${CANARY}'}]}"),
        (["run"], "store: {url: 'spiteful://me:${CANARY}@host/', how: error}"),
        (["run"], "store: {type: spiteful, token: '${CANARY}'}"),
        (["run"], "dlq: {sinks: [{type: spiteful, token: '${CANARY}', fails: true}]}"),
    ],
)
def test_errors_of_each_kind_keep_secrets(command: Command, arguments: list[str], config: str) -> None:
    command.env["CANARY"] = CANARY
    command.write(config=config, plugins={"spiteful.py": SPITEFUL})
    ended = command.call(*arguments)
    assert ended.code
    assert ended.err
    assert CANARY not in ended.out + ended.err

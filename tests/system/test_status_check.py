"""`status --check` of the real command, beside a real supervisor and before a server that never answers."""

from __future__ import annotations

import signal
import socket
import time

from tests.system.command import Command, wait_for

GOOD = {"good.py": "from supervisor import handler\n@handler\ndef mail(job): ...\n"}
BROKEN = {"broken.py": "import nothing_like_this"}


def test_the_exit_code_follows_what_happens_to_a_supervisor(command: Command) -> None:
    assert command.call("status", "--check").code == 1
    command.write(plugins=GOOD)
    run = command.run()
    run.logged("supervisor started")
    wait_for(lambda: command.call("status", "--check", "--here").code == 0)
    command.write(plugins=BROKEN)
    run.signal(signal.SIGHUP)
    wait_for(lambda: command.call("status", "--check").code == 1)
    checked = command.call("status", "--check", "--here")
    assert "broken.py:1 did not load" in checked.out
    (command.folder / "plugins" / "broken.py").unlink()
    run.signal(signal.SIGHUP)
    wait_for(lambda: command.call("status", "--check").code == 0)
    run.kill()
    assert "no supervisor is running" in command.call("status", "--check").out
    command.write(config="workers: {count: 1\n")
    assert command.call("status", "--check").code == 2


def test_a_server_that_takes_connections_and_never_answers_is_not_waited_for(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command.write(config=f"store: postgresql://postgres@127.0.0.1:{port}/postgres\n")
        began = time.monotonic()
        checked = command.call("status", "--check", timeout=60)
        assert checked.code == 1
        assert "has not answered for 5s" in checked.out, checked
        assert time.monotonic() - began < 30

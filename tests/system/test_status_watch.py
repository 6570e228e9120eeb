"""`status --watch` of the real command, on a terminal and in a pipe."""

from __future__ import annotations

import json
import signal
import subprocess

from tests.system.command import Command, wait_for
from tests.system.in_terminal import InTerminal


def test_on_a_terminal_it_repeats_in_place_and_ends_cleanly_with_ctrl_c(command: Command) -> None:
    with InTerminal(command, "status", "--watch", "0.1", columns=60) as terminal:
        terminal.shown("the store is unavailable: no store yet")
        command.enqueue("mail", None, "--queue", "post")
        terminal.shown("no supervisor is running")
        command.enqueue("mail", None, "--queue", "news")
        terminal.shown("news")
        away = command.folder / "elsewhere.db"
        (command.folder / "jobs.db").rename(away)
        terminal.shown("as it was")
        assert "the store is unavailable: " in terminal.text
        away.rename(command.folder / "jobs.db")
        terminal.shown("post", since=len(terminal.text))
        terminal.type("\x03")
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.text
        assert terminal.modes == terminal.modes_before
        assert terminal.written.count(b"\x1b[H") > 3
        assert b"\x1b[?1049h" not in terminal.written, "no other screen, no hidden cursor: nothing is to be restored"


def test_in_a_pipe_it_prints_one_status_after_the_other_as_plain_text(command: Command) -> None:
    command.enqueue("mail")
    for arguments in ((), ("--json",)):
        watching = subprocess.Popen(
            command.arguments("status", "--watch", "0.1", *arguments), cwd=command.folder, env=command.env,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert watching.stdout
        lines = [watching.stdout.readline() for _ in range(12 if not arguments else 2)]
        assert not any("\x1b" in line for line in lines)
        if arguments:
            assert [json.loads(line)["problems"][0]["kind"] for line in lines] == ["no_supervisor"] * 2
        else:
            assert sum(line.startswith("--- 2") for line in lines) > 1
        watching.send_signal(signal.SIGINT)
        assert watching.wait(10) == 0
        watching.stdout.close()


def test_it_ends_when_nobody_reads_it(command: Command) -> None:
    command.enqueue("mail")
    watching = subprocess.Popen(
        command.arguments("status", "--watch", "0.1"), cwd=command.folder, env=command.env, stdout=subprocess.PIPE
    )
    assert watching.stdout
    watching.stdout.readline()
    watching.stdout.close()
    assert wait_for(lambda: watching.poll() is not None and watching.returncode == 0)

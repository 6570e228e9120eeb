"""A system that refuses what a supervisor needs: the missing call is named in one line, before anything has started."""

from __future__ import annotations

import platform
import sys

import pytest

from tests.system.command import Command
from tests.system.privileges import require_root

# Runs a command under a seccomp filter that answers the calls of the given numbers with EPERM, as old profiles of containers do.
FILTER = """
import ctypes, os, struct, sys
LOAD, IF_EQUAL, RETURN, REFUSE, ALLOW = 0x20, 0x15, 0x06, 0x50001, 0x7FFF0000
NO_NEW_PRIVS, SECCOMP, FILTER = 38, 22, 2
steps = [struct.pack("HBBI", LOAD, 0, 0, 0)]
for number in map(int, sys.argv[1].split(",")):
    steps += [struct.pack("HBBI", IF_EQUAL, 0, 1, number), struct.pack("HBBI", RETURN, 0, 0, REFUSE)]
steps.append(struct.pack("HBBI", RETURN, 0, 0, ALLOW))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]
libc, program = ctypes.CDLL(None), Program(len(steps), b"".join(steps))
assert libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(SECCOMP, FILTER, ctypes.byref(program)) == 0
os.execvp(sys.argv[2], sys.argv[2:])
"""
PRCTL = {"x86_64": 157, "aarch64": 167}.get(platform.machine())
PIDFD_SEND_SIGNAL, PIDFD_OPEN = 424, 434
COMMANDS = ["run", "check", "plugins"]


def without(*calls: int | None) -> list[str]:
    if None in calls:
        pytest.skip("the numbers of the calls are known for other machines only")
    return [sys.executable, "-c", FILTER, ",".join(map(str, calls))]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("calls", "named"),
    [
        ([PRCTL], "prctl(PR_SET_CHILD_SUBREAPER) (Operation not permitted)"),
        ([PIDFD_OPEN], "pidfd_open (Operation not permitted)"),
        (
            [PIDFD_OPEN, PIDFD_SEND_SIGNAL],
            "pidfd_open (Operation not permitted), pidfd_send_signal (Operation not permitted)",
        ),
    ],
)
def test_refused_calls_are_named_and_nothing_starts(
    command: Command, calls: list[int | None], named: str, name: str
) -> None:
    ended = command.call(name, under=without(*calls))
    assert ended.code == 1
    assert ended.err.startswith(f"Error: this system refuses what a supervisor needs: {named}; expected Linux 5.3")
    assert ended.err.count("\n") == 1
    assert not (command.folder / "jobs.db").exists()


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    "under",
    [
        ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"],
        ["unshare", "--pid", "--fork"],
    ],
    ids=["no /proc", "/proc of another pid namespace"],
)
def test_a_proc_file_system_that_does_not_show_the_supervisor_is_named(
    command: Command, under: list[str], name: str
) -> None:
    require_root("a namespace")
    ended = command.call(name, under=under)
    assert ended.code == 1
    assert ended.err.startswith("Error: /proc does not show this process") and ended.err.count("\n") == 1
    assert not (command.folder / "jobs.db").exists()

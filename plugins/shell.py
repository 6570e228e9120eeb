"""Handler `shell`: {"argv": ["convert", "a.png", "a.jpg"]} -> {"exit_code": 0, "stdout": "..."}.

The program is started directly, never through a shell, so nothing in a payload is ever read as a command. It stays in the
worker's process group, so a timeout kills it too. For a pipeline, write a script and name it in `argv`. The job ends with the
program: what other programs, which it has left in the background, print later is not read.
"""

from __future__ import annotations

import os
import signal
import subprocess
from select import POLLIN, poll
from typing import Any

from supervisor import Job, Reject, handler

TAIL = 16_000
CHUNK = 1 << 20  # bytes; no pipe holds more


class CommandFailed(Exception):
    """Raised if the exit status of the program is not 0; the message has the tail of its standard error."""


@handler
def shell(job: Job) -> dict[str, Any]:
    """Run the program. Optional: `env` (added to the worker's), `cwd`, `input` (text for standard input), `reject_codes` (exit
    statuses that no retry can change). The result has the last 16 kB of its output."""
    task = job.payload if isinstance(job.payload, dict) else {}
    argv, env, codes = task.get("argv"), task.get("env", {}), task.get("reject_codes", [])
    if not isinstance(argv, list) or not argv or not _texts(argv):
        raise Reject("argv: expected a list of texts, the program first")
    if not isinstance(env, dict) or not _texts(env.values()) or not _names(env):
        raise Reject("env: expected texts by name")
    if not isinstance(codes, list):
        raise Reject("reject_codes: expected a list of exit codes")
    for key in ("cwd", "input"):
        if not isinstance(task.get(key, ""), str):
            raise Reject(f"{key}: expected text")
    code, stdout, stderr = _run(argv, {**os.environ, **env}, task.get("cwd"), task.get("input", "").encode())
    if code == 0:
        return {"exit_code": 0, "stdout": stdout}
    names = {int(known): known.name for known in signal.Signals}  # most of the real-time ones have none
    how = f"exit code {code}" if code > 0 else f"killed by {names.get(-code, f'signal {-code}')}"
    message = f"{argv[0]}: {how}: {stderr.strip()}"
    raise Reject(message) if code in codes else CommandFailed(message)


def _run(argv: list[str], env: dict[str, str], cwd: str | None, text: bytes) -> tuple[int, str, str]:
    with open(os.memfd_create("input"), "w+b", buffering=0) as stdin:  # unlike a pipe, it never waits for a reader
        stdin.write(text)
        stdin.seek(0)
        with subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout and process.stderr
            stdout, stderr = _read(process.pid, process.stdout.fileno(), process.stderr.fileno())
            return process.wait(), stdout, stderr


def _read(pid: int, *pipes: int) -> list[str]:
    """Return the tail of each pipe, as far as it was written when the process exited: others may hold it open for longer."""
    tails = dict.fromkeys(pipes, b"")
    exited = os.pidfd_open(pid)
    try:
        waiting = poll()
        for fd in (exited, *pipes):
            waiting.register(fd, POLLIN)
        ready: set[int] = set()
        while exited not in ready:
            ready = {fd for fd, _ in waiting.poll()}
            # After the exit each pipe is read once more: a read takes all that a pipe holds.
            for pipe in pipes if exited in ready else ready:
                os.set_blocking(pipe, False)
                try:
                    data = os.read(pipe, CHUNK)
                except BlockingIOError:
                    continue
                tails[pipe] = (tails[pipe] + data)[-TAIL:]
                if not data and exited not in ready:
                    waiting.unregister(pipe)
    finally:
        os.close(exited)
    return [tail.decode(errors="replace") for tail in tails.values()]


def _names(env: dict[str, str]) -> bool:
    return _texts(env) and all(name and "=" not in name for name in env)


def _texts(values: Any) -> bool:
    return all(isinstance(value, str) and "\x00" not in value for value in values)

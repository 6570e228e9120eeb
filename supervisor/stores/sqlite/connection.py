"""One connection to a SQLite store: opening, transactions, errors, counts, and a write-ahead log that stays bounded."""

from __future__ import annotations

import errno
import json
import logging
import os
import sqlite3
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from supervisor.errors import RowRefused, StoreBroken, StoreError, StoreUnavailable
from supervisor.stores.sqlite.schema import APPLICATION_ID, MIGRATIONS, VERSION
from supervisor.stores.sqlite.write_lock import FairWriteLock, beside

OLDEST_SQLITE = (3, 35, 0)
WAL_LIMIT = 64 * 1024 * 1024
_BUSY = 250
_TURN = 1.0
_OPENING = 5.0
_LOOK_AT_WAL = 1.0
_WARN_AGAIN = 60.0

_UNAVAILABLE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOMEM,
    }
)
_DENIED = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})  # for want of a right, or otherwise
_REFUSED = frozenset({sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE})

_log = logging.getLogger(__name__)


class Database:
    """Used from one thread at a time, in the process that opened it.

    Every row comes out, and every batch goes in, as one JSON text: SQLite hands the GIL back at each row it steps to, and a
    busy loop thread may keep it for milliseconds each time.
    """

    def __init__(
        self, path: Path, *, create: bool = False, synchronous: str = "full", clock: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(os.path.realpath(path))  # by whatever link it was found, its locks and bells are the same
        self._synchronous, self._clock, self._process = synchronous, clock, os.getpid()
        self._deltas: Counter[tuple[int, str, int]] = Counter()
        self._after_commit: list[Callable[[], None]] = []
        self._open_transaction = self._broken = False
        self._looked_at_wal = time.monotonic()
        self._warned = float("-inf")
        _prepare_file(self.path, create)
        self._fair_write_lock = FairWriteLock(self.path, _TURN)
        with self._translated():
            self._connection = self._connect()
        try:
            self._bring_up()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        self._check_process()
        self._connection.close()
        self._fair_write_lock.close()

    def now(self) -> int:
        """Microseconds since the epoch."""
        return int(self._clock() * 1_000_000)

    def clock(self) -> float:
        return self.now() / 1_000_000

    # transactions

    @contextmanager
    def transaction(self, *, single: bool = False) -> Iterator[None]:
        self._check_process()
        if self._open_transaction:
            with self._joined():
                yield
            return
        with self._translated(), self._fair_write_lock:
            self._execute("begin immediate")
            self._open_transaction = True
            try:
                yield
                self._commit()
            except BaseException:
                self._roll_back()
                raise
            finally:
                self._open_transaction = self._broken = False
        self._do_what_waited()
        self._keep_wal_bounded()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Several reads of one moment."""
        self._check_process()
        if self._connection.in_transaction:
            yield
            return
        with self._translated():
            self._execute("begin")
            try:
                yield
            finally:
                self._execute("commit")

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """All or nothing: what failed half way must not be committed with the rest, even if the caller goes on."""
        try:
            yield
        except BaseException:
            self._broken = True
            raise

    def _commit(self) -> None:
        if self._broken:
            raise StoreError(f"{self.path}: a write inside this transaction failed, so none of it is kept")
        self.write_counts()
        self._execute("commit")

    def _roll_back(self) -> None:
        self._deltas.clear()
        self._after_commit.clear()
        self.forget()
        with suppress(sqlite3.Error):
            self._execute("rollback")

    def forget(self) -> None:
        """Drop what was remembered of rows: a rollback may have taken them back."""

    def after_commit(self, act: Callable[[], None]) -> None:
        """Do it once this transaction is durable; not at all if it is rolled back."""
        self._after_commit.append(act)

    def _do_what_waited(self) -> None:
        acts, self._after_commit = self._after_commit, []
        for act in acts:
            act()

    # statements

    def _execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._connection.execute(sql, parameters)

    def run(self, sql: str, *parameters: Any) -> int:
        """Rows changed."""
        try:
            return self._execute(sql, parameters).rowcount
        except (UnicodeError, OverflowError) as error:
            raise RowRefused(f"a row can't be stored: {error}") from None

    def value(self, sql: str, *parameters: Any) -> Any:
        row = self._execute(sql, parameters).fetchone()
        return None if row is None else row[0]

    def rows(self, columns: str, source: str, *parameters: Any) -> list[list[Any]]:
        """`select columns from source`, in the order of the source."""
        try:
            data = self.value(f"select json_group_array(json_array({columns})) from {source}", *parameters)
        except sqlite3.DataError:  # more than SQLite can hold in one value
            cursor = self._execute(f"select json_array({columns}) from {source}", parameters)
            return [_loads(row[0]) for row in cursor]
        rows: list[list[Any]] = _loads(data)
        return rows

    def ask(self, sql: str, *parameters: Any) -> Any:
        """The value of the one JSON text that it gives."""
        return _loads(self.value(sql, *parameters))

    def column(self, column: str, source: str, *parameters: Any) -> list[Any]:
        values: list[Any] = _loads(self.value(f"select json_group_array({column}) from {source}", *parameters))
        return values

    # counts

    def count(self, state: int, queue: str, tier: int, n: int = 1) -> None:
        self._deltas[state, queue, tier] += n

    def write_counts(self, state: int | None = None) -> None:
        """Called before every commit, and before the counts are read: if only those of `state` are, only if it changes them."""
        if state is not None and not any(n for key, n in self._deltas.items() if key[0] == state):
            return
        deltas = [(*key, n) for key, n in self._deltas.items() if n]
        self._deltas.clear()
        if deltas:
            self.run(
                """insert into counts(state, queue, tier, n)
                  select json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
                    json_extract(value, '$[3]') from json_each(?) where true
                  on conflict(state, queue, tier) do update set n = n + excluded.n""",
                packed(deltas),
            )

    # opening

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=_BUSY / 1000, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        connection.text_factory = bytes
        return connection

    def _bring_up(self) -> None:
        deadline = time.monotonic() + _OPENING
        while True:
            try:
                self._set_up()
                return
            except sqlite3.Error as error:
                if _code(error) != sqlite3.SQLITE_BUSY:
                    raise self._refused(error) from error
                if time.monotonic() > deadline:
                    raise StoreUnavailable(f"{self.path}: {error}") from error

    def _set_up(self) -> None:
        self._execute("begin")  # what it finds is of one moment: somebody else may be making this store
        try:
            version = self._known_version()
        finally:
            with suppress(sqlite3.Error):
                self._execute("rollback")
        self._execute("pragma journal_mode = wal")
        self._execute(f"pragma synchronous = {self._synchronous}")
        self._execute(f"pragma journal_size_limit = {WAL_LIMIT}")
        if version < VERSION:
            self._migrate()
        self._execute("pragma temp_store = memory")  # or what a savepoint may have to undo goes through files in /tmp

    def _known_version(self) -> int:
        version: int = self.value("pragma user_version")
        ours = self.value("pragma application_id") == APPLICATION_ID
        if not ours and (version or self.value("select count(*) from sqlite_master")):
            raise StoreError(f"{self.path}: a SQLite database of another program; expected a job store or a new file")
        if version > VERSION:
            raise StoreError(
                f"{self.path}: schema version {version} is of a newer job-supervisor; this one expects at most {VERSION}"
            )
        return version

    def _migrate(self) -> None:
        self._execute("begin immediate")
        try:
            for version in range(self._known_version(), VERSION):
                for statement in MIGRATIONS[version]:
                    self._execute(statement)
            self._execute(f"pragma application_id = {APPLICATION_ID}")
            self._execute(f"pragma user_version = {VERSION}")
            self._execute("commit")
        except BaseException:
            with suppress(sqlite3.Error):
                self._execute("rollback")
            raise

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(
                f"{self.path}: opened by process {self._process}, used in its child {os.getpid()}; open a store there"
            )

    # errors

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._refused(error) from error

    def _refused(self, error: sqlite3.Error) -> StoreError:
        code = _code(error)
        if code in _DENIED and (denied := _denied(self.path)):
            return StoreBroken(f"{denied}: {os.strerror(errno.EACCES)}; expected one that this user may read and write")
        if code in _UNAVAILABLE:
            return StoreUnavailable(f"{self.path}: {error}")
        if code in _REFUSED or isinstance(error, sqlite3.DataError | sqlite3.IntegrityError):
            return RowRefused(f"{self.path}: {error}")
        return StoreBroken(f"{self.path}: {error}")

    # the write-ahead log

    def _keep_wal_bounded(self) -> None:
        """SQLite's own checkpoints reuse the log but can't while somebody reads an old snapshot; afterwards, shorten it."""
        if time.monotonic() - self._looked_at_wal < _LOOK_AT_WAL:
            return
        self._looked_at_wal = time.monotonic()
        with suppress(OSError, sqlite3.Error):
            if beside(self.path, "-wal").stat().st_size > WAL_LIMIT:
                self._shorten_wal()

    def _shorten_wal(self) -> None:
        self._execute("pragma busy_timeout = 0")
        try:
            busy = self.value("pragma wal_checkpoint(truncate)")
        finally:
            self._execute(f"pragma busy_timeout = {_BUSY}")
        if busy and time.monotonic() - self._warned > _WARN_AGAIN:
            self._warned = time.monotonic()
            _log.warning("%s-wal is over %d MB: another program keeps reading an old state", self.path, WAL_LIMIT >> 20)


def packed(batch: Any) -> str:
    """A batch as the one JSON text that a statement takes. Raises RowRefused for what JSON or SQLite can't hold."""
    try:
        return orjson.dumps(batch, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError) as error:
        raise RowRefused(f"a row can't be stored: {error}") from None


def _prepare_file(path: Path, create: bool) -> None:
    """The file exists afterwards; a new one belongs to its owner alone, and SQLite gives its log the same rights."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(
            f"SQLite {sqlite3.sqlite_version} is too old; expected {'.'.join(map(str, OLDEST_SQLITE))} or newer"
        )
    if _is_there(path):
        return
    if not create:
        raise StoreError(f"{path}: no such database")
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"{path}: can't be created: {error.strerror}") from error


def _is_there(path: Path) -> bool:
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            beside(path, "-journal").lstat()  # the longest name that SQLite gives a file
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreBroken(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise StoreBroken(f"{path}: expected a file, not {'a folder' if stat.S_ISDIR(mode) else 'a device or pipe'}")
    return True


def _denied(path: Path) -> Path | None:
    """What this user may not use of the files that SQLite opens and the folder that it makes them in. Asked without opening:
    to close a database file gives up every lock that this process has on it."""
    files = (path, beside(path, "-wal"), beside(path, "-shm"))
    for file in files:
        if os.path.lexists(file) and not os.access(file, os.R_OK | os.W_OK, effective_ids=True):
            return file
    folder = path.parent
    return None if os.access(folder, os.W_OK | os.X_OK, effective_ids=True) else folder


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _loads(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:  # bytes that aren't UTF-8, put there by somebody else
        return _escaped(json.loads(data.decode("utf-8", "surrogateescape")))


def _escaped(value: Any) -> Any:
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return value

"""One connection to a SQLite store: transactions, statements, counts, and the length of the write-ahead log."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import orjson

from supervisor.errors import RowRefused, StoreError
from supervisor.stores.sqlite.database_file import FileIdentity, beside, prepare_file, store_error
from supervisor.stores.sqlite.write_lock import FairWriteLock

BUSY_MILLISECONDS = 250
"""The time that SQLite itself waits for a lock."""
WARN_AGAIN_SECONDS = 60.0

ADD_COUNTS = """
  insert into counts(state, queue, tier, n)
  select json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]')
  from json_each(?) where true
  on conflict(state, queue, tier) do update set n = n + excluded.n"""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SqliteLimits:
    """Limits that tests set lower.

    `claim_characters`: the texts of one claim; while they are read they take several times as much memory.
    `wal_bytes`: the size of the write-ahead log, which is checked every `wal_seconds`.
    `write_seconds`: the longest wait for other writers."""

    claim_characters: int = 16_000_000
    wal_bytes: int = 64 * 1024 * 1024
    wal_seconds: float = 1.0
    write_seconds: float = 1.0


class Select:
    """A select statement that returns its rows as one JSON text.

    SQLite releases the GIL at each row that it steps to, and the thread of the event loop may then keep it for milliseconds.
    """

    def __init__(self, columns: str, rest: str) -> None:
        self.as_one_text = f"select json_group_array(json_array({columns})) {rest}"
        self.as_text_each = f"select json_array({columns}) {rest}"


class _Transaction(Enum):
    NONE = "none"
    OPEN = "open"
    FAILED = "failed"
    """A write inside failed: it must not be committed with the rest, even if the caller goes on."""


_NONE, _OPEN, _FAILED = _Transaction


class Connection:
    """A connection for one thread at a time, in the process that opened it. `clock` returns seconds since the epoch."""

    def __init__(self, path: Path, *, create: bool, clock: Callable[[], float], limits: SqliteLimits) -> None:
        self.path = Path(os.path.realpath(path))  # so that every link to a file leads to the same locks
        self.limits, self._clock, self._process = limits, clock, os.getpid()
        self._transaction: _Transaction = _NONE
        self._on_rollback: list[Callable[[], None]] = []
        self._after_commit: list[Callable[[], None]] = []
        prepare_file(self.path, create)
        self._write_lock = FairWriteLock(self.path, limits.write_seconds)
        with self._translated():
            self._sqlite = sqlite3.connect(
                self.path,
                timeout=BUSY_MILLISECONDS / 1000,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
            self._file = FileIdentity(self.path)
        self._sqlite.text_factory = bytes
        self._log = WriteAheadLog(self._file, self.path, self._sqlite, limits)
        self.counts = Counts(self)

    def close(self) -> None:
        self._check_process()
        self._sqlite.close()
        self._write_lock.close()

    def now(self) -> int:
        """Microseconds since the epoch."""
        return int(self._clock() * 1_000_000)

    # --- transactions

    @contextmanager
    def transaction(self, *, single: bool = False, brief: bool = False) -> Iterator[None]:
        self._check_process()
        if self._transaction is not _NONE:
            try:
                yield
            except BaseException:
                self._transaction = _FAILED
                raise
            return
        with self._translated(), self._write_lock:
            self._file.check()
            self.execute("begin immediate")
            self._transaction = _OPEN
            try:
                yield
                self._commit()
            except BaseException:
                self._roll_back()
                raise
            finally:
                self._transaction = _NONE
        acts, self._after_commit = self._after_commit, []
        for act in acts:
            act()
        self._log.look()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Make all reads inside see the same state of the store."""
        self._check_process()
        if self._sqlite.in_transaction:
            yield
            return
        with self._translated():
            self._file.check()
            self.execute("begin")
            try:
                yield
            finally:
                self.execute("commit")

    def on_rollback(self, act: Callable[[], None]) -> None:
        """Call `act` at every rollback from now on."""
        self._on_rollback.append(act)

    def after_commit(self, act: Callable[[], None]) -> None:
        """Call `act` once this transaction is durable; not at all if it is rolled back."""
        self._after_commit.append(act)

    def _commit(self) -> None:
        if self._transaction is _FAILED:
            raise StoreError(f"{self.path}: a write inside this transaction failed, so none of it is kept")
        self.counts.write()
        self.execute("commit")

    def _roll_back(self) -> None:
        self._after_commit.clear()
        self.counts.clear()
        for act in self._on_rollback:
            act()
        with suppress(sqlite3.Error):
            self.execute("rollback")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(
                f"{self.path}: opened by process {self._process}, used in its child {os.getpid()}; open a store there"
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise store_error(error, self.path) from error

    # --- statements

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._sqlite.execute(sql, parameters)

    def run(self, sql: str, *parameters: Any) -> int:
        """Execute the statement, and return how many rows it changed."""
        try:
            return self.execute(sql, parameters).rowcount
        except (UnicodeError, OverflowError) as error:
            raise RowRefused(f"a row can't be stored: {error}") from None

    def run_many(self, sql: str, rows: Iterable[Any]) -> None:
        try:
            self._sqlite.executemany(sql, rows)
        except (UnicodeError, OverflowError) as error:
            raise RowRefused(f"a row can't be stored: {error}") from None

    def value(self, sql: str, *parameters: Any) -> Any:
        row = self.execute(sql, parameters).fetchone()
        return None if row is None else row[0]

    def json(self, sql: str, *parameters: Any) -> Any:
        """Return the value of the one JSON text that `sql` selects."""
        return _loads(self.value(sql, *parameters))

    def rows(self, select: Select, *parameters: Any) -> list[list[Any]]:
        try:
            rows: list[list[Any]] = self.json(select.as_one_text, *parameters)
        except sqlite3.DataError:  # more than SQLite can hold in one value
            return [_loads(text) for (text,) in self.execute(select.as_text_each, parameters)]
        return rows


class Counts:
    """The changes that a transaction makes to the table of job counts: they are collected, and written by one statement before
    the commit."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._changes: Counter[tuple[int, str, int]] = Counter()

    def add(self, state: int, queue: str, tier: int, n: int = 1) -> None:
        self._changes[state, queue, tier] += n

    def clear(self) -> None:
        self._changes.clear()

    def write(self, state: int | None = None) -> None:
        """Write the changes, as is needed before the counts are read. With `state`, do so only if a count of it changes."""
        if state is not None and not any(n for key, n in self._changes.items() if key[0] == state):
            return
        changes = [(*key, n) for key, n in self._changes.items() if n]
        self._changes.clear()
        if changes:
            self._connection.run(ADD_COUNTS, packed(changes))


class WriteAheadLog:
    """The write-ahead log of the database. SQLite's own checkpoints can't reuse it while another program reads an old snapshot:
    then it grows, and is shortened here afterwards. The file itself is looked at as often."""

    def __init__(self, file: FileIdentity, path: Path, sqlite: sqlite3.Connection, limits: SqliteLimits) -> None:
        self._file, self._path, self._sqlite, self._limits = file, path, sqlite, limits
        self._looked_at = time.monotonic()
        self._warned_at = float("-inf")

    def look(self) -> None:
        """Shorten the log if it is too long, and note if the file is lost; call this after each transaction."""
        if time.monotonic() - self._looked_at < self._limits.wal_seconds:
            return
        self._looked_at = time.monotonic()
        self._file.look()
        with suppress(OSError, sqlite3.Error):
            if beside(self._path, "-wal").stat().st_size > self._limits.wal_bytes:
                self._shorten()

    def _shorten(self) -> None:
        self._sqlite.execute("pragma busy_timeout = 0")
        try:
            busy, _, _ = self._sqlite.execute("pragma wal_checkpoint(truncate)").fetchone()
        finally:
            self._sqlite.execute(f"pragma busy_timeout = {BUSY_MILLISECONDS}")
        if busy and time.monotonic() - self._warned_at > WARN_AGAIN_SECONDS:
            self._warned_at = time.monotonic()
            megabytes = self._limits.wal_bytes >> 20
            _logger.warning("%s-wal is over %d MB: another program keeps reading an old state", self._path, megabytes)


def packed(batch: Any) -> str:
    """Return a batch as the JSON text that a statement takes. Raises RowRefused for values that JSON or SQLite can't hold."""
    try:
        return orjson.dumps(batch, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError) as error:
        raise RowRefused(f"a row can't be stored: {error}") from None


def first_that_fit(connection: Connection, ids: list[int], lengths: str, at_once: int, room: int) -> list[int]:
    """Return the first of these jobs, as many as have `room` characters together, at least one. `lengths` is a statement that
    selects the lengths of jobs by their ids; it gets `at_once` ids at a time."""
    for start in range(0, len(ids), at_once):
        for place, length in enumerate(connection.json(lengths, packed(ids[start : start + at_once])), start):
            room -= length
            if room < 0:
                return ids[: max(1, place)]
    return ids


def _loads(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:  # another program has stored bytes that aren't UTF-8
        return _escaped(json.loads(data.decode("utf-8", "surrogateescape")))


def _escaped(value: Any) -> Any:
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return value

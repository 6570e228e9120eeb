"""Notifications between supervisors and clients by LISTEN and NOTIFY. A thread listens on a connection of its own, and makes one
descriptor readable."""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress

from psycopg import Error, Notify
from psycopg import sql as quoting

from supervisor.errors import StoreError, StoreUnavailable
from supervisor.retry import GrowingDelay
from supervisor.stores.postgres.connection import HAS_ROOM, NOTIFY, Connection
from supervisor.stores.postgres.driver import Address, DriverConnection
from supervisor.threads import start_thread

NO_ROOM = (
    "%s: its queue of notifications is almost full, so supervisors are not notified of new jobs, and find them later, by polling: "
    "another session executes LISTEN and stays in a transaction"
)
ROOM_AGAIN = "%s: its queue of notifications has room again, so supervisors are notified again"
NOT_NOTIFIED = "%s; this was the connection for notifications: until it is made again, new jobs are found by polling, within seconds"
NOTIFIED_AGAIN = "%s: supervisors are notified again, after %.2fs"

FIRST_RECONNECT_DELAY = 0.05
MAX_RECONNECT_DELAY = 5.0
REPORTED_AFTER = 3.0
"""Seconds until a lost connection is logged, if the one of the store works by then: otherwise the server is unavailable, which the
supervisor has noticed on that one by then, and has logged."""
GATHER = 0.003
"""Seconds to wait after a notification, so that several of them wake the supervisor once."""
_LOOK_AFTER = 30.0
"""Seconds without a notification, after which the connection and the server's queue are looked at."""
_JOIN_SECONDS = 1.0

_logger = logging.getLogger(__name__)


class Notifier:
    """Notifies all other owners and, once it is bound, is notified by them; without `listen` it is never notified."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._listener: Listener | None = None
        self._bound = False

    def bind(self) -> None:
        self._bound = True
        if self._connection.session.address.listen and self._listener is None:
            self._listener = Listener(
                self._connection.session.address, self._connection.channel, self._connection.session.server_process
            )

    def unbind(self) -> None:
        self._bound = False
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def notify(self) -> None:
        """Notify the other owners. Any thread of a supervisor may call this, so it does not use the store's connection there, and
        can't notify without `listen`."""
        if self._listener is not None:
            self._listener.notify_others()
        elif not self._bound:
            self._connection.run(f"select {NOTIFY}")

    def fd(self) -> int | None:
        return None if self._listener is None else self._listener.fd

    def clear(self) -> None:
        if self._listener is not None:
            _empty(self._listener.fd)


class Listener:
    """A thread that listens. `fd` is readable after another session has notified, or may have while the connection was lost.
    `own_process` returns the server's process for the store's connection: its notifications are this supervisor's own."""

    def __init__(self, address: Address, channel: str, own_process: Callable[[], int | None]) -> None:
        self._address, self._channel, self._own_process = address, channel, own_process
        self._process: int | None = None
        self._stopped = self._wants_to_notify = False
        self._has_room = True
        self.fd, self._write_end = os.pipe()
        self._woken, self._wake = os.pipe()
        for fd in (self.fd, self._write_end, self._woken, self._wake):
            os.set_blocking(fd, False)
        try:
            self.connection = self._listening()
            self._thread = start_thread(self._listen, "store-listener")
        except BaseException:
            self._close_pipes()
            raise

    def notify_others(self) -> None:
        """Notify soon, from any thread; while the server is unavailable, the notification may be lost."""
        self._wants_to_notify = True
        _fill(self._wake)

    def stop(self) -> None:
        """Make the thread end soon."""
        self._stopped = True
        _fill(self._wake)

    def close(self) -> None:
        self.stop()
        self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():  # otherwise it waits for a server that is unavailable, as a daemon
            self._close_pipes()

    def _close_pipes(self) -> None:
        for fd in (self.fd, self._write_end, self._woken, self._wake):
            os.close(fd)

    # --- on the thread

    def _listen(self) -> None:
        while not self._stopped:
            try:
                self._receive()
            except (Error, OSError):
                self.connection.close()
                self._connect_again()
        self.connection.close()

    def _receive(self) -> None:
        """Receive notifications until the listener is stopped. Raises an error if the connection fails."""
        connection = self.connection
        waiting = _poll(connection.fileno(), self._woken)
        while not self._stopped:
            readable = [fd for fd, _ in waiting.poll(_LOOK_AFTER * 1000)]
            if self._woken in readable:
                _empty(self._woken)
                self._notify(connection)
            if not readable:
                self._look_at_queue(connection, f"select {HAS_ROOM}")
            connection.pgconn.consume_input()
            if self._received(connection):
                _fill(self._write_end)
                time.sleep(GATHER)

    def _received(self, connection: DriverConnection) -> bool:
        own = (self._process, self._own_process())
        received = False
        while (notification := connection.pgconn.notifies()) is not None:
            received = received or notification.be_pid not in own
        return received

    def _received_meanwhile(self, notification: Notify) -> None:
        """Handle a notification that psycopg has read while this connection was sending."""
        if notification.pid not in (self._process, self._own_process()):
            _fill(self._write_end)

    def _notify(self, connection: DriverConnection) -> None:
        if self._wants_to_notify:
            self._wants_to_notify = False
            self._look_at_queue(connection, f"select {NOTIFY}".replace("{channel}", "$1"), self._channel)

    def _look_at_queue(self, connection: DriverConnection, query: str, *parameters: str) -> None:
        """Log whether notifications have room in the queue of the server, which all its databases share."""
        row = connection.execute(query, parameters).fetchone()
        had_room, self._has_room = self._has_room, row == (True,)
        if had_room and not self._has_room:
            _logger.warning(NO_ROOM, self._address.shown)
        elif self._has_room and not had_room:
            _logger.info(ROOM_AGAIN, self._address.shown)

    def _connect_again(self) -> None:
        delays, began, logged = GrowingDelay(FIRST_RECONNECT_DELAY, MAX_RECONNECT_DELAY), time.monotonic(), False
        while not self._stopped:
            try:
                self.connection = self._listening()
            except (StoreError, Error) as error:
                if not logged and time.monotonic() - began >= REPORTED_AFTER and self._own_process() is not None:
                    _logger.warning(NOT_NOTIFIED, error)
                    logged = True
            else:
                _fill(self._write_end)  # notifications that were sent meanwhile are lost
                if logged:
                    _logger.info(NOTIFIED_AGAIN, self._address.shown, time.monotonic() - began)
                return
            _poll(self._woken).poll(delays.next() * 1000)
            _empty(self._woken)

    def _listening(self) -> DriverConnection:
        connection = self._address.connect()
        self._process = connection.info.backend_pid
        try:
            connection.add_notify_handler(self._received_meanwhile)
            connection.execute(quoting.SQL("listen {}").format(quoting.Identifier(self._channel)))
        except Error as error:
            connection.close()
            raise StoreUnavailable(str(self._address.translated(error))) from error
        return connection


def _poll(*fds: int) -> select.poll:
    """Return a poll of these descriptors: unlike `select`, it takes descriptors of any number."""
    waiting = select.poll()
    for fd in fds:
        waiting.register(fd, select.POLLIN)
    return waiting


def _fill(pipe: int) -> None:
    """Make the read end readable; it is already if the pipe is full."""
    with suppress(BlockingIOError):
        os.write(pipe, b"!")


def _empty(pipe: int) -> None:
    with suppress(BlockingIOError):
        while len(os.read(pipe, 4096)) == 4096:
            pass

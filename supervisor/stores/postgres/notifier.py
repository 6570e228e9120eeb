"""Wake-ups by LISTEN and NOTIFY: a thread hears them on a connection of its own, and passes them on through one descriptor."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from psycopg import Error, Notify
from psycopg import sql as quoting

from supervisor.errors import StoreError, StoreUnavailable
from supervisor.stores.postgres.driver import Address, DriverConnection

RECONNECT_DELAYS = (0.05, 5.0)
REST = 0.003
"""Seconds after a ring, in which more of them come together."""
_LOOK_AFTER = 30.0
_JOIN = 1.0


class Listener:
    """`bell` is readable after somebody rang, or may have rung while the connection was lost. `ours` gives the server's
    processes whose notifications are this supervisor's own."""

    def __init__(self, address: Address, channel: str, ours: Callable[[], int | None]) -> None:
        self._address, self._channel, self._ours = address, channel, ours
        self._process: int | None = None
        self.fd, self._write_end = os.pipe()
        self._woken, self._wake = os.pipe()
        for fd in (self.fd, self._write_end, self._woken, self._wake):
            os.set_blocking(fd, False)
        try:
            self._connection = self._listening()
        except BaseException:
            self._close_pipes()
            raise
        self._stopped = self._wants_to_notify = False
        self._thread = threading.Thread(target=self._listen, name="store-listener", daemon=True)
        self._thread.start()

    def clear_notifications(self) -> None:
        _empty(self.fd)

    def notify_others(self) -> None:
        """From any thread; soon, and not at all while the server is away."""
        self._wants_to_notify = True
        _fill(self._wake)

    def close(self) -> None:
        self._stopped = True
        _fill(self._wake)
        self._thread.join(_JOIN)
        if not self._thread.is_alive():  # otherwise it is waiting for a server that is away, and a daemon
            self._close_pipes()

    def _close_pipes(self) -> None:
        for fd in (self.fd, self._write_end, self._woken, self._wake):
            os.close(fd)

    # on the thread

    def _listen(self) -> None:
        while not self._stopped:
            try:
                self._receive()
            except (Error, OSError):
                self._connection.close()
                self._connect_again()
        self._connection.close()

    def _receive(self) -> None:
        """Until something is wrong with the connection."""
        connection = self._connection
        waiting = _poll(connection.fileno(), self._woken)
        while not self._stopped:
            readable = [fd for fd, _ in waiting.poll(_LOOK_AFTER * 1000)]
            if self._woken in readable:
                _empty(self._woken)
                self._notify(connection)
            connection.pgconn.consume_input()
            if self._received(connection):
                _fill(self._write_end)
                time.sleep(REST)

    def _received(self, connection: DriverConnection) -> bool:
        ours = (self._process, self._ours())
        received = False
        while (notification := connection.pgconn.notifies()) is not None:
            received = received or notification.be_pid not in ours
        return received

    def _heard_beside(self, notification: Notify) -> None:
        """While this connection was sending: psycopg has taken it off."""
        if notification.pid not in (self._process, self._ours()):
            _fill(self._write_end)

    def _notify(self, connection: DriverConnection) -> None:
        if self._wants_to_notify:
            self._wants_to_notify = False
            connection.execute("select pg_notify($1, '')", (self._channel,))

    def _connect_again(self) -> None:
        delay, most = RECONNECT_DELAYS
        while not self._stopped:
            with suppress(StoreError, Error):
                self._connection = self._listening()
                _fill(self._write_end)  # whoever rang meanwhile was not heard
                return
            _poll(self._woken).poll(delay * 1000)
            _empty(self._woken)
            delay = min(most, delay * 2)

    def _listening(self) -> DriverConnection:
        connection = self._address.connect()
        self._process = connection.info.backend_pid
        try:
            connection.add_notify_handler(self._heard_beside)
            connection.execute(quoting.SQL("listen {}").format(quoting.Identifier(self._channel)))
        except Error as error:
            connection.close()
            raise StoreUnavailable(str(self._address.translated(error))) from error
        return connection


def _poll(*fds: int) -> select.poll:
    """Unlike `select`, whatever their numbers."""
    waiting = select.poll()
    for fd in fds:
        waiting.register(fd, select.POLLIN)
    return waiting


def _fill(pipe: int) -> None:
    """A full one is readable already."""
    with suppress(BlockingIOError):
        os.write(pipe, b"!")


def _empty(pipe: int) -> None:
    with suppress(BlockingIOError):
        while len(os.read(pipe, 4096)) == 4096:
            pass

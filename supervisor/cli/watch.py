"""supervisor status --watch"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, redirect_stdout
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import click

from supervisor.cli.context import current_context, echo
from supervisor.cli.exit_codes import DONE
from supervisor.cli.standard_streams import Stream
from supervisor.cli.store_access import may_answer_later, opener_of
from supervisor.config.settings import Settings
from supervisor.errors import StoreError
from supervisor.stores.store_thread import StoreThread
from supervisor.text.units import format_duration

SILENT = 5.0
"""Seconds without an answer of the store after which that is shown, again and again."""
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"

Print = Callable[[dict[str, Any]], None]


class Screen(Protocol):
    """Shows the status again and again."""

    def show(self, status: dict[str, Any]) -> None: ...

    def unavailable(self, why: str) -> None: ...


def watch(settings: Settings, seconds: float, printed: Print, as_json: bool) -> int:
    """Print the status again and again until a signal. Raises StoreError if the first look shows a mistake."""
    thread, inbox = StoreThread(opener_of(settings)), SimpleQueue[Future[Any] | None]()
    screen: Screen = Appended(printed, as_json) if as_json or not _has_screen() else InPlace(printed, seconds)
    with _signals(lambda: inbox.put(None)):
        try:
            is_first = True
            while _look(thread, inbox, screen, is_first) and not _is_output_lost() and _pause(inbox, seconds):
                is_first = False
        finally:
            thread.close()
    return DONE


def _look(thread: StoreThread, inbox: SimpleQueue[Future[Any] | None], screen: Screen, is_first: bool) -> bool:
    """Show the status, or why there is none. Return False after a signal."""
    began = time.monotonic()
    thread.submit(lambda store: store.stats()).add_done_callback(inbox.put)
    while True:
        try:
            answer = inbox.get(timeout=SILENT)
        except Empty:
            screen.unavailable(f"it has not answered for {format_duration(time.monotonic() - began)}")
            continue
        if answer is None:
            return False
        try:
            screen.show(answer.result())
        except StoreError as error:
            if is_first and not may_answer_later(error):
                raise
            screen.unavailable(str(error))
        return True


def _pause(inbox: SimpleQueue[Future[Any] | None], seconds: float) -> bool:
    """Return whether no signal has come for so long."""
    try:
        inbox.get(timeout=seconds)
    except Empty:
        return True
    return False


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at a signal that asks for the end. SimpleQueue.put may be called in a signal handler."""
    before = {
        number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_screen() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _is_output_lost() -> bool:
    return isinstance(sys.stdout, Stream) and sys.stdout.error is not None


class Appended:
    """Prints one status after the other, for files and pipes."""

    def __init__(self, printed: Print, as_json: bool) -> None:
        self._print, self._as_json = printed, as_json

    def show(self, status: dict[str, Any]) -> None:
        if not self._as_json:
            click.echo(f"--- {status['at']}")
        self._print(status)
        sys.stdout.flush()

    def unavailable(self, why: str) -> None:
        echo(f"the store is unavailable: {why}", err=self._as_json)
        sys.stdout.flush()


class InPlace:
    """Draws over the status before. While the store is unavailable, that one stays, with its age."""

    def __init__(self, printed: Print, seconds: float) -> None:
        self._print, self._seconds = printed, seconds
        self._last, self._seen_at = "", time.monotonic()
        self._is_first = True

    def show(self, status: dict[str, Any]) -> None:
        self._last, self._seen_at = self._text(lambda: self._print(status)), time.monotonic()
        every = format_duration(self._seconds)
        self._draw(f"{time.strftime('%H:%M:%S')}, every {every}; Ctrl-C ends\n\n{self._last}")

    def unavailable(self, why: str) -> None:
        why = current_context().shown(f"{time.strftime('%H:%M:%S')}: the store is unavailable: {why}")
        age = f"\n\nas it was {format_duration(time.monotonic() - self._seen_at)} ago:\n\n" if self._last else "\n"
        self._draw(f"{why}{age}{self._last}")

    def _text(self, call: Callable[[], None]) -> str:
        """Return what `call` prints to a terminal, with its colours."""
        out = _Captured()
        with redirect_stdout(out):
            call()
        return out.getvalue()

    def _draw(self, text: str) -> None:
        """Draw as many lines as the terminal has; longer lines are folded. The text is escaped: it has escape sequences of Rich only."""
        from rich.console import Console
        from rich.text import Text

        console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True)
        folded = list(Text.from_ansi(text.rstrip(), overflow="fold").wrap(console, console.width - 1, overflow="fold"))
        room = console.height - 1
        if (more := len(folded) - room) > 0:  # the problems, at the end, stay
            top, bottom = (room - 1) // 2, room // 2
            folded = [*folded[:top], Text(f"… {more + 1} lines left out …"), *folded[len(folded) - bottom :]]
        with console.capture() as drawn:
            for line in folded:
                console.print(line, end=f"{REST_OF_LINE}\n", crop=False)
        clear, self._is_first = HOME + REST_OF_SCREEN if self._is_first else HOME, False
        sys.stdout.write(f"{clear}{drawn.get()}{REST_OF_SCREEN}")
        sys.stdout.flush()


class _Captured(io.StringIO):
    def isatty(self) -> bool:
        return True

"""The application of `supervisor top`: it looks at the store, and carries out commands."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ClassVar, TypeVar

from textual.app import App, ScreenStackError
from textual.binding import BindingType
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.worker import WorkerFailed

from supervisor.cli.live.commands import CHANGES, pause
from supervisor.cli.live.looks import Look, look
from supervisor.cli.live.main_screen import MainScreen
from supervisor.cli.live.rows import Mask, problem_lines
from supervisor.cli.live.screens import HELP, JobPage, Page, Question, story
from supervisor.cli.render import clipped
from supervisor.cli.store_access import may_answer_later
from supervisor.errors import StoreError, StoreUnavailable
from supervisor.stores.protocol import Store
from supervisor.stores.store_thread import StoreThread
from supervisor.text.units import format_duration

Result = TypeVar("Result")

SILENT = 3.0
"""Seconds without an answer of the store after which that is shown."""


class Top(App[None]):
    """Shows what the store has, again and again. It never looks again before the last look was answered."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    .head, #head { height: 1; text-style: reverse; }
    #problems { height: auto; max-height: 3; color: ansi_red; }
    #list, .keys { height: 1; text-style: bold; }
    #message, #report { height: 1; }
    .head, #head, #list, #message, #report, .keys { text-wrap: nowrap; text-overflow: ellipsis; }
    Table { height: auto; max-height: 6; scrollbar-size-horizontal: 0; }
    Table.-current { height: 1fr; max-height: 100%; }
    Table > .datatable--header, Table:ansi > .datatable--header { text-style: underline; background: ansi_default; color: ansi_default; }
    Table > .datatable--cursor { background: ansi_default; color: ansi_default; text-style: none; }
    Table:focus > .datatable--cursor { background: ansi_default; color: ansi_default; text-style: reverse; }
    Screen.-low Table { display: none; }
    Screen.-low Table.-current { display: block; }
    Screen.-low #problems { max-height: 1; }
    #find { height: 1; border: none; padding: 0; display: none; }
    Question { align: center middle; }
    #question { width: auto; max-width: 90%; height: auto; border: round ansi_default; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q,ctrl+c,ctrl+q", "quit", "quit"),
        ("question_mark", "page('help')", "help"),
        ("P", "page('problems')", "problems"),
        ("r", "change('retry')", "retry"),
        ("c", "change('cancel')", "cancel"),
        ("d", "change('delete')", "delete"),
        ("R", "change('redrive')", "redrive"),
        ("p", "pause", "pause"),
        ("space", "look", "look now"),
    ]

    def __init__(
        self, store: StoreThread, name: str, sinks: frozenset[str], interval: float, shown: Mask, silent: float = SILENT
    ) -> None:
        super().__init__(ansi_color=True)
        self.theme, self.animation_level = "ansi-dark", "none"
        self._store, self._sinks, self._interval, self._shown, self._silent = store, sinks, interval, shown, silent
        self._main = MainScreen(name)
        self._last: Look | None = None
        self._seen_at = time.monotonic()
        self._wake = asyncio.Event()
        self._is_changing = False
        self.failure: BaseException | None = None

    def get_default_screen(self) -> Screen[None]:
        return self._main

    def on_mount(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self.run_worker(self._look_again_and_again())

    # --- looks

    async def _look_again_and_again(self) -> None:
        """Look until the screen is closed."""
        with suppress(NoMatches, ScreenStackError):
            while True:
                await self._look_once()

    async def _look_once(self) -> None:
        began, self._wake = time.monotonic(), asyncio.Event()
        wanted = self._main.wanted._replace(job=self.screen.job if isinstance(self.screen, JobPage) else None)
        try:
            found = await self._read(partial(look, wanted=wanted, sinks=self._sinks), self._unavailable)
        except StoreError as error:
            if self._last is None and not may_answer_later(error):
                raise
            self._unavailable(str(error))
        else:
            self._show(found)
        waiting = asyncio.create_task(self._wake.wait())
        await asyncio.wait((waiting,), timeout=max(self._interval, time.monotonic() - began))
        waiting.cancel()

    async def _read(self, call: Callable[[Store], Result], silent: Callable[[str], None]) -> Result:
        """Return what `call` returns for the store. Raises StoreError. `silent` gets a text again and again while there is no answer."""
        answer = asyncio.wrap_future(self._store.submit(call))
        began = time.monotonic()
        while not (await asyncio.wait((answer,), timeout=self._silent))[0]:
            silent(f"it has not answered for {format_duration(time.monotonic() - began)}")
        return answer.result()

    def _show(self, found: Look) -> None:
        self._last, self._seen_at = found, time.monotonic()
        with self.batch_update():
            self._main.show(found, self._shown)
            if isinstance(self.screen, JobPage) and self.screen.job == found.wanted.job:
                self.screen.show(story(found.story, self._shown))

    def _unavailable(self, why: str) -> None:
        age = f"as it was {format_duration(time.monotonic() - self._seen_at)} ago; " if self._last else ""
        line = f"{age}the store is unavailable: {self._shown(why)}"
        self._main.line("head", line)
        if isinstance(self.screen, JobPage):
            self.screen.head(line)

    def on_look_now(self) -> None:
        self._wake.set()

    # --- keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Return whether a key has its meaning on the screen that is open."""
        is_job = isinstance(self.screen, JobPage)
        return self.screen is self._main or action in ("quit", "look") or (action == "change" and is_job)

    def action_page(self, title: str) -> None:
        lines = problem_lines(self._last, self._shown) if self._last else []
        self.push_screen(Page(title, HELP if title == "help" else "\n\n".join(lines) or "none"))

    def action_look(self) -> None:
        self._wake.set()

    def action_change(self, name: str) -> None:
        """Change the job that is open, or under the cursor."""
        change, page = CHANGES[name], self.screen
        job = page.job if isinstance(page, JobPage) else self._main.job
        if job is None:
            self._main.line("message", f"{name}: no job is under the cursor")
        else:
            self._ask(change.question.format(job), partial(change.carry_out, id=job))

    def action_pause(self) -> None:
        """Pause or resume the queue under the cursor, or that of the job under it."""
        queue = self._main.queue
        if queue is None or self._last is None:
            self._main.line("message", "pause: no queue is under the cursor")
            return
        is_paused = any(row["queue"] == queue and row["paused"] for row in self._last.status["queues"])
        question = "" if is_paused else f"Pause queue {clipped(queue)}? Its running jobs go on."
        self._ask(question, partial(pause, queue=queue, paused=not is_paused))

    def _ask(self, question: str, command: Callable[[Store], str]) -> None:
        """Carry out the command, if the answer to the question is yes."""

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._carry_out(command))

        if question:
            self.push_screen(Question(question), answered)
        else:
            answered(True)

    async def _carry_out(self, command: Callable[[Store], str]) -> None:
        """Carry out a command, unless the one before is under way: while the store hangs, they must not pile up."""

        def report(text: str) -> None:
            with suppress(NoMatches, ScreenStackError):  # the screen is closed
                self._main.line("message", self._shown(text))
                if isinstance(self.screen, JobPage):
                    self.screen.report(text)

        if self._is_changing:
            report("nothing was done: the store has not answered the command before yet")
            return
        self._is_changing = True
        report("…")
        try:
            report(await self._read(command, lambda why: report(f"the store is unavailable: {why}")))
        except StoreError as error:
            report(f"nothing was done: {error}" if isinstance(error, StoreUnavailable) else str(error))
        finally:
            self._is_changing = False
        self._wake.set()

    # --- errors

    def _handle_exception(self, error: Exception) -> None:
        cause = error.error if isinstance(error, WorkerFailed) else error
        self.failure = self.failure or cause
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """End without the traceback of Textual, which shows the values of variables: there may be secrets among them."""
        self._close_messages_no_wait()

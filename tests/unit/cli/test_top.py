"""The live screen on a real SQLite store, driven by keys."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.worker import WorkerFailed

from supervisor.cli.live import looks
from supervisor.cli.live.app import Top
from supervisor.cli.live.rows import list_line
from supervisor.cli.live.tables import Table
from supervisor.errors import StoreUnavailable
from supervisor.jobs import Cause, Failure, Policy
from supervisor.stores.opening import open_store, settings_of
from supervisor.stores.protocol import Store
from supervisor.stores.records import ClaimRequest, EnqueueRow, Presence
from supervisor.stores.store_thread import StoreThread
from tests.stores.factories import dead

HOSTILE = "mail\x1b]0;owned\x07\x9b2J[red]\n\u202e宽宽"


class Screen:
    """The screen of an app that runs, as a person sees it."""

    def __init__(self, pilot: Pilot[None]) -> None:
        self.pilot = pilot

    @property
    def app(self) -> Any:
        return self.pilot.app

    @property
    def text(self) -> str:
        """Return what is drawn, line by line."""
        screen = self.app.screen
        return "\n".join("".join(segment.text for segment in line) for line in screen._compositor.render_strips())

    async def press(self, *keys: str) -> None:
        """Type keys. Unlike Pilot.press, this does not wait until the processor is idle."""
        for key in keys:
            self.app.simulate_key(key)
            await asyncio.sleep(0)

    async def until(self, fact: Callable[[], object]) -> None:
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            if fact():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"never so; the screen:\n{self.text}")

    async def shows(self, *texts: str) -> None:
        await self.until(lambda: all(text in self.text for text in texts))


class Fixture:
    """A store with jobs, and the app that shows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store: Store = self.opened(create=True)
        self.store.join("o", "host-1", 7)
        self.opener: Callable[[], Store] = self.opened
        self.interval = 0.2

    def opened(self, create: bool = False) -> Store:
        return open_store(settings_of("sqlite:///jobs.db"), create=create, base=self.folder)

    def enqueue(self, *handlers: str, queue: str = "default") -> list[int]:
        return self.store.enqueue([EnqueueRow(handler, '{"to": "me"}', queue) for handler in handlers])

    def fail(self, queue: str = "default", message: str = "no such address") -> None:
        """Fail a job of this queue for good."""
        self.store.look(None, 10)
        leases = self.store.claim([ClaimRequest(queue, 1, 1, 1, 100)], 30.0, lambda *_: Policy(0))
        failure = Failure(Cause.EXCEPTION, type="ValueError", message=message)
        self.store.settle([dead(lease)._replace(failure=failure) for lease in leases])

    def announce(self, **job: Any) -> None:
        current = {"job_id": 1, "handler": "mail", "retry_count": 2, "is_retry": True, "running_for": 90.0, **job}
        workers = [
            {"pid": 41, "state": "busy", "current_job": current},
            {"pid": 42, "state": "idle", "current_job": None},
        ]
        self.store.announce(Presence("running", workers, 1, 30.0, {"handlers": ["mail"], "queues": None}))

    def sql(self, statement: str, *values: object) -> None:
        with sqlite3.connect(self.folder / "jobs.db", timeout=10) as connection:
            connection.execute(statement, values)
        connection.close()

    def drive(
        self, story: Callable[[Screen], Awaitable[None]], size: tuple[int, int] = (80, 24), silent: float = 3.0
    ) -> Top:
        """Run the app, and what a person does with it."""
        thread = StoreThread(lambda: self.opener())
        app = Top(thread, "sqlite:///jobs.db", frozenset(), self.interval, lambda text: text, silent)

        async def main() -> None:
            async with app.run_test(size=size) as pilot:
                await story(Screen(pilot))

        try:
            asyncio.run(main())
        finally:
            thread.close()
        return app


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Fixture]:
    fixture = Fixture(tmp_path)
    yield fixture
    fixture.store.leave()
    fixture.store.close()


def test_queues_workers_problems_and_jobs_fit_into_80_by_24_at_the_first_look(here: Fixture) -> None:
    here.interval = 1000
    here.enqueue("mail", "mail")
    here.enqueue("thumbnail", queue="slow")
    here.fail("slow")
    here.announce()
    here.store.pause("slow", True)

    async def story(screen: Screen) -> None:
        await screen.shows(
            "1 PROBLEM · 1 supervisor · 2 workers, 1 busy · 2 ready · sqlite:///", "queue slow is paused"
        )
        await screen.shows("41", "42", "thumbnail")
        lines = [" ".join(line.split()) for line in screen.text.splitlines()]
        assert len(lines) == 24
        assert "default 2 0 0 0 0 0" in lines
        assert any(re.fullmatch(r"41 busy 1m \d+s 1 mail 3 host-1", line) for line in lines)
        assert "42 idle host-1" in lines
        assert any(re.match(r"3 thumbnail slow failed 1 .*ValueError: no such", line) for line in lines)
        assert "? help" in lines[-1]

    here.drive(story)


def test_a_job_that_is_enqueued_appears_and_the_cursor_stays_on_its_job(here: Fixture) -> None:
    here.enqueue("first", "second")

    async def story(screen: Screen) -> None:
        await screen.shows("second")
        table = screen.app.query_one("#jobs", Table)
        await screen.press("down")
        await screen.until(lambda: table.selected == 1)
        here.enqueue("third")
        await screen.shows("third")
        assert table.selected == 1

    here.drive(story)


def test_jobs_are_found_by_text_and_listed_by_state(here: Fixture) -> None:
    here.enqueue("thumbnail")
    here.fail()
    here.enqueue("mail", "other")

    async def story(screen: Screen) -> None:
        await screen.shows("3 jobs", "mail")
        await screen.press("slash", *"ADDRESS", "enter")
        await screen.shows("1 job with 'ADDRESS'", "thumbnail")
        assert "mail" not in screen.text
        await screen.press("escape")
        await screen.shows("3 jobs", "mail")
        for _ in range(3):
            await screen.press("s")
        await screen.shows("2 ready jobs")
        await screen.press("S", "S", "S", "S")
        await screen.shows("0 cancelled jobs")

    here.drive(story)


def test_a_panel_is_sorted_by_a_column_of_its_own(here: Fixture) -> None:
    here.enqueue("b", "c", "a")

    async def story(screen: Screen) -> None:
        await screen.shows("3 jobs", "c")
        jobs = screen.app.query_one("#jobs", Table)
        for key, label, order in (("o", "job▲", [1, 2, 3]), ("o", "handler▲", [3, 1, 2]), ("O", "handler▼", [2, 1, 3])):
            await screen.press(key)
            await screen.shows(label)
            assert [row.of for row in jobs._rows_shown] == order

    here.drive(story)


def test_the_story_of_a_job_is_opened_and_follows_its_changes(here: Fixture) -> None:
    (id,) = here.enqueue("mail")
    here.announce()

    async def story(screen: Screen) -> None:
        await screen.shows("mail")
        await screen.press("enter")
        await screen.shows(f"job {id}", '"to": "me"', "waiting_because")
        here.fail(message="broken pipe")
        await screen.shows("ValueError: broken pipe")
        await screen.press("r")
        await screen.shows(f"job {id}: runs again", "ready")
        await screen.press("escape")
        await screen.shows("1 job ")

    here.drive(story)


def test_jobs_are_cancelled_and_deleted_after_a_question_only(here: Fixture) -> None:
    (id,) = here.enqueue("mail")

    async def story(screen: Screen) -> None:
        await screen.shows("mail")
        for key, question, done in (
            ("c", f"Cancel job {id}?", f"job {id}: cancelled"), ("d", f"Delete job {id} for good?", f"job {id}: deleted"),
        ):  # fmt: skip
            await screen.press(key)
            await screen.shows(question)
            await screen.press("enter")
            await screen.until(lambda: len(screen.app.screen_stack) == 1)
            assert here.store.get(id)
            await screen.press(key)
            await screen.shows(question)
            await screen.press("y")
            await screen.shows(done)
        assert here.store.get(id) is None

    here.drive(story)


def test_a_refused_command_has_its_reason(here: Fixture) -> None:
    (id,) = here.enqueue("mail")

    async def story(screen: Screen) -> None:
        await screen.shows("mail")
        await screen.press("R")
        await screen.shows(f"job {id}: ready: it is going to run anyway")
        await screen.press("tab", "r")
        await screen.shows("retry: no job is under the cursor")

    here.drive(story)


def test_a_dead_letter_is_redriven(here: Fixture) -> None:
    (id,) = here.enqueue("mail")
    here.fail()

    async def story(screen: Screen) -> None:
        await screen.shows("ValueError")
        await screen.press("R")
        await screen.shows(f"job {id}: redriven")
        assert here.store.get(id)["state"] == "ready"  # type: ignore[index]

    here.drive(story)


def test_a_queue_is_paused_after_a_question_and_resumed(here: Fixture) -> None:
    here.enqueue("mail", queue="post")

    async def story(screen: Screen) -> None:
        await screen.shows("mail")
        await screen.press("p")
        await screen.shows("Pause queue post?")
        await screen.press("y")
        await screen.shows("queue post: paused", "queue post is paused; 1 job waits in it")
        await screen.press("tab", "p")
        await screen.shows("queue post: resumed")
        assert here.store.paused() == frozenset()

    here.drive(story)


def test_hostile_texts_are_shown_without_their_effect(here: Fixture) -> None:
    (id,) = here.enqueue("mail", queue="post")
    here.fail("post", message="[red]a[/] \x1b[31m")
    here.sql("update jobs set handler = ?", HOSTILE)
    here.announce(handler=HOSTILE)

    async def story(screen: Screen) -> None:
        await screen.shows("mail\\x1b]0;owned\\x07\\x9b2J[red]", "[red]a[/]")
        lines = screen.text.splitlines()
        assert all(line.isprintable() for line in lines), "no newline, no escape sequence, no reversed text"
        await screen.press("enter")
        await screen.shows(f"job {id}", "ValueError: [red]a[/] \\x1b[31m", "宽宽")
        assert all(line.isprintable() for line in screen.text.splitlines())

    here.drive(story, size=(200, 40))


def test_a_long_name_leaves_room_for_the_other_columns(here: Fixture) -> None:
    here.enqueue("h" * 200, queue="q" * 200)

    async def story(screen: Screen) -> None:
        await screen.shows("scheduled", "q…", "h…")
        assert re.search(r"hhh… +q+… +ready", screen.text)

    here.drive(story)


def test_a_small_terminal_shows_one_panel_at_a_time(here: Fixture) -> None:
    here.enqueue("mail")

    async def story(screen: Screen) -> None:
        await screen.shows("mail")
        assert "retries" not in screen.text
        await screen.press("tab")
        await screen.shows("retries")
        assert "last error" not in screen.text

    here.drive(story, size=(40, 10))


def test_an_unavailable_store_is_named_and_looked_at_again_when_it_answers(here: Fixture) -> None:
    here.enqueue("mail")
    fails = threading.Event()

    def opened() -> Store:
        if fails.is_set():
            raise StoreUnavailable("the database is locked")
        return here.opened()

    here.opener = opened

    async def story(screen: Screen) -> None:
        await screen.shows("mail")
        fails.set()
        here.sql("alter table counts rename to counts_of_before")
        await screen.shows("the store is unavailable: the database is locked", "ago", "mail")
        await screen.press("r")
        await screen.shows("nothing was done: the database is locked")
        here.sql("alter table counts_of_before rename to counts")
        fails.clear()
        await screen.shows("ready")
        await screen.until(lambda: "unavailable" not in screen.text.splitlines()[0])

    here.drive(story)


def test_a_store_that_hangs_is_asked_once_and_the_keys_work_meanwhile(here: Fixture) -> None:
    answers, asked = threading.Event(), []

    def opened() -> Store:
        asked.append(1)
        answers.wait(60)
        return here.opened()

    here.opener = opened

    async def story(screen: Screen) -> None:
        await screen.shows("the store is unavailable: it has not answered for")
        await screen.press("question_mark")
        await screen.shows("Escape leaves this page")
        await screen.press("escape", "s", "space")
        answers.set()
        await screen.shows("0 scheduled jobs")
        assert asked == [1]

    here.drive(story, silent=0.05)


def test_commands_do_not_pile_up_while_the_store_hangs(here: Fixture) -> None:
    (id,) = here.enqueue("mail", "other")[:1]
    hangs, answers, retried = threading.Event(), threading.Event(), []

    def opened() -> Store:
        store = here.opened()
        stats, retry = store.stats, store.retry

        def slow_stats() -> dict[str, Any]:
            if hangs.is_set():
                answers.wait(60)
            return stats()

        store.stats = slow_stats  # type: ignore[method-assign]
        store.retry = lambda ids, force=False: retried.append(ids) or retry(ids)  # type: ignore[method-assign, func-returns-value]
        return store

    here.opener = opened

    async def story(screen: Screen) -> None:
        await screen.shows("other")
        hangs.set()
        await screen.shows("has not answered for")
        for _ in range(3):
            await screen.press("r")
            await asyncio.sleep(0.02)
        await screen.shows("nothing was done: the store has not answered the command before yet")
        answers.set()
        await screen.until(lambda: retried)
        await screen.shows("all well")
        assert retried == [[id + 1]]

    here.drive(story, silent=0.5)


def test_keys_that_change_a_job_do_nothing_on_a_page_of_text(here: Fixture) -> None:
    (id,) = here.enqueue("mail")

    async def story(screen: Screen) -> None:
        await screen.shows("mail")
        await screen.press("question_mark")
        await screen.shows("Escape leaves this page")
        await screen.press("c", "d", "r", "p", "escape")
        await screen.until(lambda: len(screen.app.screen_stack) == 1)
        await screen.shows("mail")
        assert f"job {id}" not in screen.text

    here.drive(story)


def test_an_error_of_the_program_ends_it_and_shows_no_values_of_variables(here: Fixture) -> None:
    class Broken:
        def stats(self) -> None:
            raise RuntimeError("a fault")

        def close(self) -> None: ...

    here.opener = Broken  # type: ignore[assignment]

    async def story(screen: Screen) -> None:
        await screen.until(lambda: screen.app.failure is not None)

    with pytest.raises(WorkerFailed, match="a fault"):
        here.drive(story)


def test_a_look_reads_no_more_jobs_than_it_may_and_the_title_names_that(here: Fixture) -> None:
    here.enqueue("rare", *["mail"] * looks.SEARCHED)
    found = looks.look(here.store, looks.Wanted(), frozenset())
    assert (len(found.jobs), list_line(found)) == (looks.PAGE, "the newest 100 jobs")
    found = looks.look(here.store, looks.Wanted(text="RARE"), frozenset())
    assert list_line(found) == "0 jobs with 'RARE' among the newest 1,000"
    found = looks.look(here.store, looks.Wanted(text="handler:rare queue:default"), frozenset())
    assert list_line(found) == "1 job with 'handler:rare queue:default'"


@pytest.mark.parametrize(
    ("text", "queue", "handler", "part"),
    [
        ("", None, None, ""),
        ("queue:mail Broken Pipe", "mail", None, "broken pipe"),
        ("handler:send", None, "send", ""),
        ("queue: x:y", None, None, "queue: x:y"),
    ],
)
def test_a_text_to_find_has_names_and_a_part(text: str, queue: str | None, handler: str | None, part: str) -> None:
    where, rest = looks.filter_of(looks.Wanted(text=text))
    assert (where.queue, where.handler, rest) == (queue, handler, part)


def test_a_story_with_large_texts_is_cut(here: Fixture) -> None:
    (id,) = here.store.enqueue([EnqueueRow("mail", '"' + "x" * 500_000 + '"')])
    found = looks.look(here.store, looks.Wanted(job=id), frozenset())
    assert len(str(found.story)) < 20_000

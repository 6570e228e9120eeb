"""Streams keep open pages up to date: how often the store is read, what is sent, and how they end."""

from __future__ import annotations

import asyncio

import pytest

from supervisor.errors import Unsupported
from supervisor.http.pages import live
from tests.stores.factories import make_dead, put
from tests.unit.pages.site import Site, Stream, play


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PERIOD", 0.02)
    monkeypatch.setattr(live, "MIN_PERIOD", 0.01)


def test_a_stream_begins_with_all_parts_and_has_only_the_changed_ones_then(site: Site) -> None:
    async def scene() -> None:
        stream = Stream(site.app, "/queues")
        event, parts = await stream.next()
        assert event == "parts" and parts.keys() == {"queues"}
        put(site.store, "mail", queue="post")
        event, parts = await stream.next()
        assert event == "parts" and "post" in parts["queues"]
        await stream.leave()

    play(scene)


def test_nothing_is_sent_while_nothing_changes(site: Site) -> None:
    async def scene() -> None:
        stream = Stream(site.app, "/queues")
        await stream.next()
        seen = site.reader.reads
        while site.reader.reads < seen + 5:
            await asyncio.sleep(0.01)
        assert not stream.events
        await stream.leave()

    play(scene)


def test_all_open_pages_share_a_read_and_none_is_made_without_them(site: Site) -> None:
    make_dead(site.store, "mail")

    async def scene() -> None:
        assert site.reader.reads == 0
        streams = [Stream(site.app, page) for page in ("/", "/", "/jobs", "/jobs/1", "/queues")]
        for stream in streams:
            await stream.next()
        assert site.reader.reads == 1
        for stream in streams:
            await stream.leave()
        ended = site.reader.reads
        await asyncio.sleep(0.1)
        assert site.reader.reads <= ended + 1

    play(scene)


def test_the_number_of_streams_is_limited(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS", 2)

    async def scene() -> None:
        streams = [Stream(site.app, "/"), Stream(site.app, "/")]
        for stream in streams:
            await stream.next()
        refused = Stream(site.app, "/")
        await refused.task
        assert refused.status == 503
        await streams.pop().leave()
        streams.append(Stream(site.app, "/"))
        assert (await streams[-1].next())[0] == "parts"
        for stream in streams:
            await stream.leave()

    play(scene)


def test_streams_end_with_the_server(site: Site) -> None:
    async def scene() -> None:
        stream = Stream(site.app, "/")
        await stream.next()
        assert site.view.end_streams is not None
        await site.view.end_streams()
        async with asyncio.timeout(5):
            await stream.task
        late = Stream(site.app, "/")
        await late.task
        assert late.status == 503

    play(scene)


def test_a_stream_ends_after_some_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_SECONDS", 0.05)

    async def scene() -> None:
        stream = Stream(site.app, "/")
        async with asyncio.timeout(5):
            await stream.task
        assert stream.status == 200

    play(scene)


def test_an_unavailable_store_is_reported_and_its_return_too(site: Site) -> None:
    async def scene() -> None:
        stream = Stream(site.app, "/queues")
        assert (await stream.next())[0] == "parts"
        site.reader.unavailable = True
        assert await stream.next() == ("unavailable", {"error": "the database is locked"})
        site.reader.unavailable = False
        assert await stream.next() == ("parts", {})
        await stream.leave()

    play(scene)


def test_a_deleted_job_is_gone(site: Site) -> None:
    (id,) = make_dead(site.store, "mail")

    async def scene() -> None:
        stream, other = Stream(site.app, f"/jobs/{id}"), Stream(site.app, "/queues")
        assert (await stream.next())[0] == (await other.next())[0] == "parts"
        site.store.delete([id], force=True)
        assert await stream.next() == ("gone", {"error": f"no job {id}"})
        assert (await other.next())[0] == "parts"
        await stream.leave()
        await other.leave()

    play(scene)


def test_a_page_that_cannot_be_made_ends_neither_the_others_nor_the_supervisor(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(site.store, "find_jobs", lambda *_, **__: 1 / 0)

    async def scene() -> None:
        broken, well = Stream(site.app, "/jobs"), Stream(site.app, "/queues")
        assert await broken.next() == ("failed", {"error": "internal error: ZeroDivisionError"})
        assert (await well.next())[0] == "parts"
        put(site.store, "mail")
        assert (await well.next())[0] == "parts"
        await broken.leave()
        await well.leave()

    play(scene)
    assert [record.getMessage() for record in caplog.records if record.name == "supervisor"] == [
        "HTTP: the open page /jobs?before= can't be kept up to date"
    ]


def test_a_page_that_the_store_does_not_support_says_so_and_the_others_go_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Unsupported("find jobs", "ask another")

    monkeypatch.setattr(site.store, "find_jobs", refuse)

    async def scene() -> None:
        narrow, well = Stream(site.app, "/jobs"), Stream(site.app, "/queues")
        assert await narrow.next() == ("failed", {"error": "this store can't find jobs: ask another"})
        assert (await well.next())[0] == "parts"
        await narrow.leave()
        await well.leave()

    play(scene)


def test_a_button_refreshes_open_pages_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PERIOD", 60.0)
    (id,) = put(site.store, "mail", delay=50.0)

    async def scene() -> None:
        stream = Stream(site.app, f"/jobs/{id}")
        await stream.next()
        answer = await site._ask(
            "POST", f"/jobs/{id}/retry", None, {"Origin": "http://localhost", "Accept": "application/json"}
        )
        assert answer.json() == {"message": f"Job {id} runs again"}
        event, parts = await stream.next()
        assert event == "parts" and "ready" in parts["job_head"]
        await stream.leave()

    play(scene)


def test_a_search_and_an_older_page_are_not_read_again(site: Site) -> None:
    put(site.store, "mail")

    async def scene() -> None:
        stream = Stream(site.app, "/jobs%3Ftext=x")
        assert await stream.next() == ("parts", {})
        await stream.leave()

    play(scene)


@pytest.mark.parametrize(("page", "status"), [("/nothing", 404), ("/jobs/x", 400), ("/api/status", 404)])
def test_only_pages_have_streams(site: Site, page: str, status: int) -> None:
    async def scene() -> None:
        stream = Stream(site.app, page)
        await stream.task
        assert stream.status == status

    play(scene)

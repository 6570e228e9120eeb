"""Commands on a store that can only enqueue and count: each says in one sentence what it can't do, and what to do instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from supervisor import AsyncClient, Client, StoreError
from supervisor.errors import Unsupported
from tests.unit.cli.conftest import Call, write

NARROW = """
from supervisor import handler, hookimpl
from supervisor.errors import Unsupported
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.records import EnqueueRow

SHARED = MemoryStore()
SHARED.enqueue([EnqueueRow("mail", "null", "post")])
ANSWERED = ("url", "clock", "stats", "paused", "close")


class Narrow:
    def __getattr__(self, name):
        if name in ANSWERED:
            return getattr(SHARED, name)

        def refuse(*arguments, **named):
            raise Unsupported(name.replace("_", " "), "ask its supervisor")

        return refuse

    def enqueue(self, rows):
        if any(row.priority for row in rows):
            raise Unsupported("enqueue with priority", "leave it out")
        return SHARED.enqueue(rows)


@hookimpl
def supervisor_stores():
    return {"narrow": lambda settings, create, base: Narrow()}


@handler
def mail(job): ...
"""


@pytest.fixture
def narrow(call: Call, scanned: None) -> Call:
    write("plugins/narrow.py", NARROW)
    write("supervisor.yaml", "store: {type: narrow}")
    return call


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["enqueue", "mail", "--priority", "1"], "enqueue with priority: leave it out"),
        (["jobs", "list"], "find jobs: ask its supervisor"),
        (["jobs", "list", "--json"], "find jobs: ask its supervisor"),
        (["jobs", "show", "1"], "get: ask its supervisor"),
        (["jobs", "show", "1", "--follow"], "get: ask its supervisor"),
        (["jobs", "cancel", "1"], "cancel: ask its supervisor"),
        (["jobs", "retry", "1"], "retry: ask its supervisor"),
        (["jobs", "delete", "1"], "delete: ask its supervisor"),
        (["jobs", "wait", "1", "--timeout", "1h"], "ended: ask its supervisor"),
        (["dlq", "list"], "find jobs: ask its supervisor"),
        (["dlq", "show", "1"], "get: ask its supervisor"),
        (["dlq", "redrive", "1"], "redrive: ask its supervisor"),
        (["dlq", "redrive", "--all"], "redrive: ask its supervisor"),
        (["dlq", "purge"], "purge: ask its supervisor"),
        (["dlq", "drop-sink", "file"], "sinks: ask its supervisor"),
        (["queues", "pause", "mail"], "pause: ask its supervisor"),
        (["queues", "resume", "mail"], "pause: ask its supervisor"),
        (["queues", "empty", "post", "--yes"], "find jobs: ask its supervisor"),
        (["queues", "move", "post", "mail", "--yes"], "move: ask its supervisor"),
        (["jobs", "retry", "--queue", "post", "--yes"], "find jobs: ask its supervisor"),
        (["bench"], "have a temporary one beside it: bench is only for SQLite and PostgreSQL, and this is narrow"),
    ],
)
def test_a_command_that_the_store_does_not_support_says_what_to_do_instead(
    narrow: Call, arguments: Sequence[str], what: str
) -> None:
    assert narrow(*arguments) == (2, "", f"Error: this store can't {what}\n")


def test_the_other_commands_work(narrow: Call) -> None:
    assert narrow("enqueue", "mail").out == "2\n"
    assert narrow("queues", "list").lines[1].split()[:2] == ["post", "1"]
    assert narrow("status", "--json").json["queues"][0]["queue_size"] == 1
    checked = narrow("status", "--check")
    assert (checked.code, checked.out) == (1, "no supervisor is running: start one with: supervisor run\n")


def test_a_client_raises_it_at_once(narrow: Call) -> None:
    with Client() as client:
        assert client.enqueue("mail") == 2
        assert client.enqueue_many([("mail", 1), ("mail", 2)]) == [3, 4]
        calls: list[tuple[str, Callable[[], object]]] = [
            ("enqueue with priority", lambda: client.enqueue("mail", priority=1)),
            ("get", lambda: client.job(1)),
            ("cancel", lambda: client.cancel(1)),
            ("ended", lambda: client.result(1)),
            ("ended", lambda: list(client.results([1, 2], timeout="1h"))),
        ]
        for what, call in calls:
            with pytest.raises(Unsupported, match=f"^this store can't {what}: "):
                call()
        with pytest.raises(StoreError, match="only a PostgreSQL store takes jobs inside other transactions"):
            client.enqueue("mail", connection=object())


def test_an_async_client_raises_it_too(narrow: Call) -> None:
    async def use() -> None:
        async with AsyncClient() as client:
            assert await client.enqueue("mail") == 2
            calls = [client.enqueue("mail", priority=1), client.job(1), client.cancel(1), client.result(1)]
            for call in calls:
                with pytest.raises(Unsupported):
                    await call
            with pytest.raises(Unsupported):
                [each async for each in client.results([1, 2])]

    asyncio.run(use())


def test_a_copy_names_the_stores_that_it_is_for(call: Call) -> None:
    call("enqueue", "mail")
    answer = call("copy", "--from", "sqlite:///jobs.db", "--to", "memory://")
    what = "give or take all of its jobs: copy is only for SQLite and PostgreSQL, and this is memory://"
    assert answer == (2, "", f"Error: this store can't {what}\n")

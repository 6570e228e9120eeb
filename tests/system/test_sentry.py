"""The plugin sentry.py under a real supervisor, with a server that takes its envelopes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sentry_server import SentryServer
from tests.system.command import ROOT, Command

JOBS = """
    import asyncio, os, time
    import sentry_sdk
    from supervisor import Reject, Retry, Snooze, handler

    RETRIES = {"max_retries": 2, "backoff": {"base": "1ms", "jitter": "none"}}

    def work(job):
        secret = job.payload
        sentry_sdk.set_tag("step", f"{job.handler} {job.attempt}")
        raise LookupError("no paper")

    @handler(**RETRIES)
    def sync(job):
        work(job)

    @handler(**RETRIES)
    async def coroutine(job):
        sentry_sdk.set_tag("own", job.id)
        await asyncio.sleep(0.05)
        work(job)

    @handler(**RETRIES)
    def rejects(job):
        raise Reject("no such customer")

    @handler(max_retries=2, never_retry=(KeyError,))
    def never(job):
        {}["customer"]

    @handler(**RETRIES)
    def asks(job):
        raise Retry("busy", after=0)

    @handler(max_retries=0)
    def snoozes(job):
        raise Snooze("10ms", max_snoozes=2)

    @handler(max_retries=0)
    async def wakes(job):
        if not os.path.exists("woken"):
            open("woken", "w").close()
            raise Snooze("10ms")

    @handler(timeout="300ms", max_retries=0)
    def hangs(job):
        time.sleep(3600)

    @handler(timeout="300ms", max_retries=0)
    async def waits(job):
        await asyncio.sleep(3600)

    @handler(max_retries=0)
    def crashes(job):
        os.abort()

    @handler(max_retries=0)
    def typed(customer: int):
        pass

    @handler(max_retries=0)
    def unstorable(job):
        return object()

    @handler(max_retries=0)
    def works(job):
        return 1
"""

# A worker that is killed loses events that it has not sent yet, so jobs with this fate have workers of their own.
CONFIG = """
workers: {count: 1, groups: {killed: {count: 1, queues: [killed]}}}
handlers: {hangs: {queue: killed}, crashes: {queue: killed}}
"""


@pytest.fixture
def sentry(command: Command) -> Iterator[SentryServer]:
    sentry = SentryServer()
    command.env["SENTRY_DSN"] = sentry.dsn
    command.write(config=CONFIG, plugins={"jobs.py": JOBS})
    shutil.copy(ROOT / "plugins" / "sentry.py", command.folder / "plugins")
    yield sentry
    sentry.close()


def drain(command: Command, *handlers: str) -> dict[str, int]:
    ids = {handler: command.enqueue(handler, {"card": "4111-1111"}) for handler in handlers}
    run = command.run("--drain")
    assert run.wait(60.0) == 0, run.log
    return ids


def error(event: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = event["exception"]["values"][-1]
    return found


def test_each_job_that_has_failed_for_good_is_one_event(command: Command, sentry: SentryServer) -> None:
    raising = ["sync", "coroutine", "rejects", "never", "asks", "typed", "unstorable"]
    handlers = [*raising, "snoozes", "hangs", "waits", "crashes", "works", "wakes"]
    ids = drain(command, *handlers)
    by_handler = {event["tags"]["handler"]: event for event in sentry.events}
    assert sorted(by_handler) == sorted(event["tags"]["handler"] for event in sentry.events) == sorted(handlers[:-2])
    assert {name: error(event)["type"] for name, event in by_handler.items()} == {
        "sync": "LookupError",
        "coroutine": "LookupError",
        "rejects": "Reject",
        "never": "KeyError",
        "asks": "Retry",
        "snoozes": "Snooze",
        "hangs": "Timeout",
        "waits": "Timeout",
        "crashes": "WorkerCrashed",
        "typed": "InvalidPayload",
        "unstorable": "BadResult",
    }
    for name, event in by_handler.items():
        tags = event["tags"]
        last = "3" if name in ("sync", "coroutine", "asks") else "1"
        queue = "killed" if name in ("hangs", "crashes") else "default"
        assert (tags["job"], tags["queue"], tags["attempt"]) == (str(ids[name]), queue, last)
        assert event["fingerprint"][:2] == ["supervisor", name]
        assert "4111-1111" not in str(event)
    for name in ("sync", "coroutine"):
        frames = error(by_handler[name])["stacktrace"]["frames"]
        assert [frame["function"] for frame in frames] == [name, "work"]
        assert frames[-1]["context_line"].strip() == 'raise LookupError("no paper")'
        assert by_handler[name]["tags"]["step"] == f"{name} 3"
    assert by_handler["coroutine"]["tags"]["own"] == ids["coroutine"]
    assert "own" not in by_handler["waits"]["tags"]
    assert [frame["function"] for frame in error(by_handler["never"])["stacktrace"]["frames"]] == ["never"]
    assert by_handler["hangs"]["contexts"]["job"]["stack"]
    assert by_handler["crashes"]["contexts"]["job"]["signal"] == "SIGABRT"

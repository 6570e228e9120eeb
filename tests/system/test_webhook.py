"""The webhook sink of a real supervisor: no dead letter is lost, whatever the server does."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import orjson
import pytest

from tests.http_server import OK, Conversation, Request, Server
from tests.system.command import Command, wait_for

FAILS = """
    from supervisor import handler

    @handler(max_retries=0)
    def fails(job):
        raise ValueError("never")

    @handler
    def works(job):
        return 1
"""


class Receiver(Server):
    """Accepts, unless it is `down` (503) or `hangs`."""

    down = hangs = False

    def __init__(self) -> None:
        super().__init__(self.answer)

    def answer(self, here: Conversation, request: Request) -> None:
        if self.hangs:
            here.hang()
        here.send(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 8\r\n\r\nno paper" if self.down else OK)

    def received(self) -> Counter[int]:
        return Counter(orjson.loads(request.body)["id"] for request in self.requests)


@pytest.fixture
def receiver(command: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    command.env["WEBHOOK_TOKEN"] = "token-of-the-receiver"
    monkeypatch.setenv("WEBHOOK_TOKEN", command.env["WEBHOOK_TOKEN"])  # for the commands that run in this process
    receiver = Receiver()
    yield receiver
    receiver.close()


def write(command: Command, receiver: Receiver, sink: str = "") -> None:
    sink = f"{{type: webhook, url: '{receiver.url}/jobs?token=${{WEBHOOK_TOKEN}}', secret: '${{WEBHOOK_TOKEN}}'{sink}}}"
    command.write(config=f"workers: {{count: 1}}\ndlq: {{sinks: [{sink}]}}\n", plugins={"jobs.py": FAILS})


def wait_delivered(command: Command, ids: list[int]) -> None:
    def all_delivered() -> None:
        assert {command.job(id)["dead_letter"] for id in ids} == {"delivered"}

    wait_for(all_delivered, 30.0)


def test_a_server_that_is_down_has_each_dead_letter_later_and_the_log_no_secret(
    command: Command, receiver: Receiver
) -> None:
    write(command, receiver)
    receiver.down = True
    id = command.enqueue("fails")
    run = command.run()
    line = run.logged(f"job={id} dead letter not accepted by sink webhook")
    assert f"{receiver.url}: 503 Service Unavailable: no paper" in line
    assert command.job(id)["dead_letter"] == "pending"
    receiver.down = False
    wait_delivered(command, [id])
    last = receiver.requests[-1]
    assert {request.headers["webhook-id"] for request in receiver.requests} == {last.headers["webhook-id"]}
    record = orjson.loads(last.body)
    assert (record["errors"][0]["message"], record["finished_at"]) == ("never", command.job(id)["finished_at"])
    assert "token-of-the-receiver" not in run.log


def test_a_server_that_hangs_holds_up_neither_jobs_nor_the_end(command: Command, receiver: Receiver) -> None:
    write(command, receiver, ", timeout: 1s")
    receiver.hangs = True
    bad = command.enqueue("fails")
    run = command.run()
    wait_for(lambda: bool(receiver.requests))
    command.until(command.enqueue("works"), "succeeded")
    run.logged("TimeoutError: no answer within 1s")
    began = time.monotonic()
    run.end()
    assert time.monotonic() - began < 10.0
    assert command.job(bad)["dead_letter"] == "pending"


def test_a_supervisor_killed_in_the_middle_of_a_request_loses_no_dead_letter(
    command: Command, receiver: Receiver
) -> None:
    write(command, receiver)
    receiver.hangs = True
    ids = [command.enqueue("fails") for _ in range(6)]
    run = command.run()
    wait_for(lambda: bool(receiver.requests))
    for id in ids:
        command.until(id, "failed")
    run.kill()
    receiver.hangs = False
    command.run()
    wait_delivered(command, ids)
    assert set(receiver.received()) == set(ids)

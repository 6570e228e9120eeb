"""The text format of the metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from supervisor import events
from supervisor.config.settings import Settings
from supervisor.http.exposition import METRICS, Exposition, Rendered, exposition
from supervisor.http.gauges import STORE_OUTDATED, STORE_SECONDS, of_engine
from supervisor.http.view import View
from supervisor.stores.memory.store import MemoryStore
from supervisor.stores.records import EnqueueRow
from supervisor.telemetry.metrics import Metrics
from tests.docs.pages import codes, page, rows
from tests.gauges import gauges_without_an_engine
from tests.promtool import promtool
from tests.unit.virtual import Virtual


def test_every_metric_has_its_kind_and_labels_of_the_reference() -> None:
    written = {
        codes(name)[0]: (kind, tuple(codes(labels)))
        for name, kind, labels, _ in rows(page("reference/metrics.md").prose)
    }
    known = {name: (it.kind.__name__.removesuffix("MetricFamily").lower(), it.labels) for name, it in METRICS.items()}
    assert known == written
    assert known.keys() == {*Metrics().snapshot(), *gauges_without_an_engine()}


def test_labels_are_escaped_and_a_metric_without_a_value_has_no_sample() -> None:
    snapshot = Metrics().snapshot()
    snapshot["supervisor_queue_depth"] = {'a"b\\\n': {"fresh": 2, "retry": 0}}
    text = exposition(snapshot, generate_latest).decode()
    assert r'supervisor_queue_depth{queue="a\"b\\\n",tier="fresh"} 2.0' in text
    assert "\nsupervisor_retry_success_ratio " not in text
    assert 'supervisor_wait_time_seconds_bucket{le="+Inf"} 0.0' in text


def test_the_text_is_right_in_the_eyes_of_prometheus_and_of_openmetrics() -> None:
    metrics = Metrics()
    metrics(events.DeadLettersPublished("file", [1]))
    metrics(events.QueueDepths({"default": (1, 2)}))
    snapshot = {**metrics.snapshot(), **gauges_without_an_engine()}
    assert promtool("check", "metrics", input=exposition(snapshot, generate_latest).decode()) == ""
    families = text_string_to_metric_families(exposition(snapshot, openmetrics).decode())
    assert {family.name for family in families} == {name.removesuffix("_total") for name in METRICS}


class Reads:
    """A reader of a memory store that counts the reads, and hangs if it is told to."""

    def __init__(self) -> None:
        self.store, self.count, self.hangs = MemoryStore(), 0, False

    async def read(self, call: Any) -> Any:
        self.count += 1
        if self.hangs:
            await asyncio.sleep(3600)
        return call(self.store)

    def close(self) -> None: ...


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time can be set ahead."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def test_the_store_is_read_seldom_however_often_it_is_scraped_and_never_waited_for_long() -> None:
    reads, loop = Reads(), Clock()
    reads.store.enqueue([EnqueueRow("mail", "null", "post", 0)])
    view = View(lambda: "running", Settings, Metrics().snapshot, reader=reads)
    scraped = Exposition(view)

    async def scrape() -> str:
        answers = await asyncio.gather(*(scraped.answer("text/plain") for _ in range(50)))
        assert len({id(answer) for answer in answers}) == 1, "one rendering for all"
        assert answers[0].content_type.startswith("text/plain")
        return answers[0].text.decode()

    waits = 'supervisor_oldest_ready_seconds{queue="post",tier="fresh"}'
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert waits in runner.run(scrape())
        assert waits in runner.run(scrape())
        assert reads.count == 1
        reads.hangs, loop.ahead = True, STORE_SECONDS
        assert waits in runner.run(scrape()), "as read before"
        loop.ahead += STORE_OUTDATED
        assert waits not in runner.run(scrape())
        assert reads.count == 2


def test_openmetrics_is_answered_to_those_who_ask_for_it() -> None:
    async def answer() -> Rendered:
        view = View(lambda: "starting", Settings, Metrics().snapshot)
        return await Exposition(view).answer("application/openmetrics-text; version=1.0.0,text/plain;q=0.5")

    text, content_type = asyncio.run(answer())
    assert content_type.startswith("application/openmetrics-text") and text.endswith(b"# EOF\n")


@pytest.mark.parametrize("accept", ["application/openmetrics-text;version=x;q=", "text/plain;version=\xe9", ";;,="])
def test_an_accept_header_that_makes_no_sense_gets_plain_text(accept: str) -> None:
    async def answer() -> Rendered:
        return await Exposition(View(lambda: "starting", Settings, Metrics().snapshot)).answer(accept)

    assert asyncio.run(answer()).content_type.startswith("text/plain")


def test_the_gauges_of_an_engine_are_those_of_this_moment() -> None:
    here = Virtual(workers=2)
    here.engine.serve(here.backend)
    here.backend.forked[0].come_up()
    here.enqueue("work")
    here.notify()
    found = of_engine(here.engine, ahead=1000.0)
    assert found["workers"] == {"(others)": {"busy": 1, "idle": 0, "starting": 1, "ending": 0}}
    assert found["workers_wanted"] == {"(others)": 2}
    assert (found["leases"], found["store_available"]) == (1, 1)
    assert found["last_claim_timestamp_seconds"] == here.loop.time() + 1000.0
    here.writer.unavailable = True
    assert of_engine(here.engine, ahead=0.0)["store_available"] == 0

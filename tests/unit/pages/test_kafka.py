"""The pages of a store of Kafka: its partitions, and no button for what it can't do."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.errors import Unsupported
from supervisor.stores.records import EnqueueRow
from tests.stores.factories import dead_letters, make_dead, put
from tests.unit.pages.site import Elements, Site

HOW = "send it back from its topic with the command"


def partition(number: int, lag: int | None = 0, **more: Any) -> dict[str, Any]:
    return {
        "topic": "orders", "partition": number, "committed": 5, "lag": lag, "undone": 0, "oldest": None, "job_id": None,
        "held_for": None, **more,
    }  # fmt: skip


def refuse(*_: Any, **__: Any) -> Any:
    raise Unsupported("do this", HOW)


@pytest.fixture
def limited(site: Site) -> Site:
    """A site whose store has one dead letter, and can neither redrive nor delete."""
    make_dead(site.store, "mail")
    site.store.mark_accepted(dead_letters(site.store), "file")
    site.store.limits = {"redrive": HOW, "delete": "cancel it"}
    site.store.redrive = site.store.delete = refuse
    return site


def actions(site: Site, path: str) -> set[str | None]:
    return {form.get("action") for form in Elements(site.get(path).text).all("form") if form.get("method") == "post"}


def test_the_partitions_are_shown_with_the_job_that_holds_each(site: Site) -> None:
    (job,) = put(site.store, "mail")
    held = partition(1, lag=1200, undone=30, oldest=5, job_id=job, held_for=754.0)
    site.announce(partitions=[partition(0, lag=None), held])
    text = site.get("/").text
    table = text[text.index("Table of partitions") :]
    assert f'<a href="/jobs/{job}">{job}</a>' in table
    assert all(shown in table for shown in ("1,200", "12m 34s", "–")) and table.count("orders") > 1
    assert Elements(text).text.index("Committed") > 0


def test_a_store_without_partitions_has_no_table_of_them(site: Site) -> None:
    site.announce()
    assert "partitions" not in site.get("/").text


def test_of_many_partitions_those_with_most_to_do_are_shown(site: Site) -> None:
    lag_of = {number: number for number in range(80)}
    site.announce(partitions=[partition(number, lag) for number, lag in lag_of.items()])
    text = site.get("/").text
    assert text.count('data-key="partition-orders-') == 50 and "30 partitions with less to do" in text
    assert 'data-key="partition-orders-79"' in text and 'data-key="partition-orders-29"' not in text


def test_what_the_store_can_not_do_has_no_button_but_says_what_to_do_instead(limited: Site) -> None:
    (job,) = [job["id"] for job in limited.store.list_jobs(limit=5)]
    assert HOW in limited.get(f"/jobs/{job}").text and HOW in limited.get("/dead-letters").text
    for path in ("/", f"/jobs/{job}", "/dead-letters"):
        assert not {it for it in actions(limited, path) if it and not it.startswith("/queues/")}, path
        assert "Redrive" not in limited.get(path).text and 'name="id"' not in limited.get(path).text, path


def test_an_older_page_that_has_the_button_is_answered_with_what_to_do(limited: Site) -> None:
    (job,) = [job["id"] for job in limited.store.list_jobs(limit=5)]
    for address, form in ((f"/jobs/{job}/delete", None), ("/dead-letters/redrive", {"id": job})):
        answer = limited.post(address, form)
        assert answer.status_code == 409 and HOW in answer.text and "unavailable" not in answer.text
        assert limited.post(address, form, Accept="application/json").json() == {
            "error": f"this store can't do this: {HOW}"
        }


def test_a_job_that_waits_can_be_run_now_and_cancelled(limited: Site) -> None:
    (job,) = limited.store.enqueue([EnqueueRow("mail", "{}", delay=60)])
    assert actions(limited, f"/jobs/{job}") == {f"/jobs/{job}/retry", f"/jobs/{job}/cancel"}

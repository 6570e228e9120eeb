"""The pages: what they show, how they are bounded, and how their buttons work without a script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.http.failures import Failures
from supervisor.stores.records import EnqueueRow
from supervisor.stores.search import FoundJobs
from tests.stores.factories import Clock, dead, dead_letters, make_dead, put, success, take, take_one
from tests.unit.pages.site import Elements, Site

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
PATHS = ("/", "/jobs", "/jobs/1", "/queues", "/dead-letters")


def busy(pid: int, job: int, ran: float, handler: str = "mail") -> dict[str, object]:
    running = {"job_id": job, "handler": handler, "retry_count": 0, "is_retry": False, "running_for": ran}
    return {"pid": pid, "state": "busy", "group": None, "async": False, "current_job": running}


def deliver(site: Site) -> None:
    site.store.mark_accepted(dead_letters(site.store), "file")


def test_every_page_has_landmarks_a_heading_and_a_way_past_the_navigation(site: Site) -> None:
    make_dead(site.store, "mail")
    for path in PATHS:
        answer = site.get(path)
        assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8", path
        page = Elements(answer.text)
        names = [tag for tag, _ in page.tags]
        assert names.count("h1") == 1 and names.count("main") == 1 and {"header", "nav", "footer"} <= {*names}, path
        assert any(link.get("href") == "#main" for link in page.all("a")), path
        assert all("scope" in cell for cell in page.all("th")), path
        assert sum(link.get("aria-current") == "page" for link in page.all("a")) >= 1, path


def test_no_page_asks_another_host_or_has_a_script_or_style_of_its_own(site: Site) -> None:
    make_dead(site.store, "mail")
    for path in (*PATHS, "/jobs/99"):
        answer = site.get(path)
        page = Elements(answer.text)
        addresses = [value for _, of in page.tags for name, value in of.items() if name in ("src", "href", "action")]
        assert all(value and value[0] in "/#" and not value.startswith("//") for value in addresses), path
        assert not any(name.startswith("on") or name == "style" for _, of in page.tags for name in of), path
        assert "<style" not in answer.text and all(of.get("src") for of in page.all("script")), path
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")


def test_static_files_are_kept_by_browsers_until_they_change(site: Site) -> None:
    page = Elements(site.get("/").text)
    for address in (next(page.all("script"))["src"], *(of["href"] for of in page.all("link"))):
        answer = site.get(address or "")
        assert answer.status_code == 200 and "max-age=31536000" in answer.headers["cache-control"]
    assert "max-age=0" in site.get("/static/app.js?v=old").headers["cache-control"]
    assert site.get("/static/secret.py").status_code == 404


def test_what_happens_now_is_on_the_first_page(site: Site) -> None:
    put(site.store, "mail", "mail", queue="post")
    make_dead(site.store, "scan")
    deliver(site)
    site.announce(busy(11, 7, 2.0), busy(12, 8, 100.0), handlers=["mail", "scan"])
    site.factory.clock.step(5)
    text = Elements(site.get("/").text).text
    assert "All well" in text
    assert text.index("1m 45s") < text.index("7s")  # as of now, the longest first
    assert "scan" in text and "Redrive" in text


def test_problems_come_first_with_what_to_do(site: Site) -> None:
    site.announce(handlers=["mail"])
    site.store.pause("post", True)
    put(site.store, "mail", queue="post")
    answer = site.get("/").text
    main = answer[answer.index("<main") :]
    assert main.index("queue post is paused; 1 job waits in it") < main.index('id="totals"')
    assert "resume it with: supervisor queues resume post" in main and "All well" not in main


@pytest.mark.parametrize("queue", ["a/b", "..", HOSTILE, "line\nbreak", "\u202egnp.exe", 'x" onclick="alert(1)'])
def test_hostile_texts_are_shown_harmlessly(site: Site, queue: str) -> None:
    payload = f'{{"html": "{HOSTILE}"}}'
    site.store.enqueue([EnqueueRow(HOSTILE, payload, queue)])
    site.store.pause(queue, True)
    site.announce(busy(11, 1, 2.0, HOSTILE), handlers=[HOSTILE])
    for path in ("/", "/jobs", "/jobs/1", "/queues"):
        answer = site.get(path).text
        page = Elements(answer)
        assert not any(name.startswith("on") for _, of in page.tags for name in of), path
        assert all(of.get("src", "").startswith("/static/") for of in page.all("script")), path  # type: ignore[union-attr]
        assert "\u202e" not in page.text + "".join(of.get("title") or "" for _, of in page.tags), path
    assert HOSTILE in Elements(site.get("/jobs/1").text).text
    buttons = [of["action"] for of in Elements(site.get("/queues").text).all("form") if "resume" in str(of["action"])]
    assert site.post(buttons[0] or "").status_code == 303
    assert queue not in site.store.paused()


def test_long_texts_are_cut_and_can_be_had_whole(site: Site) -> None:
    site.store.enqueue([EnqueueRow("mail", '"' + "x" * 900_000 + '"')])
    answer = site.get("/jobs/1")
    assert len(answer.content) < 40_000
    assert 'href="/jobs/1/payload.txt"' in answer.text and "900,002 characters" in answer.text
    whole = site.get("/jobs/1/payload.txt")
    assert len(whole.content) == 900_002 and whole.headers["content-type"].startswith("text/plain")
    assert whole.headers["content-disposition"] == 'attachment; filename="job-1-payload.txt"'
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert site.get("/jobs/1/nothing.txt").status_code == 404


def test_the_story_of_a_job_has_each_attempt_with_its_texts(site: Site) -> None:
    put(site.store, "mail")
    outcome = dead(take_one(site.store))
    known = replace(
        outcome.failure, message="no such file", traceback="Traceback: here", stderr="last line", stack="in hangs"
    )
    site.store.settle([outcome._replace(failure=known)])
    text = Elements(site.get("/jobs/1").text).text
    for shown in ("no such file", "Traceback: here", "last line", "in hangs", "Attempt 1", "Retry", "Delete…"):
        assert shown in text
    assert "Cancel…" not in text
    assert "Traceback: here" in site.get("/jobs/1/attempt-1.txt").text


def test_many_attempts_with_long_texts_are_bounded(site: Site) -> None:
    (id,) = make_dead(site.store, "mail")
    found = site.store.get(id)
    errors = [
        {**found["errors"][0], "attempt": n, "traceback": "x" * 16_000, "stderr": "y" * 16_000} for n in range(50)
    ]
    site.store.get = lambda _: {**found, "errors": errors}
    answer = site.get(f"/jobs/{id}")
    assert len(answer.content) < 150_000 and "30 earlier attempts" in answer.text
    assert len(site.get(f"/jobs/{id}/attempt-40.txt").content) > 32_000


def test_what_another_program_has_left_out_is_shown_as_nothing(site: Site) -> None:
    (id,) = make_dead(site.store, "mail")
    found = site.store.get(id)
    odd = {
        **found,
        "errors": [{"attempt": 0, "cause": "unreadable", "at": None, "message": "?"}],
        "payload": {"a": float("nan")},
    }
    site.store.get = lambda _: odd
    site.store.find_jobs = lambda *_, **__: FoundJobs([id], iter([odd]), None, 1, True)
    site.announce({"pid": 1}, {"current_job": {"job_id": "x", "running_for": 1.0}}, state="odd")
    for path in ("/", "/jobs", f"/jobs/{id}", "/dead-letters"):
        assert site.get(path).status_code == 200, path


def test_a_job_that_waits_shows_why(site: Site) -> None:
    put(site.store, "mail")
    site.store.pause("default", True)
    assert "Waiting: queue default is paused" in Elements(site.get("/jobs/1").text).text


def test_the_page_of_a_job_names_the_sink_that_has_not_accepted_its_dead_letter(site: Site) -> None:
    make_dead(site.store, "mail")
    shown = Elements(site.get("/jobs/1").text).text
    assert "Waiting: its dead letter waits for sink file, to which it is offered soon" in shown


def test_lists_are_filtered_and_paged(site: Site) -> None:
    ids = put(site.store, *["mail"] * 60, queue="post") + put(site.store, "scan")
    site.store.settle([success(lease) for lease in take(site.store, 1)])
    first = site.get("/jobs?queue=post&handler=mail&state=ready&since=1h")
    assert f'href="/jobs/{ids[59]}"' in first.text and f'href="/jobs/{ids[9]}"' not in first.text
    older = next(of["href"] for of in Elements(first.text).all("a") if of.get("rel") == "next")
    second = site.get(older or "").text
    assert f'href="/jobs/{ids[9]}"' in second and f'href="/jobs/{ids[10]}"' not in second and "Older" not in second
    assert "No job is like that" in site.get("/jobs?handler=nothing").text
    site.store.enqueue([EnqueueRow("scan", '"needle"')])
    assert f'href="/jobs/{ids[-1] + 1}"' in site.get("/jobs?text=needle").text


@pytest.mark.parametrize(
    ("path", "status", "shown"),
    [
        ("/jobs/99", 404, "no job 99"),
        ("/jobs/x", 400, "expected the number of a job"),
        ("/jobs/99999999999999999999", 400, "expected the number of a job"),
        ("/jobs?state=lost", 400, "state: expected one of"),
        ("/jobs?since=then", 400, "since: expected a duration"),
        ("/jobs?before=x", 400, "before: expected"),
        ("/dead-letters?dead_letter=x", 400, "dead_letter: expected one of any, pending, delivered"),
        ("/nothing", 404, "Not Found"),
    ],
)
def test_errors_are_pages_for_browsers_and_json_for_programs(site: Site, path: str, status: int, shown: str) -> None:
    page = site.get(path)
    assert page.status_code == status and "<h1>" in page.text and shown in Elements(page.text).text
    plain = site.get(path, Accept="*/*")
    assert plain.status_code == status and shown in plain.json()["error"]


def test_an_unavailable_store_is_a_page_that_comes_back_and_json_for_the_api(site: Site) -> None:
    site.reader.unavailable = True
    page = site.get("/")
    assert page.status_code == 503 and "the database is locked" in page.text and "data-returns" in page.text
    assert site.get("/api/status").json() == {"error": "the database is locked"}


def test_buttons_work_without_a_script(site: Site) -> None:
    (id,) = make_dead(site.store, "mail")
    deliver(site)
    answer = site.post(f"/jobs/{id}/retry")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{id}")
    assert site.store.get(id)["state"] == "ready"
    assert site.post(f"/jobs/{id}/cancel").status_code == 303
    assert site.store.get(id)["state"] == "cancelled"
    again = site.post(f"/jobs/{id}/cancel")
    assert again.status_code == 409 and "<h1>Not possible</h1>" in again.text
    assert site.post(f"/jobs/{id}/delete").headers["location"] == "/jobs"
    assert site.store.get(id) is None
    assert site.post("/jobs/1/nothing").status_code == 404
    assert site.post("/queues/pause").status_code == 404


def test_a_job_whose_dead_letter_is_pending_is_retried_after_a_question(site: Site) -> None:
    (id,) = make_dead(site.store, "mail")
    page = Elements(site.get(f"/jobs/{id}").text)
    assert "Not every sink has its dead letter yet" in page.text
    assert [of["value"] for of in page.all("input") if of["name"] == "force"] == ["1", "1"]
    assert site.post(f"/jobs/{id}/retry").status_code == 409
    assert site.post(f"/jobs/{id}/retry", {"force": 1}).status_code == 303


def test_dead_letters_are_redriven_one_selected_or_all(site: Site) -> None:
    ids = make_dead(site.store, *["mail"] * 4)
    assert site.post("/dead-letters/redrive").status_code == 400
    assert site.post("/dead-letters/redrive", {"id": ids[0], "force": 1}).status_code == 303
    assert [site.store.get(id)["state"] for id in ids] == ["ready", "failed", "failed", "failed"]
    refused = site.post("/dead-letters/redrive", {"id": ids[1]}, Accept="application/json")
    assert refused.status_code == 409 and "pending" in refused.json()["error"]
    all_of_them = site.post("/dead-letters/redrive", {"all": 1, "force": 1}, Accept="application/json")
    assert all_of_them.json() == {"message": "3 dead letters redriven"}


def test_charts_are_made_while_the_store_is_read_and_only_for_a_page_that_has_some(site: Site) -> None:
    reads: list[int] = []
    site.view.history = lambda: reads.append(site.reader.reads) or {}
    site.get("/jobs")
    assert (reads, site.reader.reads) == ([], 1)
    site.get("/")
    assert (reads, site.reader.reads) == ([2], 2)


def test_a_queue_that_can_not_be_is_not_paused(site: Site) -> None:
    refused = site.post("/queues/pause?queue=%0d%0aX:1", Accept="application/json")
    assert refused.status_code == 400 and "queue: expected" in refused.json()["error"]
    assert site.store.paused() == frozenset()


def test_read_only_shows_no_button_and_changes_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, read_only=True)
    (id,) = make_dead(site.store, "mail")
    for path in (*PATHS, f"/jobs/{id}"):
        page = Elements(site.get(path).text)
        assert not [of for of in page.all("form") if of["method"] == "post"], path
    assert site.post(f"/jobs/{id}/retry").status_code == 403
    site.factory.close()


def test_the_first_page_is_small_with_many_queues_and_workers(site: Site) -> None:
    for n in range(30):
        put(site.store, *["import_contacts_of_customer"] * 5, queue=f"customers/imports/{n}")
    make_dead(site.store, *["import_contacts_of_customer"] * 9)
    site.announce(*(busy(1000 + n, n, 1.5 * n, "import_contacts_of_customer") for n in range(50)), handlers=["x"])
    answer = site.get("/")
    page = Elements(answer.text)
    assert len(answer.content) < 60_000
    static = [next(page.all("script"))["src"], *(of["href"] for of in page.all("link"))]
    assert len(answer.content) + sum(len(site.get(address or "").content) for address in static) < 100_000


def test_failures_are_counted_less_often_the_longer_that_takes() -> None:
    class Store:
        counted = 0

        def failures(self, limit: int) -> list[dict[str, object]]:
            self.counted += 1
            times.now += takes
            return []

    times, takes, store = Clock(), 0.1, Store()
    failures = Failures(times)
    for step, counted in ((0.0, 1), (19.0, 1), (2.0, 2)):
        times.step(step)
        failures.groups(store)  # type: ignore[arg-type]
        assert store.counted == counted
    takes = 0.0
    times.step(21.0)
    for step, counted in ((0.0, 3), (4.0, 3), (2.0, 4)):
        times.step(step)
        failures.groups(store)  # type: ignore[arg-type]
        assert store.counted == counted


def test_thousands_of_queues_do_not_make_a_long_page(site: Site) -> None:
    for n in range(1200):
        put(site.store, "mail", queue=f"q{n}")
    assert "1,150 queues with less to do are left out" in Elements(site.get("/").text).text
    assert len(site.get("/").content) < 60_000

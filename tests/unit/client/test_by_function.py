from __future__ import annotations

import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from supervisor import Client, Job, handler
from supervisor.client import InvalidJob
from supervisor.config.settings import Settings

Jobs = Any


@handler(queue="images", priority=3)
def thumbnail(path: str, width: int = 200) -> None: ...


@handler("daily-report")
def report(job: Job, day: date) -> None: ...


@handler
def untyped(job: Any) -> None: ...


@handler
def takes_options(queue: str, priority: int, delay: str) -> None: ...


@handler("one")
@handler("two")
def with_two_names(job: Job) -> None: ...


def unmarked(job: Job) -> None: ...


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    monkeypatch.chdir(tmp_path)
    with Client("sqlite:///jobs.db", create=True) as client:
        yield client


def fields(jobs: Jobs, id: int, *names: str) -> list[Any]:
    job = jobs.job(id)
    return [job[name] for name in names]


def test_a_function_is_enqueued_with_the_arguments_of_its_call(jobs: Jobs) -> None:
    ids = [jobs.enqueue(thumbnail, "cat.png"), jobs.enqueue(thumbnail, path="cat.png", width=3)]
    assert [fields(jobs, id, "handler", "payload") for id in ids] == [
        ["thumbnail", {"path": "cat.png"}],
        ["thumbnail", {"path": "cat.png", "width": 3}],
    ]
    id = jobs.enqueue(report, day=date(2030, 1, 31))
    assert fields(jobs, id, "handler", "payload") == ["daily-report", {"day": "2030-01-31"}]


def test_a_function_of_the_job_alone_takes_a_payload(jobs: Jobs) -> None:
    assert fields(jobs, jobs.enqueue(untyped, [1]), "payload") == [[1]]
    assert fields(jobs, jobs.enqueue(untyped), "payload") == [None]


def test_options_are_never_taken_for_arguments(jobs: Jobs) -> None:
    id = jobs.options(queue="slow", priority=7, delay="1h").enqueue(takes_options, queue="q", priority=1, delay="d")
    assert fields(jobs, id, "queue", "priority", "state") == ["slow", 7, "scheduled"]
    assert fields(jobs, id, "payload") == [{"queue": "q", "priority": 1, "delay": "d"}]


def test_options_hold_for_every_job_by_name_too(jobs: Jobs) -> None:
    slow = jobs.options(queue="slow", max_retries=0)
    ids = [slow.enqueue("anything", {"a": 1}), slow.enqueue(untyped)]
    assert [fields(jobs, id, "queue", "max_retries") for id in ids] == [["slow", 0], ["slow", 0]]
    with pytest.raises(TypeError, match="widht"):
        slow.enqueue("anything", widht=1)


def test_a_wrong_option_is_named(jobs: Jobs) -> None:
    with pytest.raises(InvalidJob, match="dely: unknown key, did you mean 'delay'"):
        jobs.options(dely="1s").enqueue(thumbnail, "a")
    with pytest.raises(InvalidJob, match="priority: expected a whole number"):
        jobs.options(priority="high").enqueue(thumbnail, "a")


def test_the_decorator_has_the_queue_and_the_priority(jobs: Jobs, tmp_path: Path) -> None:
    assert fields(jobs, jobs.enqueue(thumbnail, "a"), "queue", "priority") == ["images", 3]
    assert fields(jobs, jobs.options(queue="q", priority=0).enqueue(thumbnail, "a"), "queue", "priority") == ["q", 0]
    assert fields(jobs, jobs.enqueue("thumbnail", {"path": "a"}), "queue", "priority") == ["default", 0]


def test_the_queue_of_the_config_goes_before_that_of_the_decorator(tmp_path: Path) -> None:
    settings = Settings(base=tmp_path, handlers={"thumbnail": {"queue": "configured"}})
    with Client(settings, create=True) as jobs:
        assert fields(jobs, jobs.enqueue(thumbnail, "a"), "queue") == ["configured"]


def test_nothing_is_enqueued_for_arguments_that_do_not_fit(jobs: Jobs) -> None:
    with pytest.raises(TypeError, match="thumbnail: missing a required argument: 'path'"):
        jobs.enqueue(thumbnail)
    with pytest.raises(InvalidJob, match=r"thumbnail: payload\.width: expected a valid integer"):
        jobs.enqueue(thumbnail, "a", width="wide")
    with pytest.raises(InvalidJob, match="thumbnail: Unable to serialize unknown type: <class 'object'>"):
        jobs.enqueue(thumbnail, object())
    with pytest.raises(InvalidJob, match="payload: object is not JSON"):
        jobs.enqueue(untyped, object())
    assert jobs.job(1) is None


def test_a_function_without_one_name_is_refused(jobs: Jobs) -> None:
    with pytest.raises(InvalidJob, match="unmarked is no handler: put @handler above it"):
        jobs.enqueue(unmarked, 1)
    with pytest.raises(InvalidJob, match="with_two_names serves two, one: enqueue by one of these names"):
        jobs.enqueue(with_two_names, 1)


TYPED_CALLS = """
from supervisor import AsyncClient, Client, Job, handler

@handler(queue="images")
def thumbnail(path: str, width: int = 200) -> str:
    return path

@handler
def report(job: Job, day: int) -> None: ...

@handler
def untyped(job: Job) -> None: ...

jobs = Client()
a: int = jobs.enqueue(thumbnail, "cat.png", width=3)
b: int = jobs.enqueue(report, day=1)
c: int = jobs.enqueue(untyped, {"any": 1})
d: int = jobs.enqueue("thumbnail", {"path": "a"}, queue="q")
e: int = jobs.options(priority=5, delay="10s").enqueue(thumbnail, path="a")

async def main(later: AsyncClient) -> int:
    return await later.options(priority=1).enqueue(thumbnail, path="a") + await later.enqueue("thumbnail")
"""
WRONG_CALLS = (
    'jobs.enqueue(thumbnail, "cat.png", widht=3)',
    "jobs.enqueue(thumbnail, 3)",
    "jobs.enqueue(thumbnail)",
    'jobs.enqueue(report, day="monday")',
    "jobs.options(prio=5)",
    'jobs.options(priority=5).enqueue(thumbnail, width="wide", path="a")',
    'jobs.enqueue("thumbnail", queue=3)',
)


def test_a_type_checker_knows_the_arguments(tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(TYPED_CALLS + "\n".join(WRONG_CALLS))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", "calls.py"]
    found = subprocess.run(
        [*command, "--cache-dir", str(tmp_path)], cwd=tmp_path, capture_output=True, text=True
    ).stdout
    first = TYPED_CALLS.count("\n") + 1
    wrong = {int(line.split(":")[1]) for line in found.splitlines() if ": error:" in line}
    assert wrong == set(range(first, first + len(WRONG_CALLS))), found


def test_the_name_of_a_handler_may_be_given_by_keyword(jobs: Jobs) -> None:
    assert fields(jobs, jobs.enqueue(handler="anything", payload=[1], priority=2), "handler", "payload") == [
        "anything",
        [1],
    ]
    with pytest.raises(TypeError, match="handler"):
        jobs.enqueue(payload=1)


def test_a_parameter_may_have_the_name_handler(jobs: Jobs) -> None:
    assert fields(jobs, jobs.enqueue(takes_handler, handler="h"), "payload") == [{"handler": "h"}]


@handler
def takes_handler(handler: str) -> None: ...

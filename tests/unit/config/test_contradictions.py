from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.config.contradictions import STORE_SUFFIXES, handler_problems
from supervisor.config.loading import load
from supervisor.errors import ConfigError
from supervisor.handlers import HandlerInfo
from supervisor.stores.records import EnqueueRow
from supervisor.stores.sqlite.store import SqliteStore


@pytest.mark.parametrize(
    ("options", "config", "expected"),
    [
        ({"heartbeat": "100ms", "heartbeat_timeout": "600ms"}, "", []),
        ({"heartbeat_timeout": "none", "timeout": "1ms"}, "", []),
        ({}, "workers: {heartbeat: 20s}", []),  # reported of the config
        ({"heartbeat_timeout": 1}, "", ["heartbeat_timeout: expected at least twice its heartbeat, got 1"]),
        ({"heartbeat_timeout": 1}, "workers: {heartbeat: 500ms}", []),
        ({"heartbeat": "2s", "heartbeat_timeout": "3s"}, "", ["heartbeat: expected at most half of its heartbeat_timeout, got 2s"]),
        ({"heartbeat": "2s", "heartbeat_timeout": "3s"}, "handlers: {h: {heartbeat: 1s}}", []),
        ({"heartbeat": "2s", "heartbeat_timeout": "3s"}, "handlers: {h: {heartbeat: 9s, heartbeat_timeout: 9s}}", []),
        ({"heartbeat_timeout": "3s"}, "handlers: {h: {heartbeat: 2s}}", ["heartbeat_timeout: expected at least twice its heartbeat, got 3s"]),
        ({"heartbeat": "16s", "heartbeat_timeout": "none"}, "", ["heartbeat: expected at most half of lease.ttl, got 16s"]),
    ],
)  # fmt: skip
def test_the_heartbeat_of_a_decorator_is_compared_with_the_settings(
    write: Any, options: dict[str, Any], config: str, expected: list[str]
) -> None:
    try:
        settings = load(write(config), {})
    except ConfigError as error:
        assert error.settings is not None
        settings = error.settings
    found = handler_problems(settings, HandlerInfo("h", options, "f.py", 1))
    assert found == [f"handler 'h': {problem}" for problem in expected]


@pytest.mark.parametrize(
    ("options", "config", "key"),
    [({"nice": 3}, "", "nice"), ({"rlimits": {"files": 64}}, "", "rlimits"), ({}, "handlers: {h: {nice: 0}}", "nice")],
)
def test_an_async_handler_has_no_limits_of_its_process(
    write: Any, options: dict[str, Any], config: str, key: str
) -> None:
    settings = load(write(config), {})
    found = handler_problems(settings, HandlerInfo("h", options, "f.py", 1, is_async=True))
    assert found == [f"handler 'h': {key}: expected a plain function: async jobs share one process"]
    assert handler_problems(settings, HandlerInfo("h", options, "f.py", 1)) == []


def test_no_contradiction_is_reported_of_a_value_that_is_wrong_already(errors: Any) -> None:
    assert len(errors("workers: {heartbeat: 20, heartbeat_timeout: 1s}")) == 1


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            "{a: {queues: [x, y]}, b: {queues: [y]}}",
            "workers.groups.b.queues: expected each queue in one group only: y is in workers.groups.a too",
        ),
        ("{a: {queues: []}}", "workers.groups.a.queues: expected a list of queue names"),
        ("{a: {queues: all}}", "workers.groups.a.queues: expected a list of queue names, got all"),
        ("{a: {count: 2}}", "workers.groups.a.queues: missing; expected a list of queue names"),
        ("{a: {queues: [x], count: {min: 3, max: 2}}}", "workers.groups.a.count.min: expected at most its max, got 3"),
        ("{a: {queues: [x], count: {min: 0, max: 2}}}", "workers.groups.a.count.min: expected a whole number from 1 to 1000, got 0"),
        ("{a: {queues: [x], max_jobs: 2}}", "workers.groups.a.max_jobs: unknown key"),
    ],
)  # fmt: skip
def test_a_queue_has_one_group_and_a_group_has_queues_and_a_right_count(
    errors: Any, config: str, expected: str
) -> None:
    assert [error for error in errors(f"workers: {{groups: {config}}}") if expected in error]


def test_the_least_number_of_workers_is_at_most_the_most(errors: Any) -> None:
    (error,) = errors("workers: {count: {min: 3, max: 2}}")
    assert "workers.count.min: expected at most its max, got 3" in error


def test_the_hard_limit_of_memory_is_above_the_soft_one(errors: Any) -> None:
    (error,) = errors("workers: {max_memory: 500MB, max_memory_hard: 500MB}")
    assert "workers.max_memory_hard: expected more than workers.max_memory" in error


def sinks(*paths: str) -> str:
    entries = "".join(f"\n    - {{type: file, name: s{n}, path: {path}}}" for n, path in enumerate(paths))
    return f"store: sqlite:///data/jobs.db\ndlq:\n  sinks:{entries}\n"


@pytest.mark.parametrize("suffix", STORE_SUFFIXES)
def test_a_dead_letter_file_must_not_be_a_file_of_the_store(errors: Any, suffix: str) -> None:
    (error,) = errors(sinks(f"x/../data/jobs.db{suffix}"))
    assert "dlq.sinks[0].path: expected a file of its own, not a file of the store" in error


def test_a_dead_letter_file_must_not_be_in_the_folder_of_the_locks(errors: Any) -> None:
    (error,) = errors(sinks("data/jobs.db.notify/dead.jsonl"))
    assert "not a file of the store" in error


def test_two_sinks_must_not_share_a_file(errors: Any, tmp_path: Path) -> None:
    (error,) = errors(sinks("dead.jsonl", "x/../dead.jsonl", "other.jsonl"))
    assert "dlq.sinks[1].path: expected a file of its own, not that of dlq.sinks[0]" in error
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "b.jsonl").hardlink_to(tmp_path / "a.jsonl")
    (tmp_path / "c.jsonl").symlink_to("a.jsonl")
    assert len(errors(sinks(*(str(tmp_path / name) for name in ("a.jsonl", "b.jsonl", "c.jsonl"))))) == 2


def test_two_sinks_must_not_share_a_file_that_is_yet_to_be_made_behind_a_link(errors: Any, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    (error,) = errors(sinks(f"{tmp_path}/there/dead.jsonl", f"{tmp_path}/link/dead.jsonl"))
    assert "dlq.sinks[1].path: expected a file of its own, not that of dlq.sinks[0]" in error


def test_the_names_of_the_files_of_a_store_are_known(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db", create=True)
    store.join("one", "host", 1)
    store.enqueue([EnqueueRow("mail", "{}")])
    names = {path.name for path in tmp_path.iterdir()}
    store.leave()
    store.close()
    assert names <= {f"jobs.db{suffix}" for suffix in STORE_SUFFIXES}
    assert len(names) == len(STORE_SUFFIXES) - 1, "all but -journal"

"""`supervisor bench` measures, and leaves nothing behind: no folder, no process, nothing in the user's store."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.system.command import TIMEOUT, Command, wait_for

USER_PLUGIN = {
    "loaded.py": """
        from pathlib import Path
        from supervisor import handler, hookimpl

        Path(__file__).with_name("imported").touch()

        @hookimpl
        def supervisor_sinks():
            return {"junk": Junk}

        class Junk:
            def __init__(self):
                Path(__file__).with_name("opened").touch()
    """
}
FAILING_MIDDLEWARE = """
from supervisor import hookimpl

@hookimpl(wrapper=True)
def supervisor_run(job):
    yield
    raise ValueError("no job succeeds")
"""
MANY_JOBS = "10000000"


def folders(command: Command) -> list[Path]:
    return sorted(command.folder.glob("supervisor-bench-*"))


def start(command: Command, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command.arguments("bench", *arguments), cwd=command.folder, env=command.env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def wait_for_latencies(command: Command) -> None:
    wait_for(lambda: any((folder / "stamps").exists() for folder in folders(command)), TIMEOUT, 0.001)


def test_bench_prints_the_rates_and_changes_nothing_of_the_user(command: Command) -> None:
    command.write(
        config="workers: {count: 1, queues: [mail, reports]}\nhandlers: {mail: {timeout: 1s}}\ndlq: {sinks: [{type: junk}]}\n",
        plugins=USER_PLUGIN,
    )
    before = sorted(command.folder.rglob("*"))
    ended = command.call("bench", "--jobs", "40", "--json")
    assert (ended.code, ended.err) == (0, "")
    figures = json.loads(ended.out)
    assert (figures["jobs"], figures["workers"], figures["synchronous"]) == (40, 1, "full")
    assert all(figures[rate] > 0 for rate in ("enqueue_per_second", "enqueue_many_per_second", "drain_per_second"))
    assert 0 < figures["idle_latency_ms"]["p50"] <= figures["idle_latency_ms"]["p99"]
    assert sorted(command.folder.rglob("*")) == before


def test_bench_prints_a_line_per_figure_and_names_the_store(command: Command) -> None:
    command.write(config="workers: {count: 1}\nstore: {url: 'sqlite:///data/jobs.db', synchronous: normal}\n")
    (command.folder / "data").mkdir()
    ended = command.call("bench", "--jobs", "40")
    assert (ended.code, ended.err) == (0, "")
    heading, *rows = ended.out.splitlines()
    assert "40 jobs" in heading
    assert "data/jobs.db" in heading
    assert "synchronous=normal" in heading
    assert [row[:16].rstrip() for row in rows] == ["enqueue one by o", "enqueue in bulk", "drain", "latency when idl"]
    assert list((command.folder / "data").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(command: Command, number: signal.Signals) -> None:
    bench = start(command, "--jobs", "1000000" if number is signal.SIGHUP else "300")
    wait_for(lambda: folders(command) != [])
    if number is not signal.SIGHUP:
        wait_for_latencies(command)
    bench.send_signal(number)
    _out, err = bench.communicate(timeout=TIMEOUT)
    assert (bench.returncode, err) == (128 + number, "")
    assert folders(command) == []


def test_processes_of_a_killed_bench_end_and_the_next_bench_removes_its_folder(command: Command) -> None:
    bench = start(command, "--jobs", "300")
    wait_for_latencies(command)
    bench.kill()
    bench.communicate(timeout=TIMEOUT)
    wait_for(lambda: command.processes() == {})
    (left,) = folders(command)
    assert command.call("bench", "--jobs", "1").code == 0
    assert not left.exists()


def test_a_folder_of_the_user_with_a_similar_name_is_not_touched(command: Command) -> None:
    notes = command.folder / "supervisor-bench-notes" / "of mine"
    notes.parent.mkdir()
    notes.touch()
    assert command.call("bench", "--jobs", "1").code == 0
    assert notes.exists()


def test_two_benches_run_beside_each_other(command: Command) -> None:
    bench = start(command, "--jobs", MANY_JOBS)
    wait_for(lambda: any((folder / "jobs.db").exists() for folder in folders(command)))
    (first,) = folders(command)
    assert command.call("bench", "--jobs", "1").code == 0
    assert folders(command) == [first]
    bench.send_signal(signal.SIGTERM)
    bench.communicate(timeout=TIMEOUT)
    assert folders(command) == []


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ("wrokers: {}\n", "wrokers"),
        ("store: memory://\n", "exists in one process only"),
        ("store: {type: mine}\n", "only for SQLite and PostgreSQL"),
        ("store: sqlite:///gone/jobs.db\n", "gone: No such file or directory"),
    ],
)
def test_a_mistake_is_reported_in_one_line(command: Command, config: str, error: str) -> None:
    command.write(config=config)
    ended = command.call("bench")
    assert ended.code == 2
    assert ended.out == ""
    assert len(ended.err.splitlines()) == 1
    assert error in ended.err


def test_a_small_payload_limit_does_not_affect_the_jobs_of_bench(command: Command) -> None:
    command.write(config="workers: {count: 1}\nlimits: {payload: 2B}\n")
    ended = command.call("bench", "--jobs", "5", "--json")
    assert (ended.code, ended.err) == (0, "")


def test_jobs_that_fail_make_bench_fail(command: Command) -> None:
    installed = command.folder / "site"
    (installed / "failing-1.0.dist-info").mkdir(parents=True)
    (installed / "failing-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: failing\nVersion: 1.0\n"
    )
    (installed / "failing-1.0.dist-info" / "entry_points.txt").write_text("[supervisor]\nfailing = failing\n")
    (installed / "failing.py").write_text(FAILING_MIDDLEWARE)
    command.env["PYTHONPATH"] += f":{installed}"
    ended = command.call("bench", "--jobs", "5")
    assert ended.code == 1
    assert ended.err.splitlines()[-1] == "Error: the benchmark failed: 0 of 10 jobs succeeded"
    assert folders(command) == []

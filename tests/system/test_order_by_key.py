"""Jobs of a key run one at a time and in order over all supervisors, whichever of them are killed."""

from __future__ import annotations

from collections import defaultdict

from tests.system.command import Command, wait_for
from tests.system.killed_in_turn import kill_in_turn

CONFIG = """
workers: {count: 3}
retry: {max_retries: 3, backoff: {base: 20ms, jitter: none}}
"""
# A lock file that nobody else may hold: a process that is killed lets go of it.
PLUGIN = {
    "book.py": """
        import fcntl, time
        from supervisor import handler
        from tests.system.gates import wait_for_gate

        @handler
        def book(job):
            key, number = job.payload["key"], job.payload["number"]
            with open(f"{key}.lock", "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with open(f"{key}.log", "a") as log:
                    log.write(f"{number}\\n")
                wait_for_gate(number // 15)
                time.sleep(0.01)
                if number % 7 == 3 and job.attempt == 1:
                    raise ValueError("again")
    """
}
KEYS, JOBS, BATCHES = 5, 60, 4


def test_no_two_jobs_of_a_key_run_at_once_and_each_is_in_its_turn(command: Command) -> None:
    command.write(CONFIG, PLUGIN)
    jobs = [
        {"handler": "book", "payload": {"key": f"k{n % KEYS}", "number": n // KEYS}, "key": f"k{n % KEYS}"}
        for n in range(KEYS * JOBS)
    ]
    command.enqueue_many(jobs)
    kill_in_turn(command, BATCHES, seed=7)

    def all_ended() -> None:
        assert len(command.jobs("--state", "succeeded")) == len(jobs)

    wait_for(all_ended, 30.0)
    assert_in_order(command)
    errors = [error for job in command.jobs() for error in job["errors"]]
    assert {(error["type"], error["message"]) for error in errors} == {("ValueError", "again")}


def assert_in_order(command: Command) -> None:
    """Each number comes after the one before has run for the last time; one may come again after a kill or a failure."""
    seen: dict[str, list[int]] = defaultdict(list)
    for n in range(KEYS):
        for line in (command.folder / f"k{n}.log").read_text().splitlines():
            seen[f"k{n}"].append(int(line))
    for numbers in seen.values():
        assert numbers == sorted(numbers)
        assert set(numbers) == set(range(JOBS))

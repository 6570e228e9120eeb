"""Jobs that wait for each other run in their order, with the results of their parents, whichever supervisors are killed."""

from __future__ import annotations

import pytest

from tests.system.command import Command, wait_for
from tests.system.gates import open_gate
from tests.system.killed_in_turn import kill_in_turn

CONFIG = """
workers: {count: 3}
retry: {max_retries: 3, backoff: {base: 20ms, jitter: none}}
"""
PLUGIN = {
    "parts.py": """
        import time
        from pathlib import Path
        from supervisor import Reject, handler
        from tests.system.gates import wait_for_gate

        @handler
        def fetch(job):
            wait_for_gate(job.payload // 23)
            time.sleep(0.02)
            if job.payload < 0 and not Path("repaired").exists():
                raise Reject("a bad part")
            if job.payload % 5 == 1 and job.attempt == 1:
                raise ValueError("again")
            return job.payload * 2

        @handler
        def merge(job):
            return sum(job.parents.values())

        @handler
        async def report(job):
            return {"merged": list(job.parents.values()), "failed": len(job.failed_parents)}
    """
}
WORKFLOWS, PARTS, BATCHES = 30, 3, 4


def workflow(n: int) -> list[dict[str, object]]:
    parts = [f"{n}.{part}" for part in range(PARTS)]
    return [
        *[{"handler": "fetch", "payload": n * PARTS + part, "name": name} for part, name in enumerate(parts)],
        {"handler": "merge", "name": f"{n}.merge", "after": parts},
        {"handler": "report", "after": [f"{n}.merge"]},
    ]


def open_gates(command: Command) -> None:
    for number in (-1, 0):
        open_gate(command.folder, number)


def test_workflows_end_with_the_right_results_although_supervisors_are_killed(command: Command) -> None:
    command.write(CONFIG, PLUGIN)
    jobs = [job for n in range(WORKFLOWS) for job in workflow(n)]
    command.enqueue_many(jobs)
    kill_in_turn(command, BATCHES, seed=11)

    def all_ended() -> None:
        assert len(command.jobs("--state", "succeeded")) == len(jobs)

    wait_for(all_ended, 30.0)
    found = [job["result"] for job in command.jobs() if job["handler"] == "report"]
    expected = [sum(2 * (n * PARTS + part) for part in range(PARTS)) for n in range(WORKFLOWS)]
    assert sorted(result["merged"][0] for result in found) == expected
    assert {result["failed"] for result in found} == {0}


def test_jobs_go_on_once_a_failed_parent_has_been_run_again(command: Command) -> None:
    command.write(CONFIG, PLUGIN)
    open_gates(command)
    command.enqueue_many([
        {"handler": "fetch", "payload": -4, "name": "bad"},
        {"handler": "fetch", "payload": 2, "name": "good"},
        {"handler": "report", "after": ["bad", "good"], "on_parent_failed": "run"},
        {"handler": "report", "after": ["bad", "good"], "on_parent_failed": "wait"},
        {"handler": "merge", "after": ["bad", "good"], "name": "merge"},
        {"handler": "report", "after": ["merge"]},
    ])  # fmt: skip
    command.run()

    def states() -> list[str]:
        return [job["state"] for job in reversed(command.jobs())]

    wait_for(lambda: states() == ["failed", "succeeded", "succeeded", "blocked", "cancelled", "cancelled"])
    assert command.job(3)["result"] == {"merged": [None, 4], "failed": 1}
    assert command.job(4)["waiting_because"].startswith("its parent, job 1 (fetch), has failed: run that again with:")
    assert command.job(6)["errors"][-1]["message"] == "its parent, job 5, was cancelled"
    (command.folder / "repaired").touch()
    command.ask("jobs", "retry", "1")
    wait_for(lambda: states() == ["succeeded"] * 6)
    assert command.job(4)["result"] == {"merged": [-8, 4], "failed": 0}
    assert command.job(6)["result"] == {"merged": [-4], "failed": 0}


@pytest.mark.parametrize("ends", ["drained", "left"])
def test_a_drain_waits_for_children_that_can_go_on(command: Command, ends: str) -> None:
    command.write(CONFIG + "shutdown: {grace: 300ms}\n", PLUGIN)
    open_gates(command)
    payload = 2 if ends == "drained" else -1
    command.enqueue_many([
        {"handler": "fetch", "payload": payload, "name": "part"},
        {"handler": "report", "after": ["part"], "on_parent_failed": "wait"},
    ])  # fmt: skip
    assert command.run("--drain").wait() == (0 if ends == "drained" else 4)
    assert command.job(2)["state"] == ("succeeded" if ends == "drained" else "blocked")

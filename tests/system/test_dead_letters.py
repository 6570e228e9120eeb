"""A dead letter stays pending until every sink has accepted it, whatever the sinks do meanwhile."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

import orjson

from tests.system.command import Command, Running, wait_for

JOBS = {
    "jobs.py": """
        from supervisor import handler

        @handler(max_retries=0)
        def fails(job):
            raise ValueError("never")

        @handler(max_retries=1, backoff={"base": "100ms"})
        def twice(job):
            raise ValueError("neither time")

        @handler
        def noop(job):
            pass
    """,
    # Each sink records what it was offered; files in the folder control how it behaves.
    "sinks.py": """
        import json, os, sys, time
        from supervisor import hookimpl

        class Recording:
            def __init__(self, file):
                self.name = file

            def publish(self, dead_letters):
                if os.path.exists(self.name + ".exits"):
                    sys.exit(3)
                if os.path.exists(self.name + ".down"):
                    raise ConnectionError("nobody there")
                with open(self.name, "a") as file:
                    for dead_letter in dead_letters:
                        file.write(json.dumps(dead_letter) + "\\n")
                        dead_letter.clear()
                ids = [json.loads(line)["id"] for line in open(self.name)]
                while os.path.exists(self.name + ".hangs"):
                    time.sleep(0.01)
                return ids

            def close(self):
                open(self.name + ".closed", "a").close()

        @hookimpl
        def supervisor_sinks():
            return {"recording": Recording}
    """,
}
TWO = "workers: {count: 2}\ndlq: {sinks: [{type: recording, name: a, file: a}, {type: recording, name: b, file: b}]}\n"
FILE = "workers: {count: 2}\ndlq: {sinks: [{type: file, path: dead.jsonl}]}\n"


def dead_letters(command: Command, sink: str) -> list[dict[str, Any]]:
    file = command.folder / sink
    return [orjson.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []


def offers(command: Command, sink: str) -> Counter[int]:
    return Counter(dead_letter["id"] for dead_letter in dead_letters(command, sink))


def touch(command: Command, name: str) -> None:
    (command.folder / name).touch()


def serve(command: Command, config: str) -> Running:
    command.write(config=config, plugins=JOBS)
    return command.run()


def fail(command: Command, count: int) -> list[int]:
    return [command.enqueue("fails") for _ in range(count)]


def wait_delivered(command: Command, ids: list[int], timeout: float = 15.0) -> None:
    def all_delivered() -> None:
        assert {command.job(id)["dead_letter"] for id in ids} == {"delivered"}

    wait_for(all_delivered, timeout)


def wait_offered(command: Command, sink: str, ids: list[int]) -> None:
    def all_offered() -> None:
        assert set(ids) <= set(offers(command, sink))

    wait_for(all_offered)


def test_the_file_sink_has_the_whole_record(command: Command) -> None:
    serve(command, FILE)
    id = command.enqueue("twice", {"to": "me"})
    wait_delivered(command, [id])
    (dead_letter,) = dead_letters(command, "dead.jsonl")
    assert (dead_letter["id"], dead_letter["handler"], dead_letter["payload"], dead_letter["attempt"]) == (
        id,
        "twice",
        {"to": "me"},
        2,
    )
    assert [error["message"] for error in dead_letter["errors"]] == ["neither time"] * 2
    assert "ValueError" in dead_letter["errors"][-1]["traceback"]


def test_a_new_file_is_begun_when_the_old_one_is_moved(command: Command) -> None:
    serve(command, FILE)
    (first,) = fail(command, 1)
    wait_delivered(command, [first])
    (command.folder / "dead.jsonl").rename(command.folder / "dead.jsonl.1")
    (second,) = fail(command, 1)
    wait_delivered(command, [second])
    assert offers(command, "dead.jsonl.1") == {first: 1}
    assert offers(command, "dead.jsonl") == {second: 1}


def test_two_sinks_have_each_dead_letter_once(command: Command) -> None:
    run = serve(command, TWO)
    ids = fail(command, 30)
    wait_delivered(command, ids)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    for sink in ("a", "b"):
        assert offers(command, sink) == dict.fromkeys(ids, 1)
        assert (command.folder / f"{sink}.closed").exists()


def test_a_dead_letter_is_pending_while_a_sink_is_down_and_is_offered_to_the_other_once(command: Command) -> None:
    command.write(config=TWO, plugins=JOBS)
    touch(command, "b.down")
    ids = fail(command, 5)
    run = command.run()
    wait_offered(command, "a", ids)
    run.logged("dead letter not accepted by sink b")
    assert "ConnectionError: nobody there" in run.log
    assert {command.job(id)["dead_letter"] for id in ids} == {"pending"}
    (command.folder / "b.down").unlink()
    wait_delivered(command, ids, timeout=30)
    assert offers(command, "a") == offers(command, "b") == dict.fromkeys(ids, 1)


def test_a_sink_that_exits_does_not_end_the_supervisor(command: Command) -> None:
    command.write(config=TWO, plugins=JOBS)
    touch(command, "a.exits")
    ids = fail(command, 2)
    run = command.run()
    run.logged("SystemExit")
    (command.folder / "a.exits").unlink()
    wait_delivered(command, ids, timeout=30)


def test_a_sink_that_hangs_holds_up_neither_another_sink_nor_jobs_nor_the_end(command: Command) -> None:
    command.write(config=TWO, plugins=JOBS)
    touch(command, "a.hangs")
    first = fail(command, 1)
    run = command.run()
    wait_offered(command, "a", first)
    for _ in range(3):
        later = fail(command, 3)
        wait_offered(command, "b", later)
    command.until(command.enqueue("noop"), "succeeded")
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert "WARNING sink a: its publish has not returned at the end, and is cut off" in run.log
    assert {job["dead_letter"] for job in command.jobs("--state", "failed")} == {"pending"}
    (command.folder / "a.hangs").unlink()
    command.run()
    wait_delivered(command, [job["id"] for job in command.jobs("--state", "failed")])
    assert set(offers(command, "b").values()) == {1}


def test_a_forced_end_waits_for_no_sink(command: Command) -> None:
    command.write(config=TWO, plugins=JOBS)
    touch(command, "a.hangs")
    ids = fail(command, 1)
    run = command.run()
    wait_offered(command, "a", ids)
    run.signal(signal.SIGTERM)
    run.logged("supervisor stopping")
    run.signal(signal.SIGINT)
    assert run.wait() == 3
    (command.folder / "a.hangs").unlink()


def test_a_supervisor_killed_before_it_records_an_acceptance_publishes_the_dead_letter_again(command: Command) -> None:
    command.write(config=TWO, plugins=JOBS)
    touch(command, "a.hangs")
    ids = fail(command, 3)
    run = command.run()
    wait_for(lambda: bool(offers(command, "a")))  # whichever has failed first
    for id in ids:
        command.until(id, "failed")
    run.kill()
    offered = offers(command, "a")
    (command.folder / "a.hangs").unlink()
    assert {command.job(id)["dead_letter"] for id in ids} == {"pending"}
    command.run()
    wait_delivered(command, ids)
    assert offers(command, "a") == offered + Counter(ids)
    assert {(dead_letter["id"], dead_letter["attempt"]) for dead_letter in dead_letters(command, "a")} == {
        (id, 1) for id in ids
    }


def test_without_any_configuration_failed_jobs_are_listed_and_run_again_in_bulk(command: Command) -> None:
    command.write(config="workers: {count: 1}\n", plugins=JOBS)
    run = command.run()
    ids = fail(command, 3)
    for id in ids:
        command.until(id, "failed")
    assert {command.job(id)["dead_letter"] for id in ids} == {"delivered"}
    assert command.ask("dlq", "list", "--json").count("\n") == 3
    run.end()
    assert command.ask("dlq", "redrive", "--all") == f"redriven: {' '.join(map(str, ids))}\n"
    assert command.call("run", "--drain").code == 0
    assert command.ask("dlq", "purge", "--yes") == "purged: 3 jobs\n"


def test_dead_letters_can_be_switched_off(command: Command) -> None:
    serve(command, "dlq: {enabled: false, sinks: [{type: file, path: dead.jsonl}]}\n")
    (id,) = fail(command, 1)
    command.until(id, "failed")
    assert command.job(id)["dead_letter"] is None
    assert command.jobs("--state", "failed") != []
    assert "no dead letters" in command.ask("dlq", "list")
    assert not (command.folder / "dead.jsonl").exists()


def test_operator_commands_refuse_a_pending_dead_letter_unless_forced(command: Command) -> None:
    command.write(config=TWO, plugins=JOBS)
    touch(command, "a.down")
    (id,) = fail(command, 1)
    run = command.run()
    wait_offered(command, "b", [id])
    for arguments in (
        ["dlq", "redrive", str(id)],
        ["dlq", "redrive", "--all"],
        ["jobs", "delete", str(id)],
        ["jobs", "retry", str(id)],
    ):
        ended = command.call(*arguments)
        assert (ended.code, "pending" in ended.err, "--force" in ended.err) == (2, True, True), ended
    purged = command.call("dlq", "purge", "--yes")
    assert (purged.code, purged.out, "--force" in purged.err) == (0, "purged: 0 jobs\n", True)
    assert command.job(id)["dead_letter"] == "pending"
    assert command.call("jobs", "delete", str(id), "--force").code == 0
    assert command.jobs() == []
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


def test_a_redriven_job_that_fails_again_has_another_dead_letter(command: Command) -> None:
    serve(command, FILE)
    (id,) = fail(command, 1)
    wait_delivered(command, [id])
    command.ask("dlq", "redrive", str(id))

    def twice() -> None:
        assert offers(command, "dead.jsonl") == {id: 2}

    wait_for(twice)
    wait_delivered(command, [id])
    job = command.job(id)
    assert (len(job["errors"]), job["retries"]) == (2, 0)


def test_a_sink_that_no_plugin_brings_is_the_users_mistake(command: Command) -> None:
    run = serve(command, "dlq: {sinks: [{type: pigeon}]}\n")
    assert run.wait() == 2
    assert "dlq.sinks[0].type" in run.log
    assert "pigeon" in run.log
    assert "Traceback" not in run.log


def test_a_sink_that_would_end_the_program_is_the_users_mistake(command: Command) -> None:
    exits = """
        import sys
        from supervisor import hookimpl

        class Exits:
            def __init__(self):
                sys.exit(0)

        @hookimpl
        def supervisor_sinks():
            return {"exits": Exits}
    """
    command.write(config="dlq: {sinks: [{type: exits}]}\n", plugins={"exits.py": exits})
    run = command.run()
    assert run.wait() == 2
    assert "dlq.sinks[0]: sink 'exits' can't be built: SystemExit" in run.log
    assert "Traceback" not in run.log


def test_keys_that_a_sink_does_not_take_are_the_users_mistake(command: Command) -> None:
    run = serve(command, "dlq: {sinks: [{type: recording, file: a, nonsense: 1}]}\n")
    assert run.wait() == 2
    assert "dlq.sinks[0]" in run.log
    assert "nonsense" in run.log
    assert "Traceback" not in run.log
    assert command.left_behind() == {}

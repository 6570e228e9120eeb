"""Whatever a handler does, its job has one defined outcome, twenty jobs behind it succeed, and the supervisor keeps running."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from tests.system.command import Command, wait_for

CONFIG = """
workers: {count: 1, timeout: 20s}
retry: {max_retries: 0}
"""
PLUGIN = r"""
import asyncio, io, multiprocessing, os, signal, sys, threading, time
from supervisor import handler


class Fussy(Exception):
    def __init__(self, a, b):
        super().__init__("fussy")
        self.lock = threading.Lock()


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Base(BaseException):
    pass


def raise_(error):
    raise error


def raise_local():
    class Local(Exception):
        pass
    raise Local("local")


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


def circle():
    value = {}
    value["self"] = value
    return value


def bottomless():
    return bottomless()


def fork_and_return():
    "Both the job and its copy return from here."
    os.fork()
    return "forked"


def close_standard_streams():
    for fd in (0, 1, 2):
        os.close(fd)
    sys.stdout = sys.stderr = None


WAYS = {
    "fussy": lambda: raise_(Fussy(1, 2)),
    "mute": lambda: raise_(Mute()),
    "local": raise_local,
    "nul": lambda: raise_(ValueError("a\x00b")),
    "surrogate": lambda: raise_(OSError(os.fsdecode(b"\xff\xfe"), "\udc80")),
    "long text": lambda: raise_(ValueError("x" * 5_000_000)),
    "exit 0": lambda: sys.exit(0),
    "exit text": lambda: sys.exit("text"),
    "interrupt": lambda: raise_(KeyboardInterrupt()),
    "cancelled": lambda: raise_(asyncio.CancelledError()),
    "generator exit": lambda: raise_(GeneratorExit()),
    "base": lambda: raise_(Base("base")),
    "group": lambda: raise_(BaseExceptionGroup("many", [Base("one"), ValueError("two")])),
    "recursion": bottomless,
    "memory": lambda: raise_(MemoryError()),
    "lock": threading.Lock,
    "file": lambda: open(os.devnull),
    "set": lambda: {1, 2},
    "bytes": lambda: b"bytes",
    "nan": lambda: [float("nan")],
    "infinity": lambda: {"a": float("-inf")},
    "deep": lambda: deep(300),
    "circle": circle,
    "30 digits": lambda: 10**29,
    "surrogate result": lambda: "\udc80",
    "number keys": lambda: {1: "one"},
    "two megabytes": lambda: "x" * 2_000_000,
    "nul result": lambda: "a\x00b",
    "closed streams": close_standard_streams,
    "closed stdout": lambda: sys.stdout.close(),
    "fork": fork_and_return,
    "noise": lambda: [os.write(2, b"x" * 1_000_000) for _ in range(10)] and None,
    "print": lambda: print("x" * 1_000_000),
}


@handler
def misbehave(job):
    return WAYS[job.payload]()


@handler
def quick(job):
    print("quick", job.payload)
    return job.payload
"""

EXCEPTION = {
    "fussy": ("Fussy", "fussy"), "mute": ("Mute", ""), "local": ("Local", "local"), "nul": ("ValueError", r"a\x00b"),
    "surrogate": ("OSError", r"\udc80"), "long text": ("ValueError", "xxx"), "exit 0": ("SystemExit", "0"),
    "exit text": ("SystemExit", "text"), "interrupt": ("KeyboardInterrupt", ""), "cancelled": ("CancelledError", ""),
    "generator exit": ("GeneratorExit", ""), "base": ("Base", "base"), "group": ("BaseExceptionGroup", "many"),
    "recursion": ("RecursionError", "recursion"), "memory": ("MemoryError", ""),
}  # fmt: skip
NO_JSON = (
    "lock", "file", "set", "bytes", "nan", "infinity", "deep", "circle", "30 digits", "surrogate result", "number keys",
    "two megabytes",
)  # fmt: skip
SUCCESS = {
    "nul result": "a\x00b", "closed streams": None, "closed stdout": None, "fork": "forked", "noise": None, "print": None,
}  # fmt: skip


def misbehave_all(command: Command, ways: list[str]) -> dict[str, dict[str, Any]]:
    """Each way's job, once all have ended and twenty quick jobs after each have succeeded."""
    command.write(config=CONFIG, plugins={"misbehave.py": PLUGIN})
    ids, quick = {}, []
    for way in ways:
        ids[way] = command.enqueue("misbehave", way)
        quick += [command.enqueue("quick", number) for number in range(20)]
    run = command.run("--drain")
    assert run.wait(100) == 0
    ended = {job["id"]: job for job in command.jobs()}
    assert {(ended[id]["state"], len(ended[id]["errors"])) for id in quick} == {("succeeded", 0)}
    assert [ended[id]["result"] for id in quick] == list(range(20)) * len(ways)
    assert "Traceback" not in "".join(line for line in run.log.splitlines(True) if "Z ERROR" in line)
    return {way: command.job(id) for way, id in ids.items()}


def test_any_exception_is_a_failed_attempt_with_its_type_and_text(command: Command) -> None:
    for way, job in misbehave_all(command, list(EXCEPTION)).items():
        (error,) = job["errors"]
        kind, text = EXCEPTION[way]
        assert (job["state"], error["cause"]) == ("failed", "exception"), (way, error)
        assert error["type"].rpartition(".")[2] == kind, (way, error["type"])
        assert text in error["message"], (way, error["message"][:300])
        assert "misbehave.py" in error["traceback"], way
        assert len(error["message"]) < 100_000


def test_a_result_that_is_no_json_fails_for_good_and_does_not_run_twice(command: Command) -> None:
    for way, job in misbehave_all(command, list(NO_JSON)).items():
        (error,) = job["errors"]
        assert (job["state"], job["result"]) == ("failed", None), way
        assert "result" in error["message"], (way, error)


def test_a_job_that_does_no_harm_succeeds(command: Command) -> None:
    for way, job in misbehave_all(command, list(SUCCESS)).items():
        assert (job["state"], job["result"], job["errors"]) == ("succeeded", SUCCESS[way], []), (way, job["errors"])


def test_a_pool_of_processes_in_a_handler_works_and_ends_with_its_timeout(command: Command) -> None:
    command.write(
        config="workers: {count: 1, timeout: 1500ms}\nretry: {max_retries: 0}\n",
        plugins={"nested.py": """
            import multiprocessing, time
            from supervisor import handler

            def double(number):
                return number * 2

            @handler
            def works(job):
                with multiprocessing.get_context("fork").Pool(2) as pool:
                    return pool.map(double, [1, 2, 3])

            @handler
            def hangs(job):
                with multiprocessing.get_context("fork").Pool(2) as pool:
                    pool.map(time.sleep, [3600, 3600])
        """},
    )  # fmt: skip
    works, hangs, after = command.enqueue("works"), command.enqueue("hangs"), command.enqueue("works")
    command.run()
    assert command.until(works, "succeeded")["result"] == [2, 4, 6]
    assert command.until(hangs, "failed")["errors"][0]["cause"] == "timeout"
    assert command.until(after, "succeeded")["errors"] == []

    def only_our_own() -> None:
        assert len(command.processes()) == 3, command.processes()

    wait_for(only_our_own)


def test_the_next_job_finds_no_change_of_the_last_one(command: Command) -> None:
    command.write(config=CONFIG, plugins={"state.py": """
        import os, signal, sys, time
        from supervisor import handler

        @handler
        def look(job):
            mask = os.umask(0)
            os.umask(mask)
            return [
                os.getcwd(), mask, sorted(os.environ.items()), str(signal.getsignal(signal.SIGTERM)),
                str(signal.getsignal(signal.SIGCHLD)), signal.getitimer(signal.ITIMER_REAL)[0],
                len(signal.pthread_sigmask(signal.SIG_BLOCK, ())), sys.stdout.fileno(), sys.stdin.read(), os.getpid(),
            ]

        @handler
        def change(job):
            os.chdir("/")
            os.umask(0o123)
            os.environ["CHANGED"] = "yes"
            del os.environ["PATH"]
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, 3600)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
            sys.stdout = open(os.devnull, "w")
            time.sleep(0.01)
    """})  # fmt: skip
    before, _, after = [command.enqueue(handler) for handler in ("look", "change", "look")]
    assert command.run("--drain").wait(60) == 0
    assert command.job(after)["result"] == command.job(before)["result"]


def test_the_next_job_finds_no_change_that_took_no_time(command: Command) -> None:
    command.write(config=CONFIG, plugins={"state.py": """
        import os, sys
        from supervisor import handler

        OURS, FOREIGN, NONE, UMASK = os.environ, {"FOREIGN": "yes"}, None, os.umask

        @handler
        def variables(job): os.environ = FOREIGN

        @handler
        def input(job): sys.stdin = NONE

        @handler
        def mask(job): UMASK(0)

        @handler
        def look(job):
            UMASK(mask := UMASK(0))
            return [os.environ is OURS, sys.stdin is not None, mask]
    """})  # fmt: skip
    names = [name for change in ("variables", "input", "mask") for name in [change, "look"] * 100]
    command.enqueue_many([{"handler": name} for name in ("look", *names)])
    assert command.run("--drain").wait(60) == 0
    looks = [job["result"] for job in command.jobs() if job["handler"] == "look"]
    assert len(looks) == 301
    assert looks == [[True, True, looks[0][2]]] * 301


BROKEN: list[Any] = ["{", "", None, "[1", b"\xff\xfe", b'{"a": "\xff"}', "[" * 100_000, "NaN", "1e999", '"\\ud800"']


def test_broken_payloads_in_the_database_are_rejected_and_the_good_ones_run(command: Command) -> None:
    command.write(config=CONFIG, plugins={"misbehave.py": PLUGIN})
    ids = [command.enqueue("quick", "whole") for _ in BROKEN]
    good = [command.enqueue("quick", number) for number in range(20)]
    stored = break_payloads(command.folder / "jobs.db", ids)
    assert len(stored) >= len(BROKEN) - 1
    run = command.run("--drain")
    assert run.wait(60) == 0, run.log
    for id in good:
        assert command.job(id)["state"] == "succeeded"
    for id in stored:
        job = command.job(id)
        (error,) = job["errors"]
        assert (job["state"], error["cause"]) == ("failed", "rejected"), (stored[id], job)
        assert "payload" in error["message"]


def break_payloads(file: Path, ids: list[int]) -> dict[int, Any]:
    """Return the payloads that the schema accepted, by job id."""
    database = sqlite3.connect(file, isolation_level=None)
    stored = {}
    for id, payload in zip(ids, BROKEN, strict=True):
        try:
            text = "CAST(? AS TEXT)" if isinstance(payload, bytes) else "?"
            database.execute(f"UPDATE jobs SET payload = {text} WHERE id = ?", (payload, id))
        except sqlite3.IntegrityError:
            continue
        stored[id] = payload
    database.close()
    return stored

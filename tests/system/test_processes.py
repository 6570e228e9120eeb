"""Workers as the pool sees them: outcomes, permits, exits, channels."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from supervisor.workers.interface import Timeouts
from supervisor.workers.parent.backend import ForkserverBackend
from supervisor.workers.parent.job_channel import FORGED_PERMITS
from supervisor.workers.system import process_tree as proctree
from tests.system.real_workers import World, fds_of, gone, lease, open_fds, play

# --- outcomes


OUTCOMES = """
class TwoArguments(Exception):
    def __init__(self, a, b):
        super().__init__("two")

class Silent(Exception):
    def __str__(self):
        raise SystemExit("no")

@handler(never_retry=KeyError)
def fail(job):
    how = job.payload
    if how == "cause":
        try:
            {}["inner"]
        except LookupError as error:
            raise ValueError("outer") from error
    if how == "exit": sys.exit(0)
    if how == "interrupt": raise KeyboardInterrupt
    if how == "generator": raise GeneratorExit
    if how == "two": raise TwoArguments(1, 2)
    if how == "silent": raise Silent
    if how == "nul": raise ValueError("a\\0b\\udc80")
    if how == "retry": raise Retry("later", after="2s")
    if how == "reject": raise Reject("never")
    if how == "never": raise KeyError("k")
    if how == "deep":
        def down(): down()
        down()
    if how == "long": raise ValueError("x" * 5_000_000)
    if how == "lock":
        import threading
        return threading.Lock()
    if how == "nan": return float("nan")
    if how == "self":
        me = {}
        me["me"] = me
        return me
    if how == "twice":
        me = []
        me += [me, me]
        return me
    if how == "big": return "x" * 1_000_000
    if how == "too big": return "x" * 3_000_000
"""


def test_every_way_for_a_job_to_end_is_reported(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        ways = [
            "cause",
            "exit",
            "interrupt",
            "generator",
            "two",
            "silent",
            "nul",
            "retry",
            "reject",
            "never",
            "deep",
            "long",
            "lock",
            "nan",
            "self",
            "twice",
            "big",
        ]
        jobs = [lease(n, "fail", f'"{way}"') for n, way in enumerate([*ways, "too big"], 1)]
        jobs += [lease(30, "nope"), lease(31, "echo", "{"), lease(32, "echo", ""), lease(33, "echo", "\udcff")]
        jobs += [lease(34, "echo", "[" * 100_000 + "]" * 100_000), lease(35, "echo", '{"a": [1, "é"]}')]
        replies = {reply.job_id: reply for reply in await here.run(process, *jobs)}
        by_way = {way: replies[n] for n, way in enumerate([*ways, "too big"], 1)}
        kinds = {way: reply.kind for way, reply in by_way.items()}
        assert kinds == {
            **dict.fromkeys([*ways, "too big"], "failed"),
            "retry": "retry", "reject": "rejected", "big": "ok",
        }  # fmt: skip
        errors = {way: reply.error or {} for way, reply in by_way.items()}
        assert errors["cause"]["type"] == "ValueError"
        assert "KeyError: 'inner'" in errors["cause"]["traceback"]
        assert "direct cause" in errors["cause"]["traceback"]
        assert "child/main.py" not in errors["cause"]["traceback"]
        assert errors["exit"]["type"] == "SystemExit"
        assert errors["interrupt"]["type"] == "KeyboardInterrupt"
        assert errors["two"]["message"] == "two"
        assert "SystemExit" in errors["silent"]["message"]
        assert errors["nul"]["message"] == "a\\x00b\\udc80"
        assert errors["retry"]["after"] == 2.0
        assert errors["never"]["retryable"] is False
        assert errors["deep"]["type"] == "RecursionError"
        assert len(errors["long"]["message"]) < 70_000
        for way in ("lock", "nan", "self", "twice", "too big"):
            assert (errors[way]["type"], errors[way]["retryable"]) == ("BadResult", False)
        assert errors["cause"]["peak_memory"] > 1_000_000
        assert by_way["big"].result == '"' + "x" * 1_000_000 + '"'
        assert replies[30].kind == "unknown"
        for n in (31, 32, 33, 34):
            assert (replies[n].kind, (replies[n].error or {})["type"]) == ("rejected", "BadPayload")
        assert replies[35].result == '{"a":[1,"é"]}'

    play(tmp_path, scene, OUTCOMES)


def test_a_handler_gets_all_that_the_row_of_its_job_holds(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        row = lease(7, "whole", {"p": 1}, queue="mail", headers='{"h": 2}', retries=2, priority=9)
        (reply,) = await here.run(await here.worker(), row)
        assert reply.result == '[7,{"p":1},3,"mail",{"h":2},9]'

    play(
        tmp_path,
        scene,
        "@handler\ndef whole(job): return [job.id, job.payload, job.attempt, job.queue, job.headers, job.priority]\n",
    )


def test_headers_that_are_no_object_are_rejected_as_a_bad_payload_is(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        wrong = enumerate(["[1]", '"text"', "7", "null", "{", ""], 1)
        replies = await here.run(await here.worker(), *[lease(n, "echo", headers=text) for n, text in wrong])
        assert [(reply.kind, (reply.error or {}).get("type")) for reply in replies] == [("rejected", "BadPayload")] * 6
        assert (replies[0].error or {})["message"] == "headers: expected an object, not list"

    play(tmp_path, scene)


def test_middleware_wraps_each_job_and_hooks_are_called_at_the_start_and_end_of_a_worker(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        replies = await here.run(process, lease(1, "echo", "5"), lease(2, "noop"), lease(3, "absent"))
        assert [(reply.kind, reply.result) for reply in replies] == [
            ("ok", '["wrapped",5]'),
            ("ok", '["wrapped",null]'),
            ("unknown", None),
        ]
        process.retire()
        assert (await here.end(process)).exit_code == 0
        assert f"started 1 {process.pid}" in here.lines_of(None, "stdout")
        assert any("stopping 1" in line for _stream, _job, line in here.lines)
        assert any("supervisor_worker_started" in it.message and "oops" in it.message for it in here.records)

    play(
        tmp_path,
        scene,
        other={
            "around.py": """
from supervisor import hookimpl
@hookimpl(wrapper=True)
def supervisor_run(job):
    result = yield
    return ["wrapped", result]
@hookimpl
def supervisor_worker_started(worker): print("started", worker.number, worker.pid)
@hookimpl
def supervisor_worker_stopping(worker): print("stopping", worker.number)
""",
            "broken.py": """
from supervisor import hookimpl
@hookimpl
def supervisor_worker_started(worker): raise ValueError("oops")
""",
        },
    )


# --- permits


@pytest.mark.parametrize("job", ["hang", "hold_gil"])
def test_unstarted_jobs_are_reclaimed_from_behind_a_running_one(tmp_path: Path, job: str) -> None:
    async def scene(here: World) -> None:
        process, other = await here.worker(1), await here.worker(2)
        begun = tmp_path / "begun-first"
        rest = [lease(n, "noop") for n in range(2, 60)]
        first = here.send(process, lease(1, job, {"begun": str(begun)}), *rest)
        second = here.send(process, *[lease(n, "noop") for n in range(60, 70)])
        await here.until(begun.exists)
        assert process.reclaim() == {first: 58, second: 10}
        assert process.reclaim() == {}
        assert len(await here.run(other, *rest)) == 58
        process.kill()
        await here.end(process)

    play(tmp_path, scene)


def test_a_worker_skips_reclaimed_jobs(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        go = tmp_path / "go"
        begun = tmp_path / "begun"
        a = here.send(process, lease(1, "wait", {"begun": str(begun), "go": str(go)}), lease(2, "noop"))
        b = here.send(process, lease(3, "noop"), lease(4, "noop"))
        await here.until(begun.exists)
        assert process.reclaim() == {a: 1, b: 2}
        here.send(process, lease(5, "echo", "5"), lease(6, "noop"))
        c = here.send(process, lease(7, "noop"))
        go.touch()
        await here.until(lambda: len(here.replies) >= 4)
        assert [reply.job_id for reply in here.replies] == [1, 5, 6, 7]
        assert c > b

    play(
        tmp_path,
        scene,
        "@handler\ndef wait(job):\n    mark(job)\n    while not os.path.exists(job.payload['go']): time.sleep(0.001)\n",
    )


def test_permits_say_exactly_which_job_was_running_when_a_worker_is_killed_at_random(tmp_path: Path) -> None:
    """Each job writes to a file when it begins: permits taken must be the jobs begun, whenever the kill comes."""

    async def scene(here: World) -> None:
        chance = random.Random(1)
        ran_but_free = blamed_but_idle = caught = 0
        for round in range(40):
            log = tmp_path / f"log-{round}"
            log.touch()
            process = await here.worker(round)
            here.replies.clear()
            sent = 0
            for _ in range(2):
                here.send(process, *[lease(sent + n + 1, "note", f'"{log}"') for n in range(64)])
                sent += 64
            await asyncio.sleep(chance.random() * 0.001)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            await here.end(process)
            taken = sent - sum(here.permits_at_end.values())
            done = len(here.replies)
            begun = log.read_bytes().count(b"<")
            assert taken - done in (0, 1)
            ran_but_free += begun > taken
            # A permit taken but not yet begun is a window of microseconds: one job at most.
            blamed_but_idle += taken - begun > 1
            caught += taken - done
        assert (ran_but_free, blamed_but_idle) == (0, 0)
        assert caught > 0

    play(
        tmp_path,
        scene,
        "import os\nopened = {}\n@handler\ndef note(job):\n"
        "    fd = opened.setdefault(job.payload, None) or os.open(job.payload, os.O_WRONLY | os.O_APPEND)\n"
        "    opened[job.payload] = fd\n    os.write(fd, b'<')\n",
    )


# --- exits


@pytest.mark.parametrize(
    ("how", "code", "name"),
    [
        ("exit0", 0, None),
        ("exit3", 3, None),
        ("segv", None, "SIGSEGV"),
        ("abort", None, "SIGABRT"),
        ("kill", None, "SIGKILL"),
    ],
)
def test_a_job_that_ends_its_process(tmp_path: Path, how: str, code: int | None, name: str | None) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        here.send(process, lease(1, "noop"), lease(2, "end", f'"{how}"'), lease(3, "noop"))
        report = await here.end(process)
        assert (report.exit_code, report.signal, report.pid) == (code, name, process.pid)
        assert report.stderr == "last words\n"
        assert not report.oom_suspected
        assert report.peak_memory is not None
        assert 4_000_000 < report.peak_memory < 1_000_000_000
        assert [reply.job_id for reply in here.replies] == [1]
        assert process.cpu_seconds() is None
        assert process.memory() is None

    play(
        tmp_path,
        scene,
        "@handler\ndef end(job):\n    print('last words', file=sys.stderr)\n"
        "    {'exit0': lambda: os._exit(0), 'exit3': lambda: os._exit(3), 'segv': lambda: ctypes.string_at(0),"
        " 'abort': os.abort, 'kill': lambda: os.kill(os.getpid(), 9)}[job.payload]()\n",
    )


def test_a_worker_that_writes_a_broken_line_is_killed_and_outcomes_before_it_count(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        here.send(process, lease(1, "noop"), lease(2, "scribble"))
        report = await here.end(process)
        assert report.signal == "SIGKILL"
        assert here.broken and "rubbish" in here.broken[0]
        assert [reply.job_id for reply in here.replies] == [1]

    play(
        tmp_path,
        scene,
        """
@handler
def scribble(job):
    import gc
    from supervisor.workers.child.main import JobRunner
    (runner,) = [found for found in gc.get_objects() if type(found) is JobRunner]
    os.write(runner._outcomes, b"rubbish\\n")
    time.sleep(3600)
""",
    )


def test_a_copy_of_the_worker_that_comes_back_from_fork_is_no_second_worker(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        jobs = [lease(n, "forks") for n in range(1, 6)]
        replies = await here.run(process, *jobs, lease(6, "noop"), lease(7, "who"))
        assert [reply.job_id for reply in replies] == [1, 2, 3, 4, 5, 6, 7]
        assert replies[-1].result == str(process.pid)
        assert proctree.children(process.pid or 0) == []
        assert here.broken == []

    play(
        tmp_path,
        scene,
        "@handler\ndef forks(job):\n    pid = os.fork()\n    if pid: os.waitpid(pid, 0)\n"
        "@handler\ndef who(job): return os.getpid()\n",
    )


def test_a_worker_that_is_ready_before_its_pid_is_known_waits_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked = ForkserverBackend.forked

    def late(self: ForkserverBackend, *setup: int) -> None:
        self.loop.call_later(0.1, forked, self, *setup)

    monkeypatch.setattr(ForkserverBackend, "forked", late)

    async def scene(here: World) -> None:
        process = here.fork(1)
        await here.until(lambda: here.heartbeats)
        assert (process.pid, here.ready) == (None, [])
        await here.until(lambda: here.ready)
        assert process.pid is not None
        assert len(await here.run(process, lease(1, "noop"))) == 1

    play(tmp_path, scene)


def test_a_stopped_worker_blocks_no_other(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        stopped, other = await here.worker(1), await here.worker(2)
        assert stopped.pid is not None
        os.kill(stopped.pid, signal.SIGSTOP)
        for n in range(10):
            here.send(stopped, lease(n + 1, "echo", '"' + "x" * 1_000_000 + '"'))
        assert len(await here.run(other, lease(20, "noop"))) == 1
        assert sum(stopped.reclaim().values()) == 10
        stopped.kill()
        assert (await here.end(stopped)).signal == "SIGKILL"

    play(tmp_path, scene)


def test_large_payloads_and_results_pass_both_ways_at_once(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        text = '"' + '\\u00e9\\"x' * 100_000 + '"'
        replies = await here.run(process, *[lease(n, "echo", text) for n in range(1, 9)])
        assert {reply.kind for reply in replies} == {"ok"}

    play(tmp_path, scene)


def test_a_worker_whose_channel_has_no_room_for_a_permit_is_killed_alone(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        await here.begin(process, "hang")
        while not here.broken:
            here.send(process, lease(2, "noop"))
        assert here.broken == [FORGED_PERMITS]
        assert (await here.end(process)).signal == "SIGKILL"

    play(tmp_path, scene)


def test_descriptors_stay_flat_over_hundreds_of_recycles_and_a_worker_has_only_its_own(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        keeper = await here.worker(0)
        (forkserver,) = here.forkservers
        await here.run(keeper, lease(1, "noop"))
        ours = theirs = own = 0
        for n in range(300):
            process = await here.worker(n + 1)
            if n == 5:
                ours, theirs = open_fds(), fds_of(forkserver)
                own = fds_of(process.pid or 0)
            if n == 299:
                assert fds_of(process.pid or 0) == own
                assert (open_fds(), fds_of(forkserver)) == (ours, theirs)
            process.kill() if n % 2 else process.retire()
            await here.end(process)
        # Three standard streams, eight channels.
        assert own == 3 + 8

    play(tmp_path, scene)


def test_a_worker_without_descriptors_for_its_channels_is_not_started_and_the_next_one_is(tmp_path: Path) -> None:
    import resource

    async def scene(here: World) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        before = open_fds()
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + 5, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                here.fork(1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert open_fds() == before
        assert len(await here.run(await here.worker(2), lease(1, "noop"))) == 1

    play(tmp_path, scene)


def test_a_worker_killed_before_its_pid_is_known_is_killed_later(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        before = os.getpgrp()
        children = [here.fork(n) for n in range(20)]
        for process in children:
            process.kill()
        await here.until(lambda: len(here.ended) == 20)
        assert os.getpgrp() == before
        assert all(process.pid is None or gone(process.pid) for process in children)

    play(tmp_path, scene)


def test_a_closed_channel_ends_the_worker(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        await here.begin(process, "close_all")
        report = await here.end(process)
        assert report.signal == "SIGKILL"
        assert len(here.broken) == 1 and here.broken[0].startswith("it closed its ")  # any of them may be found first

    play(
        tmp_path,
        scene,
        "@handler\ndef close_all(job):\n    mark(job)\n    os.closerange(3, 4096)\n    time.sleep(3600)\n",
    )


def test_heartbeats_come_at_the_interval_of_the_running_handler(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        before = here.heartbeats
        await here.begin(process, "hang")
        await here.until(lambda: here.heartbeats > before + 20)
        process.kill()
        await here.end(process)

    play(tmp_path, scene, heartbeat=3600.0, heartbeats={"hang": 0.01})


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_heartbeats_come_at_the_interval_that_the_decorator_asks_for(tmp_path: Path, start: str) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        before = here.heartbeats
        await here.begin(process, "quick")
        await here.until(lambda: here.heartbeats > before + 20)
        process.kill()
        await here.end(process)

    play(
        tmp_path,
        scene,
        "@handler(heartbeat='10ms')\ndef quick(job):\n    mark(job)\n    time.sleep(3600)\n",
        heartbeat=3600.0,
        start=start,
    )


def test_the_interval_of_the_config_goes_before_that_of_the_decorator(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        before = here.heartbeats
        await here.begin(process, "slow")
        await here.until(lambda: here.heartbeats > before + 20)
        process.kill()
        await here.end(process)

    play(
        tmp_path,
        scene,
        "@handler(heartbeat='1h')\ndef slow(job):\n    mark(job)\n    time.sleep(3600)\n",
        heartbeat=3600.0,
        heartbeats={"slow": 0.01},
    )


def test_heartbeats_come_at_the_common_interval_between_jobs(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        await here.run(process, lease(1, "seldom"))
        before = here.heartbeats
        await here.until(lambda: here.heartbeats > before + 20)
        process.kill()
        await here.end(process)

    play(tmp_path, scene, "@handler(heartbeat='1h')\ndef seldom(job): pass\n", heartbeat=0.01)


def test_the_first_message_to_a_forkserver_may_have_any_length(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        (reply,) = await here.run(await here.worker(), lease(1, "noop"))
        assert reply.kind == "ok"

    play(tmp_path, scene, heartbeats={f"a_handler_with_a_long_name_{number}": 1.0 for number in range(20_000)})


def test_a_program_inherits_nothing_but_the_standard_streams(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        (reply,) = await here.run(await here.worker(), lease(1, "look"))
        assert reply.result is not None
        import orjson

        fds, ignored, stdin = orjson.loads(reply.result)
        assert fds == ["0", "1", "2", "3"]  # the last is the listing itself
        assert int(ignored, 16) & ~0 == 0
        assert stdin == "/dev/null"

    play(
        tmp_path,
        scene,
        """
@handler
def look(job):
    program = "import os; print(' '.join(sorted(os.listdir('/proc/self/fd'), key=int)));" \\
        "print(open('/proc/self/status').read().split('SigIgn:')[1].split()[0]); print(os.readlink('/proc/self/fd/0'))"
    shell = "ls /proc/self/fd | tr '\\\\n' ' '; echo; grep SigIgn /proc/self/status | cut -f2; readlink /proc/self/fd/0"
    fds, ignored, stdin = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout.split("\\n")[:3]
    return [fds.split(), ignored, stdin]
""",
    )


def test_sending_to_a_worker_that_has_exited_is_no_error(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        for n in range(20):
            here.send(process, lease(n + 1, "noop"))
        await here.end(process)
        here.send(process, lease(30, "noop"))
        process.kill()
        process.retire()
        process.drain()

    play(tmp_path, scene)


def test_a_worker_whose_fork_fails_is_not_started_and_the_next_one_is(tmp_path: Path) -> None:
    full = tmp_path / "full"

    async def scene(here: World) -> None:
        before = await here.worker(1)
        (forkserver,) = here.forkservers
        ours, theirs = open_fds(), fds_of(forkserver)
        full.touch()
        children = [here.fork(n) for n in range(2, 7)]
        reports = [await here.end(process) for process in children]
        assert len(reports) == 5
        assert all("could not be started: Resource temporarily unavailable: the limit" in each.how for each in reports)
        assert (open_fds(), fds_of(forkserver)) == (ours, theirs)
        full.unlink()
        after = await here.worker(7)
        for number, process in enumerate((before, after), 1):
            assert len(await here.run(process, lease(number, "noop"))) == 1

    plugin = f"""
import errno, os
really = os.fork
def fork():
    if os.path.exists({str(full)!r}):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return really()
os.fork = fork
"""
    play(tmp_path, scene, other={"forks.py": plugin})


def test_a_worker_that_does_not_become_ready_is_killed(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = here.fork(1)
        assert (await here.end(process)).signal == "SIGKILL"
        (why,) = here.unready
        assert why.startswith(
            "not ready 2.1s after its start (plugins.import_timeout of 2s and 0.1s): hook supervisor_worker_"
        )
        assert why.endswith("/slow.py has not ended")

    hook = "import time\nfrom supervisor import hookimpl\n@hookimpl\ndef supervisor_worker_started(worker): time.sleep(3600)\n"
    play(tmp_path, scene, other={"slow.py": hook}, import_timeout=2.0, timeouts=Timeouts(worker_ready=0.1))


def test_a_forkserver_that_does_not_answer_is_replaced_and_its_workers_keep_running(tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"

    async def scene(here: World) -> None:
        process = await here.worker(1)
        stuck.touch()
        late = here.fork(2)
        assert "0.2s" in (await here.end(late)).how
        stuck.unlink()
        await here.until(lambda: len(here.forkservers) == 2)
        assert len(await here.run(process, lease(1, "noop"))) == 1
        assert len(await here.run(await here.worker(3), lease(2, "noop"))) == 1

    plugin = f"""
import os, time
really = os.fork
def fork():
    if os.path.exists({str(stuck)!r}):
        time.sleep(3600)
    return really()
os.fork = fork
"""
    play(tmp_path, scene, other={"forks.py": plugin}, timeouts=Timeouts(forkserver_answer=0.2))


def test_a_forkserver_that_was_stopped_is_continued_when_it_is_needed(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker(1)
        os.kill(here.forkservers[0], signal.SIGSTOP)
        process.kill()
        assert (await here.end(process)).signal == "SIGKILL"
        os.kill(here.forkservers[0], signal.SIGSTOP)
        assert len(await here.run(await here.worker(2), lease(1, "noop"))) == 1
        assert here.forkserver_exits == []

    play(tmp_path, scene)


def test_a_worker_that_survives_sigkill_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker does that waits for a network file system."""

    async def scene(here: World) -> None:
        process = await here.worker(1)
        pid = await here.begin(process, "hang")
        monkeypatch.setattr(process, "_kill_now", lambda: None)
        os.kill(here.forkservers[0], signal.SIGSTOP)  # it would kill the worker too
        await here.backend.stop()
        assert here.warnings == ["has not exited 0.2s after SIGKILL, and is left running"]
        await here.until(lambda: gone(pid))  # by the kernel, as its parent-death pipe has no write end any more
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)

    play(tmp_path, scene, timeouts=Timeouts(kill=0.2, forkserver_stop=0.2))


def test_no_exit_is_missed_while_sigchld_is_ignored(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSEGV)
        assert (await here.end(process)).signal == "SIGSEGV"

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        play(tmp_path, scene)
    finally:
        signal.signal(signal.SIGCHLD, before)

"""Between jobs: the output of each is attributed to it, and what it changed of the process is restored."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from tests.system.real_workers import World, lease, play

# --- output


SPEAK = r"""
@handler
def speak(job):
    print("out", job.id)
    print("err", job.id, file=sys.stderr)

@handler
def whisper(job):
    sys.stdout.write(f"no newline {job.id}")

@handler
def raw(job):
    os.write(1, b"raw %d\n" % job.id)
    os.write(2, b"raw %d\n" % job.id)
    time.sleep(0.002)

@handler
def buffer(job):
    sys.stdout.buffer.write(b"buffer %d" % job.id)

@handler
def program(job):
    subprocess.run(["sh", "-c", f"echo program {job.id}; echo program {job.id} >&2"], check=True)

@handler
def fails(job):
    print("why", job.id, file=sys.stderr)
    raise ValueError
"""


def test_every_line_in_a_frame_is_attributed_to_its_own_job(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        names = ["speak", "noop", "whisper", "raw", "buffer", "noop", "program", "noop", "fails", "noop"]
        jobs = [lease(n, names[n % len(names)]) for n in range(1, 121)]
        replies = {reply.job_id: reply for reply in await here.run(process, *jobs)}
        expected = {
            "speak": "out {}",
            "whisper": "no newline {}",
            "raw": "raw {}",
            "buffer": "buffer {}",
            "program": "program {}",
        }
        spoken = [job for job in jobs if job.handler in expected]
        await here.until(
            lambda: (
                len(here.lines) >= 2 * len(spoken) - len([j for j in spoken if j.handler in ("whisper", "buffer")]) + 12
            )
        )
        for job in spoken:
            assert here.lines_of(job.id, "stdout") == [expected[job.handler].format(job.id)]
        for job in jobs:
            if job.handler == "fails":
                assert here.lines_of(job.id, "stderr") == [f"why {job.id}"]
                assert replies[job.id].error["stderr"] == f"why {job.id}\n"  # type: ignore[index]
            if job.handler == "program":
                assert here.lines_of(job.id, "stderr") == [f"program {job.id}"]

    play(tmp_path, scene, SPEAK)


def test_the_output_of_a_running_job_is_emitted_while_it_runs(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        here.send(process, lease(1, "noop"), lease(2, "on_and_on"))
        await here.until(lambda: here.lines_of(2, "stdout") and here.lines_of(2, "stderr"))
        process.kill()
        report = await here.end(process)
        assert report.stderr == "unbuffered\nunfinished"

    play(
        tmp_path,
        scene,
        "@handler\ndef on_and_on(job):\n    print('buffered by line')\n"
        "    os.write(2, b'unbuffered\\nunfinished')\n    time.sleep(3600)\n",
    )


def test_endless_output_is_drained_and_cut_and_delays_no_other_worker(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        loud, other = await here.worker(1), await here.worker(2)
        await here.begin(loud, "shout")
        await here.until(lambda: any("left out" in record.message for record in here.records))
        for n in range(2, 200):
            assert len(await here.run(other, lease(n, "noop"))) == 1
        assert sum(len(line) for _stream, _job, line in here.lines) < 10_000_000
        loud.kill()
        await here.end(loud)

    play(
        tmp_path,
        scene,
        "@handler\ndef shout(job):\n    mark(job)\n    while True: os.write(1, b'x' * 60_000); os.write(2, b'y\\n' * 30_000)\n",
    )


def test_ten_megabytes_of_output_at_once_block_no_job(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        replies = await here.run(process, lease(1, "pour"), lease(2, "echo", "2"))
        assert [reply.kind for reply in replies] == ["ok", "ok"]

    play(
        tmp_path,
        scene,
        "@handler\ndef pour(job):\n    os.write(2, b'z' * 10_000_000)\n"
        "    subprocess.run(['sh', '-c', 'head -c 10000000 /dev/zero'], check=True)\n    print('x' * 10_000_000)\n",
    )


# --- streams that a job has broken


@pytest.mark.parametrize(
    "harm",
    [
        "sys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
        "os.close(0); os.close(1); os.close(2)",
        "os.dup2(os.open('/dev/full', os.O_WRONLY), 1); os.dup2(os.open('/dev/null', os.O_WRONLY), 2)",
        "for fd in (0, 1, 2): os.close(fd); os.open(__file__, os.O_RDONLY)",
        "sys.stdout = sys.stderr = None; sys.stdin = 3",
        "import io; sys.stdout = io.StringIO(); sys.stderr = sys.stdout; print('x')",
        "del sys.stdout; del sys.stderr",
        "sys.stdout.detach(); sys.stderr.detach()",
    ],
)
def test_standard_streams_that_a_job_broke_are_whole_for_the_next(tmp_path: Path, harm: str) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        replies = await here.run(process, lease(1, "harm"), lease(2, "use"), lease(3, "harm"), lease(4, "use"))
        assert [reply.kind for reply in replies] == ["ok"] * 4, replies
        assert replies[1].result == replies[3].result == '["","/dev/null"]'
        await here.until(lambda: here.lines_of(4, "stderr") and here.lines_of(4, "stdout"))
        for n in (2, 4):
            assert here.lines_of(n, "stdout") == ["print", "raw"]
            assert here.lines_of(n, "stderr") == ["print", "raw"]

    play(
        tmp_path,
        scene,
        f"@handler\ndef harm(job):\n    {harm}\n"
        "@handler\ndef use(job):\n    opened = os.open('/dev/null', os.O_RDONLY)\n    assert opened > 2\n    os.close(opened)\n"
        "    for stream in (sys.stdout, sys.stderr):\n        print('print', file=stream)\n"
        "    for fd in (1, 2): os.write(fd, b'raw\\n')\n    return [sys.stdin.read(), os.readlink('/proc/self/fd/0')]\n",
    )


# --- the state of the process


def test_changes_of_a_job_are_undone_before_the_next(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        before, *_ = await here.run(
            process, lease(1, "look"), lease(2, "change"), lease(3, "look"), lease(4, "noop"), lease(5, "look")
        )
        assert before.kind == "ok"
        expected = orjson.loads(before.result or "")
        looks = {reply.job_id: orjson.loads(reply.result or "") for reply in here.replies if reply.job_id in (3, 5)}
        assert looks == {3: expected, 5: expected}
        assert orjson.loads(before.result or "")["variable"] == "kept"
        assert orjson.loads(before.result or "")["alarm"] == 0

    os.environ["KEPT"] = "kept"
    try:
        play(
            tmp_path,
            scene,
            """
@handler
def look(job):
    numbers = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
    mask = os.umask(0)
    os.umask(mask)
    return {"cwd": os.getcwd(), "umask": mask, "environ": dict(os.environ), "variable": os.environ["KEPT"],
        "program": subprocess.run(["sh", "-c", "echo $KEPT $NEW"], capture_output=True, text=True).stdout,
        "signals": [str(signal.getsignal(n)) for n in numbers if n < 32],
        "alarm": signal.getitimer(signal.ITIMER_REAL)[0], "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))}

@handler
def change(job):
    os.chdir("/")
    os.umask(0o777)
    os.environ["KEPT"] = "changed"
    os.environ["NEW"] = "new"
    del os.environ["PATH"]
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN if number != signal.SIGPIPE else signal.SIG_DFL)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(9))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
""",
        )
    finally:
        del os.environ["KEPT"]


@pytest.mark.parametrize(
    "change", ["signal.alarm(3600)", "signal.pthread_sigmask(signal.SIG_BLOCK, QUIT)", "os.dup2(NULL, 1)"]
)
def test_changes_of_the_quickest_job_are_undone(tmp_path: Path, change: str) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        handlers = ["change", "look"] * 20
        await here.run(process, *(lease(n, handlers[n % 2]) for n in range(1, 41)))
        looks = {reply.result for reply in here.replies if handlers[reply.job_id % 2] == "look"}
        assert looks == {"[0.0,0,false]"}

    play(
        tmp_path,
        scene,
        f"""
NULL, QUIT = os.open(os.devnull, os.O_RDWR), [signal.SIGQUIT]

@handler
def change(job): {change}

@handler
def look(job):
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return [signal.getitimer(signal.ITIMER_REAL)[0], len(blocked), os.path.samestat(os.fstat(1), os.fstat(NULL))]
""",
    )


def test_a_replaced_environment_and_a_deleted_directory_are_restored(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        replies = await here.run(process, lease(1, "where"), lease(2, "vanish"), lease(3, "where"))
        assert [reply.kind for reply in replies] == ["ok"] * 3
        assert replies[0].result == replies[2].result

    play(
        tmp_path,
        scene,
        "@handler\ndef where(job): return [os.getcwd(), 'PATH' in os.environ]\n"
        "@handler\ndef vanish(job):\n    import tempfile\n    here = tempfile.mkdtemp()\n    os.chdir(here)\n"
        "    os.rmdir(here)\n    os.environ = {}\n",
    )

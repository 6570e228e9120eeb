"""A job that breaks a channel of its worker is blamed for a crash; a plugin whose import breaks the forkserver's is left out."""

from __future__ import annotations

import signal

import pytest

from tests.system.command import Command, wait_for

HANDLERS = r"""
    import gc, os, time
    from supervisor import handler

    def channels():
        from supervisor.workers.child.main import JobRunner
        (runner,) = [found for found in gc.get_objects() if type(found) is JobRunner]
        return {
            "jobs": runner._jobs, "outcomes": runner._outcomes, "permits": runner._permits,
            "heartbeats": runner._heartbeat._pipe,
        }

    def write_without_end(fd, data):
        while True:
            try:
                os.write(fd, data)
            except BlockingIOError:
                time.sleep(0.001)

    WAYS = {
        "rubbish": lambda fd: os.write(fd, b"rubbish\n"),
        "an empty line": lambda fd: os.write(fd, b"\n"),
        "a deep line": lambda fd: os.write(fd, b"[" * 500 + b"]" * 500 + b"\n"),
        "heartbeats without end": lambda fd: write_without_end(fd, b"." * 65536),
        "a line without end": lambda fd: write_without_end(fd, b"x" * 65536),
        "an end": os.close,
    }

    @handler(max_retries=0, timeout="none")
    def break_channel(job):
        channel, way = job.payload
        WAYS[way](channels()[channel])
        time.sleep(3600)

    @handler(max_retries=0)
    def close_permits_and_return(job):
        os.close(channels()["permits"])

    @handler(max_retries=0)
    def cover_permits(job):
        os.dup2(os.open(os.devnull, os.O_RDWR), channels()["permits"])

    @handler(max_retries=0)
    def block_all(job):
        for fd in os.listdir("/proc/self/fd"):
            try:
                os.set_blocking(int(fd), True)
            except OSError:
                pass
        if job.payload == "die":
            os._exit(1)

    @handler(max_retries=0)
    def close_all_and_open(job):
        for fd in range(3, 1024):
            try:
                os.close(fd)
            except OSError:
                pass
        for number in range(job.payload["files"]):
            os.open(f"{job.payload['folder']}/{number}", os.O_RDWR | os.O_CREAT)
        time.sleep(0.5)

    @handler(max_retries=0)
    def forge_outcome(job):
        took, result = job.payload
        os.write(channels()["outcomes"], b'[%d,%d,"%b"]\n' % (job.id, took, result.encode()))
        while not os.path.exists("forged"):
            time.sleep(0.01)

    @handler(max_retries=0)
    def good(job):
        return job.payload

    @handler(max_retries=0, timeout="none")
    def sibling(job):
        while not os.path.exists(job.payload):
            time.sleep(0.05)
"""
BROKEN = [
    ("outcomes", "rubbish"), ("outcomes", "an empty line"), ("outcomes", "a deep line"), ("outcomes", "a line without end"),
    ("outcomes", "an end"), ("jobs", "an end"), ("heartbeats", "rubbish"),
    ("heartbeats", "heartbeats without end"), ("heartbeats", "an end"),
]  # fmt: skip


def test_a_job_that_breaks_a_channel_is_blamed_for_a_crash_and_other_jobs_are_unharmed(command: Command) -> None:
    command.write(
        config="workers: {count: 2}\nlimits: {result: 10KB}\nretry: {max_retries: 0}\n",
        plugins={"handlers.py": HANDLERS},
    )
    run = command.run()
    sibling = command.enqueue("sibling", str(command.folder / "over"))
    command.until(sibling, "in_flight")
    for broken in BROKEN:
        breaking = command.enqueue("break_channel", broken)
        behind = [command.enqueue("good", number) for number in range(5)]
        job = command.until(breaking, "failed")
        assert job["errors"][-1]["cause"] == "crash", (broken, job["errors"])
        for id in behind:
            assert command.until(id, "succeeded")["errors"] == [], broken
    command.until(command.enqueue("close_permits_and_return"), "succeeded")
    for number in range(5):
        assert command.until(command.enqueue("good", number), "succeeded")["errors"] == []
    (command.folder / "over").touch()
    assert command.until(sibling, "succeeded")["errors"] == []
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert "a job closed a channel of its worker" in run.log
    assert "Traceback" not in run.log


def test_a_job_that_forges_its_outcome_gets_no_other_blamed_and_its_worker_is_replaced(command: Command) -> None:
    command.write(config="workers: {count: 1}\n", plugins={"handlers.py": HANDLERS})
    run = command.run()
    forging = command.enqueue("forge_outcome", [-(10**15), "no JSON"])
    behind = [command.enqueue("good", number) for number in range(5)]
    assert command.until(forging, "succeeded")["result"] == "no JSON"
    command.until(behind[0], "in_flight")
    (command.folder / "forged").touch()
    for id in behind:
        assert command.until(id, "succeeded")["errors"] == []
    assert " WARNING worker 1" in run.logged(f"wrote a second outcome of job {forging},")
    assert "crashed" not in run.log
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


@pytest.mark.parametrize("how", ["die", "return"])
def test_a_job_that_makes_its_descriptors_blocking_delays_no_other(command: Command, how: str) -> None:
    command.write(config="workers: {count: 1}\n", plugins={"handlers.py": HANDLERS})
    run = command.run()
    command.until(command.enqueue("block_all", how), "failed" if how == "die" else "succeeded")
    command.until(command.enqueue("good"), "succeeded")
    held = command.enqueue("sibling", str(command.folder / "over"))
    command.until(held, "in_flight")
    run.signal(signal.SIGTERM)
    run.logged("supervisor stopping")
    (command.folder / "over").touch()
    assert run.wait() == 0
    assert command.job(held)["state"] == "succeeded"


def test_a_worker_whose_channel_of_permits_has_an_end_takes_no_more_jobs(command: Command) -> None:
    command.write(config="workers: {count: 1}\n", plugins={"handlers.py": HANDLERS})
    run = command.run()
    command.until(command.enqueue("cover_permits"), "succeeded")
    for number in range(3):
        assert command.until(command.enqueue("good", number), "succeeded")["errors"] == []
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


FORKING = """
    import os, time
    from supervisor import handler, hookimpl

    @handler
    def noop(job):
        pass

    @hookimpl
    def supervisor_events(events):
        if any(type(event).__name__ == "JobsSettled" for event in events) and not os.path.exists("forked"):
            open("forked", "w").close()
            if os.fork() == 0:
                while not os.path.exists("over"):
                    time.sleep(0.05)
                os._exit(0)
            open("seen", "w").close()

    @handler
    def waits(job):
        with open("begun", "a") as file:
            file.write(f"{os.getpid()}\\n")
        while not os.path.exists("go"):
            time.sleep(0.01)
"""


def test_workers_stop_as_usual_though_a_plugin_has_forked_the_supervisor(command: Command) -> None:
    command.write(config="workers: {count: 1}\nshutdown: {grace: 60s}\n", plugins={"hook.py": FORKING})
    run = command.run()
    command.until(command.enqueue("noop"), "succeeded")
    wait_for((command.folder / "seen").exists)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert "worker 1" in run.logged("exited: stopped")
    (command.folder / "over").touch()


def test_workers_are_killed_with_a_supervisor_that_a_plugin_has_forked_and_their_jobs_run_again_at_once(
    command: Command,
) -> None:
    command.write(config="workers: {count: 1}\n", plugins={"hook.py": FORKING})
    run = command.run()
    command.until(command.enqueue("noop"), "succeeded")
    wait_for((command.folder / "seen").exists)
    id, begun = command.enqueue("waits"), command.folder / "begun"
    wait_for(lambda: begun.exists() and begun.read_text().endswith("\n"))
    run.kill()
    worker = int(begun.read_text())
    wait_for(lambda: worker not in command.processes())
    (command.folder / "go").touch()
    command.run()
    command.until(id, "succeeded")
    assert begun.read_text().count("\n") == 2
    (command.folder / "over").touch()


def test_files_that_a_job_opens_after_it_closed_the_channels_of_its_worker_stay_empty(command: Command) -> None:
    (opened := command.folder / "opened").mkdir()
    command.write(config="workers: {count: 1, heartbeat: 100ms}\n", plugins={"handlers.py": HANDLERS})
    run = command.run()
    command.until(command.enqueue("close_all_and_open", {"folder": str(opened), "files": 30}), "failed")
    command.until(command.enqueue("good", 7), "succeeded")
    assert sorted(int(file.name) for file in opened.iterdir()) == list(range(30))
    assert [file.read_bytes() for file in opened.iterdir()] == [b""] * 30
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


FORGED = {
    "rubbish": "b'rubbish\\n'",
    "an_answer": """b'["forked",99,5]\\n["reaped",1,0,0]\\n'""",
    "reports": """b'["ready",[{"source":5}],[],[]]\\n'""",
    "misfits": """b'["ready",[],[],[["daily",5,"wrong"]]]\\n'""",
    "an_empty_line": "b'\\n'",
    "without_end": "b'x' * 100_000_000",
}


def test_a_plugin_whose_import_breaks_the_channel_of_the_forkserver_is_left_out_and_the_others_serve(
    command: Command,
) -> None:
    text = """
        import gc, time
        from supervisor.workers.forkserver.main import Control
        (control,) = [found for found in gc.get_objects() if type(found) is Control]
        control._channel.sendall({})
        time.sleep(3600)
    """
    bad = {f"{name}.py": text.format(data) for name, data in FORGED.items()}
    command.write(plugins={**bad, "handlers.py": HANDLERS})
    run = command.run()
    assert command.until(command.enqueue("good", 7), "succeeded", 60)["result"] == 7
    for name in bad:
        assert "broke its channel" in run.logged(f"{name} did not load: its import ended the process")
    run.signal(signal.SIGTERM)
    assert run.wait() == 0

"""Files that root may load, private files, secrets of the config, descriptors and forged lines, on the real command."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor import Job, Reject
from supervisor.plugins.importer import forget, import_file
from tests.system.command import ROOT, Command, wait_for

CANARY = "c4n4ry-in-the-mine"

# --- what root runs


def test_root_loads_nothing_that_other_users_may_write(command: Command) -> None:
    """An ordinary user may use the same folder."""
    command.write(plugins={"mail.py": "from supervisor import handler\n@handler\ndef mail(job): ..."})
    plugins = command.folder / "plugins"
    plugins.chmod(0o777)
    refused = f"{plugins} (mode 0777) may be written by everybody"
    root = os.geteuid() == 0
    for arguments in (("check",), ("run", "--drain"), ("plugins",)):
        ended = command.call(*arguments)
        assert (ended.code, refused in ended.err) == ((2, True) if root else (0, False)), arguments
    command.enqueue("mail")
    (command.folder / "jobs.db").chmod(0o644)
    command.config.chmod(0o666)
    ended = command.call("check")
    assert (f"{command.config} (mode 0666) may be written by everybody" in ended.err) == root
    command.env["SUPERVISOR_ALLOW_WRITABLE_BY_OTHERS"] = "1"
    ended = command.call("check")
    assert ended.code == 0
    assert f"{command.folder / 'jobs.db'} (mode 0644) is open to others" in ended.err


def test_a_reload_is_refused_if_other_users_may_write_what_root_would_load(command: Command) -> None:
    command.write(plugins={"mail.py": "from supervisor import handler\n@handler\ndef mail(job): ..."})
    run = command.run()
    run.logged("supervisor started")
    (command.folder / "plugins").chmod(0o777)
    run.signal(signal.SIGHUP)
    run.logged("config refused, the old one stays" if os.geteuid() == 0 else "config reloaded")
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


# --- the shell plugin


def test_a_payload_never_becomes_a_command(tmp_path: Path) -> None:
    script = tmp_path / "no-interpreter"
    script.write_text(f"touch {tmp_path}/ran")  # which a shell would take for its own
    script.chmod(0o700)
    plugin = import_file(ROOT / "plugins/shell.py")
    try:
        with pytest.raises(OSError, match="Exec format error"):
            plugin.shell(Job(1, "shell", {"argv": [str(script)]}))
        for secret in (
            {"argv": "s3cret"},
            {"argv": ["true"], "input": ["s3cret"]},
            {"argv": ["true"], "env": {"A=s3cret": ""}},
        ):
            with pytest.raises(Reject) as rejected:
                plugin.shell(Job(1, "shell", secret))
            assert "s3cret" not in str(rejected.value)
    finally:
        forget(ROOT / "plugins")
    assert not (tmp_path / "ran").exists()


# --- secrets

LEAKING = """
    from supervisor import hookimpl
    from supervisor.errors import StoreError

    class Leaking:
        def __init__(self, token, fails=False):
            self.token = token
            if fails:
                raise ValueError(f"bad token {token!r}")

        def publish(self, dead_letters):
            raise ConnectionError(f"POST /?token={self.token} with {self.__dict__}")

        def close(self):
            pass

    def open_store(settings, *, create, base):
        wrong = StoreError if settings.options.get("how") == "error" else RuntimeError
        raise wrong(f"can't open {settings.url} with {settings.options}")

    @hookimpl
    def supervisor_sinks():
        return {"leaking": Leaking}

    @hookimpl
    def supervisor_stores():
        return {"leaking": open_store}
"""


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (["check"], "store: '${CANARY}'"),
        (["check"], "store: {url: 'leaking://me:${CANARY}@host/x?y=${CANARY}', how: error, token: '${CANARY}'}"),
        (["run"], "store: {url: 'leaking://me:${CANARY}@host/', how: error}"),
        (["run"], "store: {type: leaking, token: '${CANARY}'}"),
        (["run"], "dlq: {sinks: [{type: leaking, token: '${CANARY}', fails: true}]}"),
    ],
)
def test_errors_of_each_kind_hide_secrets(command: Command, arguments: list[str], config: str) -> None:
    command.env["CANARY"] = CANARY
    command.write(config=config, plugins={"leaking.py": LEAKING})
    ended = command.call(*arguments)
    assert ended.code
    assert ended.err
    assert CANARY not in ended.out + ended.err


OUTSIDE = """
    from supervisor import hookimpl
    from supervisor.stores.memory.store import MemoryStore

    def open_store(settings, *, create, base):
        store = MemoryStore()
        store.url = settings.url
        return store

    @hookimpl
    def supervisor_stores():
        return {"outside": open_store}

    @hookimpl
    def supervisor_started(info):
        print("started on", info["store"], file=open("events", "a"))

    @hookimpl
    def supervisor_events(events):
        print(events, file=open("events", "a"))
"""


def test_the_url_of_the_store_is_reported_without_its_secrets(command: Command) -> None:
    command.env["CANARY"] = CANARY
    command.write(config="store: 'outside://me:${CANARY}@host/x?token=${CANARY}'", plugins={"outside.py": OUTSIDE})
    ended = command.call("run", "--drain")
    assert ended.code == 0
    assert "store=outside://***@host/x?token=***" in ended.err
    events = (command.folder / "events").read_text()
    assert "started on outside://***@host/x?token=***" in events
    assert "SupervisorStarted" in events
    assert CANARY not in events + ended.out + ended.err


# --- one run: secrets, files, descriptors, forged lines

CONFIG = """
    workers: {count: 2, start: %s}
    retry: {max_retries: 0}
    log: {level: debug, format: %s}
    dlq:
      sinks:
        - {type: file, path: dead.jsonl}
        - {type: leaking, token: "${CANARY}"}
"""
PAYLOAD = "p4yl0ad-of-somebody"
FORGED = "no\n2020-01-01T00:00:00.000Z ERROR forged\x1b[2J[red]x[/x]"

JOBS = """
    import ctypes, os, subprocess, time
    from supervisor import handler

    SEEN = "seen=; for fd in /proc/$$/fd/*; do [ -e $fd ] && seen=$seen,${fd##*/}; done; echo $seen > "

    @handler
    def starts_programs(job):
        os.dup(0)
        for way in (by_subprocess, by_system, by_spawn, by_fork):
            way(SEEN + way.__name__ + ".fds")

    def by_subprocess(script):
        subprocess.run(["sh", "-c", script], close_fds=False, check=True)

    def by_system(script):
        os.system(script)

    def by_spawn(script):
        os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", script], os.environ), 0)

    def by_fork(script):
        arguments = (ctypes.c_char_p * 4)(b"sh", b"-c", script.encode(), None)
        libc = ctypes.CDLL(None)
        pid = os.fork()
        if not pid:
            libc.execv(b"/bin/sh", arguments)
            os._exit(1)
        os.waitpid(pid, 0)

    @handler
    def gated(job):
        open("begun", "w").close()
        while not os.path.exists("gate"):
            time.sleep(0.01)

    @handler
    def forges(job):
        print(job.payload["text"])
        raise ValueError(job.payload["text"])
"""

SINK = """
    import subprocess
    from supervisor import hookimpl

    class Leaking:
        def __init__(self, token):
            self.token = token

        def publish(self, dead_letters):
            script = "seen=; for fd in /proc/$$/fd/*; do [ -e $fd ] && seen=$seen,${fd##*/}; done; echo $seen > sink.fds"
            subprocess.run(["sh", "-c", script], close_fds=False, check=True)
            raise ConnectionError(f"POST /?token={self.token} with {self.__dict__}")

        def close(self):
            pass

    @hookimpl
    def supervisor_sinks():
        return {"leaking": Leaking}
"""


def files_of(command: Command) -> Iterator[Path]:
    """Yield the files that the command has made in its folder."""
    for path in command.folder.rglob("*"):
        if "plugins" not in path.parts and path != command.config and not path.is_socket():
            yield path


def on_a_terminal(command: Command, *arguments: str) -> str:
    ours, theirs = os.openpty()
    with open(ours, "rb", buffering=0) as screen:
        shown = subprocess.Popen(command.arguments(*arguments), cwd=command.folder, env=command.env, stdout=theirs)
        os.close(theirs)
        text = b""
        try:
            while data := screen.read(65_536):
                text += data
        except OSError:  # the other end is closed
            pass
        assert shown.wait() == 0
    return text.decode()


@pytest.mark.parametrize(("form", "start"), [("text", "fork"), ("json", "spawn")])
def test_a_run_leaks_no_secret_payload_descriptor_or_forged_line(
    command: Command, monkeypatch: pytest.MonkeyPatch, form: str, start: str
) -> None:
    command.env["CANARY"] = CANARY
    monkeypatch.setenv("CANARY", CANARY)
    command.write(config=CONFIG % (start, form), plugins={"jobs.py": JOBS, "sink.py": SINK})
    run = command.run(under=["sh", "-c", 'umask 0; exec "$@"', "sh"])
    run.logged("supervisor started")
    command.until(command.enqueue("starts_programs"), "succeeded")
    forger = command.enqueue("forges", {"text": FORGED})
    gated = command.enqueue("gated", {"of": PAYLOAD}, "--max-retries", "0")
    wait_for(lambda: (command.folder / "begun").exists() and (command.folder / "sink.fds").exists())
    run.signal(signal.SIGUSR1)
    run.logged("status: ")
    run.logged("dead letter not accepted by sink leaking")
    nothing_of_the_parent_is_open_below(command, run.pid)
    titles = list(command.processes().values())
    environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in command.processes()]
    shown = [command.ask("status"), command.ask("status", "--json"), command.ask("jobs", "list"), run.out]
    terminal = on_a_terminal(command, "jobs", "show", str(forger)) + on_a_terminal(command, "jobs", "list")
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in command.folder.glob("jobs.db*")}
    modes["dead.jsonl"] = stat.S_IMODE((command.folder / "dead.jsonl").stat().st_mode)
    (command.folder / "gate").touch()
    command.until(gated, "succeeded")
    run.signal(signal.SIGTERM)
    assert run.wait() == 0

    for seen in command.folder.glob("*.fds"):
        assert seen.read_text().strip() == ",0,1,2", seen.name
    assert len(list(command.folder.glob("*.fds"))) == 5
    assert not any(PAYLOAD.encode() in environment for environment in environments)
    assert not any(secret in title for secret in (CANARY, PAYLOAD, '"token"') for title in titles)
    assert all(mode == (0o700 if name.endswith(".notify") else 0o600) for name, mode in modes.items()), modes
    assert set(modes) >= {"jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db.notify", "dead.jsonl"}
    assert "with {'token': '***'}" in run.log
    for path in files_of(command):
        assert path.is_dir() or CANARY.encode() not in path.read_bytes(), path.name
    assert PAYLOAD not in run.log
    assert not any(CANARY in text for text in (*shown, terminal))
    assert not [line for line in run.log.splitlines() if line.startswith("2020-") or "\x1b" in line]
    assert "\x1b[2J" not in terminal + "".join(shown)
    assert "[red]x[/x]" in terminal


def nothing_of_the_parent_is_open_below(command: Command, supervisor: int) -> None:
    """Check that children have none of its files open but the lock of its owner."""
    children = {*command.processes()} - {supervisor}
    assert len(children) >= 3, "expected a forkserver and two workers"
    for pid in children:
        named = [str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()]
        (ours,) = [name for name in named if name.startswith(str(command.folder))]
        assert ours.endswith(".lock")

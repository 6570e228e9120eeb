"""What imports leave in the forkserver and forked workers can't use: threads that they lack, connections that they share."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.system.command import Command
from tests.system.real_workers import World, lease, play

HARMFUL = {
    "connection": (
        "import socket\nserver = socket.create_server(('127.0.0.1', 0))\nclient = socket.create_connection(server.getsockname())\n",
        "its import left open: listening socket, connection to 127.0.0.1:",
    ),
    "local": (
        "import socket, tempfile\nfolder = tempfile.mkdtemp()\nserver = socket.socket(socket.AF_UNIX)\nserver.bind(folder + '/s')\n"
        "server.listen()\nclient = socket.socket(socket.AF_UNIX)\nclient.connect(folder + '/s')\n",
        "its import left open: listening socket, connection to /",
    ),
    "loop": (
        "import asyncio\nloop = asyncio.new_event_loop()\n",
        "its import left open: event loop (epoll), 2 × end of a socket pair. Forked workers share it,",
    ),
    "unconnected": (
        "import socket\nclient = socket.socket()\n",
        "its import left open: socket that is not connected. ",
    ),
    "inotify": ("import ctypes\nctypes.CDLL(None).inotify_init()\n", "its import left open: inotify watch. "),
    "sqlite": (
        "import sqlite3, tempfile\ndatabase = sqlite3.connect(tempfile.mktemp('.db'))\ndatabase.execute('create table t (x)')\n",
        "its import left open: SQLite database /",
    ),
    "thread": (
        "import threading\nwait = threading.Event().wait\nfor n in range(9):\n"
        "    threading.Thread(target=wait, name='busy' if n < 4 else f'busy {n}', daemon=True).start()\n",
        "its import started threads (4 × busy, busy 4, busy 5, busy 6, busy 7 and 1 more). A forked worker does not have them,",
    ),
    "thread_of_a_library": (
        "import _thread, time\n_thread.start_new_thread(time.sleep, (3600,))\n",
        "its import started threads (unnamed). ",
    ),
}

HANGS_ONCE = """
import os, pathlib, socket, time

client = socket.socket()

def hang_once():
    try:
        pathlib.Path(__file__).with_suffix(".hung").touch(exist_ok=False)
    except FileExistsError:
        return
    time.sleep(3600)

os.register_at_fork(after_in_child=hang_once)
"""

HARMLESS = {
    "files": "import os, tempfile\nfile = tempfile.TemporaryFile()\nends = os.pipe()\n",
    "finished": "import threading\nthread = threading.Thread(target=print)\nthread.start()\nthread.join()\n",
    "syslog": "import logging.handlers\nlog = logging.handlers.SysLogHandler(('127.0.0.1', 9))\n",
    "child": "import subprocess\nprogram = subprocess.Popen(['cat'], stdin=subprocess.PIPE)\n",
    "garbage": "import socket\nends = [*socket.socketpair()]\nends.append(ends)\ndel ends\n",
    "stops_at_fork": (
        "import os, threading\nstopped = threading.Event()\nthread = threading.Thread(target=stopped.wait)\nthread.start()\n"
        "os.register_at_fork(before=lambda: (stopped.set(), thread.join()))\n"
    ),
    "starts_again": (
        "import os, threading\ndef start():\n    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "start()\nos.register_at_fork(after_in_child=start)\n"
    ),
    "opens_again": (
        "import os, socket\ndef connect():\n    global ends\n    ends = socket.socketpair()\n"
        "connect()\nos.register_at_fork(after_in_child=connect)\n"
    ),
    "knows_its_process": (
        "import os, socket\nclass Connection: pass\nconnection = Connection()\nconnection.pid = os.getpid()\n"
        "connection.socket, connection.other = socket.socketpair()\n"
    ),
    "odd_threads": "import threading\nclass Odd: name = 'odd'\nthreading.enumerate = lambda: [Odd()]\n",
    "green": "import os, select\nloop, fork = select.epoll(), os.fork\ndef green_fork(): return fork()\nos.fork = green_fork\n",
}


def warnings(here: World) -> dict[str, tuple[str, ...]]:
    return {Path(report.source).stem: report.warnings for report in here.reports}


def test_threads_and_connections_that_workers_would_lack_or_share_are_named(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        found = warnings(here)
        assert found.pop("jobs") == ()
        for name, (_, warning) in HARMFUL.items():
            (text,) = found.pop(name)
            assert text.startswith(warning), name
            assert "workers.start" in text, name
        assert found == {}

    play(tmp_path, scene, other={f"{name}.py": source for name, (source, _) in HARMFUL.items()})


@pytest.mark.parametrize("name", HARMLESS)
def test_an_import_whose_effects_survive_a_fork_gets_no_warning(tmp_path: Path, name: str) -> None:
    async def scene(here: World) -> None:
        assert warnings(here) == {"jobs": (), name: ()}

    play(tmp_path, scene, other={f"{name}.py": HARMLESS[name]})


def test_a_copy_that_hangs_shows_nothing_and_delays_the_start_a_little(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        (warning,) = warnings(here)["hangs"]
        assert "socket that is not connected" in warning
        assert (tmp_path / "plugins/hangs.hung").exists()
        assert len(await here.run(await here.worker(), lease(1, "noop"))) == 1

    play(tmp_path, scene, other={"hangs.py": HANGS_ONCE})


def test_a_spawned_worker_imports_anew_so_nothing_is_warned_of(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        assert set(warnings(here).values()) == {()}

    play(tmp_path, scene, start="spawn", other={f"{name}.py": HARMFUL[name][0] for name in ("loop", "thread")})


def test_check_plugins_and_the_log_name_plugin_and_connection(command: Command) -> None:
    command.write(plugins={"shop.py": HARMFUL["connection"][0]})
    warning = "its import left open: listening socket, connection to 127.0.0.1:"
    assert f"plugins/shop.py: {warning}" in command.call("check").err
    assert f"warnings  {warning}" in command.ask("plugins")
    run = command.run()
    assert "plugins/shop.py: " in run.logged(warning)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    command.write(config="workers: {count: 1, start: spawn}\n")
    assert "left open" not in command.call("check").err

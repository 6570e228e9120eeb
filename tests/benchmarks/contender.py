"""A contender that is set up to be measured: its folder, its server, its client and its workers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tests.benchmarks import servers
from tests.benchmarks.client import Client, last_lines, running_client
from tests.benchmarks.distributions import require
from tests.benchmarks.peers.base import Deployment, Peer, Settings
from tests.benchmarks.processes import kill, tree
from tests.benchmarks.stamps import Stamps

ROOT = Path(__file__).parents[2]
STOP_TIMEOUT = 5.0


class Contender:
    def __init__(self, peer: Peer, deployment: Deployment) -> None:
        self.peer, self.deployment = peer, deployment
        self.folder = Path(deployment.folder)
        self._log = self.folder / "workers.log"
        self._environment = os.environ | {"PYTHONPATH": str(ROOT)} | deployment.environment()

    def stamps(self, name: str = "stamps") -> Stamps:
        return Stamps(self.folder / name)

    def client(self) -> AbstractContextManager[Client]:
        return running_client(self.peer.module, self._environment, self.folder / "client.log")

    @contextlib.contextmanager
    def workers(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Start the workers without waiting until they are ready. At the end they are stopped, and killed with all descendants."""
        processes = self._start_workers()
        try:
            yield processes
        finally:
            descendants = [one for process in processes for one in tree(process.pid)]
            for process in processes:
                process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + STOP_TIMEOUT
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
            kill(descendants)
            for process in processes:
                process.wait()

    def log_end(self) -> str:
        """Return the last lines that the workers wrote, as the reason of a failure."""
        return last_lines(self._log)

    def _start_workers(self) -> list[subprocess.Popen[bytes]]:
        with self._log.open("ab") as log:
            return [
                subprocess.Popen(
                    command,
                    env=self._environment,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                for command in self.peer.commands(self.deployment)
            ]


@contextlib.contextmanager
def deployed(peer: Peer, settings: Settings | None = None) -> Iterator[Contender]:
    """Set up a peer in a temporary folder, with its server running. Raises NotMeasured if that can't be done."""
    require(peer.distributions)
    with (
        tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as stack,
    ):
        url = stack.enter_context(servers.RUNNING[peer.server]()) if peer.server else ""
        yield Contender(peer, Deployment(folder, url, settings or Settings()))

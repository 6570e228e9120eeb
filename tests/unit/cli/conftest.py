"""Commands called in a new folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from supervisor.cli.app import run_command_line
from supervisor.config.settings import Settings
from supervisor.events import Bus, ConfigReloaded
from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager
from supervisor.plugins.reports import SourceReport
from supervisor.workers.forkserver.payload_checks import misfits, schedule_misfits
from supervisor.workers.interface import WorkerOptions


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Answer]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """Run a command as the shell would, in a folder with nothing but an empty folder of plugins."""
    (tmp_path / "plugins").mkdir()
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Answer:
        capfd.readouterr()
        code = run_command_line([str(argument) for argument in arguments])
        return Answer(code, *capfd.readouterr())

    return call


class InProcessBackend:
    """Imports the plugins in this process: a unit test starts no other."""

    def __init__(self, options: WorkerOptions, listener: object, loop: object) -> None:
        self._options = options
        self.misfits: Sequence[Sequence[Any]] = ()
        self.schedule_misfits: Sequence[Sequence[str]] = ()

    async def start(self) -> Sequence[SourceReport]:
        plugins = PluginManager()
        reports = plugins.load_all(discover(self._options.plugins, Path(self._options.base)))
        self.misfits = misfits(plugins, self._options.payloads)
        self.schedule_misfits = schedule_misfits(plugins, self._options.schedules)
        return reports

    async def stop(self) -> None: ...


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.cli.plugin_scan.ForkserverBackend", InProcessBackend)


def write(path: str, text: str) -> None:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


class FakeSupervisor:
    """A supervisor that emits the given events and exits with the given code."""

    events: tuple[Any, ...] = ()
    code = 0
    made: list[FakeSupervisor]

    def __init__(self, settings: Settings, *, subscribers: Any = (), **options: Any) -> None:
        self.settings = settings
        self.options = options
        self.bus = Bus()
        for subscriber in subscribers:
            self.bus.subscribe(subscriber)
        self.made.append(self)

    def run(self) -> int:
        for event in self.events:
            if isinstance(event, ConfigReloaded):
                self.settings = self.options["reload"]()
            self.bus.emit(event)
        return self.code

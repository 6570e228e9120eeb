"""The plugin of pytest. It imports nothing until a test uses the fixture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from supervisor.testing import JobRunner


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "supervisor_plugins",
        "plugins whose handlers job_runner finds by name: files, directories and modules, relative to rootdir "
        "(default: those of the configuration)",
        type="args",
    )
    parser.addini(
        "supervisor_config",
        "the configuration of job_runner, relative to rootdir (default: the one that the command line would find)",
    )


@pytest.fixture
def job_runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobRunner]:
    """Runs jobs in this test, and keeps those that it enqueues in memory."""
    from supervisor.config.loading import load
    from supervisor.testing.job_runner import JobRunner

    config, root = request.config, request.config.rootpath
    path = config.getini("supervisor_config")
    settings = load(root / path if path else None)
    if plugins := config.getini("supervisor_plugins"):
        paths = tuple(str(root / each) if (root / each).exists() else each for each in plugins)
        settings = settings.replace(plugins=settings.plugins.replace(paths=paths))

    def new_folder() -> Path:
        return tmp_path_factory.mktemp("job_runner")

    outcomes = (pytest.fail.Exception, pytest.skip.Exception, pytest.exit.Exception)
    with JobRunner(settings, new_folder=new_folder, let_through=outcomes) as runner:
        yield runner

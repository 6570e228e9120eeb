from __future__ import annotations

import os
import signal

import pytest

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # by a shell that runs this in the background: so would all programs here
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """More than there are cores: most tests wait for processes."""
    return 3 * (os.cpu_count() or 1) // 2


@pytest.fixture(autouse=True)
def no_config_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPERVISOR_CONFIG", raising=False)

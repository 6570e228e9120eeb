from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A shell that runs this in the background, or `nohup`, has them ignored: so would all programs here.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

CATCHABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}

settings.register_profile("any machine", deadline=None)  # what a starved one takes says nothing of an example
settings.load_profile("any machine")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """More than there are cores: most tests wait for processes."""
    return 2 * (os.cpu_count() or 1)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """Programs that a later test starts would inherit what a supervisor in this process ignores or blocks."""
    before = {number: signal.getsignal(number) for number in CATCHABLE}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    for number, action in before.items():
        if signal.getsignal(number) != action:
            signal.signal(number, action)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@pytest.fixture(autouse=True)
def no_config_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPERVISOR_CONFIG", raising=False)

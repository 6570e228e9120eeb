"""Calls that a system refuses, as old kernels, sandboxes and other builds of Python do it."""

from __future__ import annotations

import errno
import os

import pytest

from supervisor.errors import SystemRefused
from supervisor.workers.system import requirements


@pytest.fixture(autouse=True)
def no_subreaper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(requirements._CALLS, "prctl(PR_SET_CHILD_SUBREAPER)", lambda: None)


def refuse(number: int) -> int:
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL])
def test_a_call_is_named_however_it_is_refused(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "pidfd_open", lambda pid: refuse(number))
    with pytest.raises(SystemRefused, match=rf"needs: pidfd_open \({os.strerror(number)}\); expected Linux"):
        requirements.require()


def test_a_call_that_this_python_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(SystemRefused, match=r"needs: pidfd_open \(this Python was built without it\); expected Linux"):
        requirements.require()


def test_a_lack_of_descriptors_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pidfd_open", lambda pid: refuse(errno.EMFILE))
    requirements.require()

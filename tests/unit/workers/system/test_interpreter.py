"""The command line of a fresh interpreter."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from supervisor.workers.system import descriptors, interpreter


def test_an_import_path_that_is_no_text_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/a", Path("/b"), "/c"])
    assert interpreter.command(interpreter.end_within, "x")[-1] == "/a\n/c"  # type: ignore[arg-type]


def test_a_soft_limit_above_the_hard_one_is_set_to_that(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    monkeypatch.setattr(descriptors.resource, "prlimit", lambda pid, kind, new=None: limits.append(new) or (10, 20))
    descriptors.limit(os.getpid(), 30)
    assert limits == [None, (20, 20)]

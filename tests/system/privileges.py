"""What tests need of the user that runs them."""

from __future__ import annotations

import os

import pytest


def require_root(what: str) -> None:
    """Skip the test unless root runs it. CI runs as root: there a skip would hide a defect."""
    if os.geteuid() != 0:
        assert not os.environ.get("CI"), f"{what} needs root, which CI has"
        pytest.skip(f"{what} needs root")

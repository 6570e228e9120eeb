from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_config_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPERVISOR_CONFIG", raising=False)

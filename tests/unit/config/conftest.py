from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.config.loading import load
from supervisor.errors import ConfigError


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str | bytes) -> Path:
        path = tmp_path / "supervisor.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


@pytest.fixture
def errors(write: Any) -> Any:
    """The errors of a config, without the folder."""

    def errors(text: str | bytes, environ: dict[str, str] | None = None) -> list[str]:
        path = write(text)
        with pytest.raises(ConfigError) as raised:
            load(path, environ or {})
        return [error.replace(f"{path.parent}/", "") for error in raised.value.errors]

    return errors

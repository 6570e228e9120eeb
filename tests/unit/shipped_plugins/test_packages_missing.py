"""Plugins whose packages are an extra of the project."""

import sys
from pathlib import Path

import pytest

from supervisor.plugins.importer import forget, import_file

FOLDER = Path(__file__).parents[3] / "plugins"


@pytest.mark.parametrize(
    ("name", "package", "variable", "extra"),
    [
        ("otel", "opentelemetry", "OTEL_EXPORTER_OTLP_ENDPOINT", "otel"),
        ("sentry", "sentry_sdk", "SENTRY_DSN", "sentry"),
    ],
)
def test_the_error_names_the_extra_and_without_a_server_there_is_none(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, variable: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delenv(variable, raising=False)
    assert not import_file(FOLDER / f"{name}.py").ACTIVE
    forget(FOLDER)
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    with pytest.raises(ImportError, match=rf"{name}\.py needs: pip install 'job-supervisor\[{extra}\]'"):
        import_file(FOLDER / f"{name}.py")
    forget(FOLDER)

"""Find the configuration file and read it into settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from supervisor.config.contradictions import add_contradictions
from supervisor.config.diagnostics import Findings, write_keys, write_problem
from supervisor.config.document import Document, Keys, Refused
from supervisor.config.kafka import KAFKA
from supervisor.config.section import Place, reporting, tree
from supervisor.config.settings import SCHEMES_WITHOUT_SECRETS, VARIABLE, Settings, absolute
from supervisor.errors import ConfigError
from supervisor.text.redaction import is_secret_name, secrets_in, secrets_of

SEARCHED = ("supervisor.yaml", "etc/supervisor.yaml")


def find(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the config file that a command without `-c` uses, if there is one.

    Raises ConfigError if the system refuses to look for it.
    """
    if environ.get(VARIABLE):
        return Path(environ[VARIABLE])
    for path in map(Path, SEARCHED):
        try:
            if path.is_file():
                return path
        except OSError as error:
            raise ConfigError([f"{path}: {error.strerror}; expected a config that can be read, or none"]) from None
    return None


def load(path: Path | None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings from `path`, else from the file that `find` returns, else all defaults.

    Raises ConfigError with every mistake in the file.
    """
    source = "" if path is not None or not environ.get(VARIABLE) else f" (named by ${VARIABLE})"
    path = path if path is not None else find(environ)
    if path is None:
        return Settings()
    from supervisor.config.yaml_reader import read_yaml  # slow to import, and the forkserver reads no config

    base = absolute(path).parent
    try:
        document = read_yaml(path.read_bytes(), environ)
    except OSError as error:
        raise ConfigError([f"{path}{source}: {error.strerror}"]) from None
    if isinstance(document.value, Refused):
        raise ConfigError([write_problem(path, problem) for problem in document.problems])
    place = Place(findings := Findings(document, tree(Settings)), base)
    settings = Settings(base=base)
    with reporting(place):
        settings = Settings.read(document.value, place)
    add_contradictions(findings, settings)
    settings = settings.replace(path=path, secrets=frozenset(_secrets(document, settings)))
    if findings.problems:
        problems = sorted(findings.problems, key=lambda problem: problem.line or 0)
        errors = [write_problem(path, problem) for problem in problems]
        raise ConfigError(errors, settings, tuple(problem.path for problem in problems))
    return settings


def without_config(settings: Settings) -> str:
    """Return where a config was looked for, for settings that have no file."""
    return f"no config: ${VARIABLE} is not set, and {settings.base} has no {' and no '.join(SEARCHED)}"


def _secrets(document: Document, settings: Settings) -> Iterator[str]:
    """Yield the values of variables in the options of stores and sinks, the passwords in URLs and in settings of librdkafka, and the
    token of `http`."""
    store = settings.store
    nothing_secret = store.scheme in SCHEMES_WITHOUT_SECRETS
    for keys, values in document.variables.items():
        if _may_be_secret(keys, settings):
            yield from values
    if settings.http is not None and settings.http.token is not None:
        yield settings.http.token
    options = [store.options, *(sink.options for sink in settings.dlq.sinks)]
    inside = [kafka for each in options if isinstance(kafka := each.get("kafka"), Mapping)]
    for each in inside:
        yield from secrets_in(each)
    texts = [value for each in options for value in each.values() if isinstance(value, str)]
    for text in texts if nothing_secret else [*texts, store.url or ""]:
        if "://" in text:
            yield from secrets_of(text)


def _may_be_secret(keys: Keys, settings: Settings) -> bool:
    """Return whether the value of a variable at this place is a secret; the keys of Kafka are known, so there its name decides."""
    store = settings.store
    if keys[:1] == ("store",):
        of_url = store.url is not None and "://" in store.url and keys in (("store",), ("store", "url"))
        named = store.type != KAFKA or is_secret_name(str(keys[-1]))
        return named and not of_url and store.scheme not in SCHEMES_WITHOUT_SECRETS
    if keys[:2] != ("dlq", "sinks"):
        return False
    of_kafka = any(sink.type == KAFKA and sink.key == write_keys(keys[:3]) for sink in settings.dlq.sinks)
    return is_secret_name(str(keys[-1])) if of_kafka else keys[-1] not in ("type", "name", "path", "ca_file")

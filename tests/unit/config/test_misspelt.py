"""Names in the config that don't fit the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.config.misspelt import name_warnings
from supervisor.config.settings import HandlerSettings, QueueSettings, Settings, WorkerSettings


def settings_of(
    served: set[str] | None = None, configured: Any = (), handlers: dict[str, str] | None = None, grouped: Any = ()
) -> Settings:
    return Settings(
        workers=WorkerSettings(
            queues=None if served is None else frozenset(served), groups={name: {"queues": [name]} for name in grouped}
        ),
        queues={name: QueueSettings() for name in configured},
        handlers={name: HandlerSettings(queue=queue or None) for name, queue in (handlers or {}).items()},
    ).replace(path=Path("x.yaml"))


@pytest.mark.parametrize(
    ("settings", "warnings"),
    [
        (settings_of({"defualt"}), ["workers.queues: no other key names queue 'defualt', did you mean 'default'?"]),
        (
            settings_of({"mial", "default"}, ["mail"]),
            ["workers.queues: no other key names queue 'mial', did you mean 'mail'?"],
        ),
        (settings_of(None, ["defualt"]), ["queues.defualt: no other key names this queue, did you mean 'default'?"]),
        (
            settings_of({"mail"}, ["mail", "mial"]),
            ["queues.mial: no other key names this queue, did you mean 'mail'?"],
        ),
        (
            settings_of({"mail"}, (), {"mail": "maill"}),
            ["handlers.mail.queue: no worker here serves queue 'maill', did you mean 'mail'?"],
        ),
        (
            settings_of({"mail"}, (), {"mail": "reports"}),
            [
                "handlers.mail.queue: no worker here serves queue 'reports'; another supervisor has to, "
                "or add it to workers.queues"
            ],
        ),
        (
            settings_of(None, ["mail"], None, ["mial"]),
            [
                "workers.groups.mial.queues: no other key names queue 'mial', did you mean 'mail'?",
                "queues.mail: no other key names this queue, did you mean 'mial'?",
            ],
        ),
        (settings_of(None, (), {"mial": ""}), ["handlers.mial: no plugin has this handler, did you mean 'mail'?"]),
    ],
)
def test_a_name_that_is_probably_misspelt_is_named_with_its_file_and_key(
    settings: Settings, warnings: list[str]
) -> None:
    assert name_warnings(settings, {"mail"}) == [f"x.yaml: {warning}" for warning in warnings]


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        settings_of({"mail", "mails"}),
        settings_of({"mial", "mail"}, ["mail"], None, ["mial"]),
        settings_of({"queue1", "queue2"}, ["queue1"]),
        settings_of(None, ["queue1"], {"mail": "queue2"}),
        settings_of({"default", "mail"}, ["default", "mail"], {"mail": "mail"}),
    ],
)
def test_similar_names_that_are_all_in_use_are_no_mistakes(settings: Settings) -> None:
    assert name_warnings(settings, {"mail"}) == []

"""The name of a config in place of the URL of a store."""

from __future__ import annotations

import pytest

from supervisor import Client
from supervisor.errors import StoreError


def test_the_variable_that_names_a_config_is_in_the_error() -> None:
    with pytest.raises(StoreError, match="a client reads a config if SUPERVISOR_CONFIG names it"):
        Client("/srv/mail/supervisor.yaml").enqueue("send")
    with pytest.raises(StoreError, match=r"sqlite$"):
        Client("redis://box").enqueue("send")

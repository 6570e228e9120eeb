"""Enqueue jobs from any program."""

from __future__ import annotations

from supervisor.client.client import Client
from supervisor.errors import InvalidJob, NoSuchParent

__all__ = ["Client", "InvalidJob", "NoSuchParent"]

"""Requests made from the description of the API: no answer is an error of the server, and each is as described."""

from __future__ import annotations

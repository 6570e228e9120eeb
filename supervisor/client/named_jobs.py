"""Names by which the jobs of a file refer to each other: a job may be after jobs of earlier lines."""

from __future__ import annotations

from typing import Any

from supervisor.errors import InvalidJob
from supervisor.stores.extras import Place
from supervisor.text.names import NAME, did_you_mean, is_name

KEY = "name"


class NamedJobs:
    """The names of the jobs that have been added to a batch so far, with their places."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def read(self, job: dict[str, Any], place: int) -> dict[str, Any]:
        """Return the job without its name, and with places in `after` for names. Raises InvalidJob; then the name is not taken."""
        after, name = job.get("after"), job.get(KEY)
        if name is None and not (isinstance(after, list) and any(isinstance(each, str) for each in after)):
            return job
        job = {key: value for key, value in job.items() if key != KEY}
        if isinstance(after, list):
            job["after"] = [self._place(each) if isinstance(each, str) else each for each in after]
        if name is not None:
            self._take(name, place)
        return job

    def _place(self, name: str) -> Place:
        if name not in self._places:
            raise InvalidJob(f"after: no earlier line has the name {name!r}{did_you_mean(name, self._places)}")
        return Place(-1 - self._places[name])

    def _take(self, name: Any, place: int) -> None:
        if not is_name(name):
            raise InvalidJob(f"{KEY}: expected {NAME}, got {name!r:.80}")
        if name in self._places:
            raise InvalidJob(f"{KEY}: an earlier line has the name {name!r} too")
        self._places[name] = place

"""The fire times of a schedule: of a cron expression in a time zone, or at an interval. Times are microseconds since the epoch.

Around a change of the clocks cron expressions follow the cron of Debian (see `Cron`), as the package cronsim does.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, pairwise
from math import inf
from typing import NamedTuple

from supervisor.text.units import format_duration, parse_duration

FIELDS = "minute, hour, day of month, month and day of week"
CRON = f"a cron expression of five fields, such as 0 3 * * *: {FIELDS}"
MICROSECONDS = 1_000_000
LOOKED_AT = 100
"""Fire times among which the shortest interval is looked for."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST_WINDOW = 2 * 3600 * MICROSECONDS
_EVERY = re.compile(r"every ([0-9]{1,9}(?:\.[0-9]{1,6})?)s")


class Due(NamedTuple):
    """The last fire times of those that are due, in order. `more` is whether earlier ones are due too."""

    times: list[int]
    more: bool = False


class Cron(NamedTuple):
    """A cron expression in a time zone, both of which have been checked.

    An expression with a fixed minute and hour fires once a day whatever the clocks do: at the first minute after the gap if its
    time is skipped, and at the first of two moments if its time comes twice. One whose minute or hour begins with a * fires by
    elapsed time: in both of two equal hours, and in none that is skipped.
    """

    expression: str
    timezone: str = "UTC"

    @property
    def text(self) -> str:
        return f"cron {self.expression} {self.timezone}"

    def after(self, moment: int) -> int | None:
        """Return the first fire time after the moment; None if there is none within 50 years."""
        return next(self._times(moment), None)

    def due(self, after: int, now: int, limit: int) -> Due:
        """Return the last `limit` fire times after `after`, up to `now`. The cost does not grow with the time in between."""
        window = _FIRST_WINDOW
        while True:
            start = max(after, now - window)
            found: deque[int] = deque(maxlen=limit + 1)
            for time in self._times(start):
                if time > now:
                    break
                found.append(time)
            if start == after or len(found) > limit:
                times = list(found)
                return Due(times[-limit:], len(times) > limit)
            window *= 4

    def shortest_interval(self) -> float:
        """Return the least seconds between two of the next fire times after the epoch; inf if it fires less than twice."""
        times = [*islice(self._times(0), LOOKED_AT)]
        return min((later - time for time, later in pairwise(times)), default=inf) / MICROSECONDS

    def _times(self, after: int) -> Iterator[int]:
        from cronsim import CronSim  # slow to import, and needed only where there are schedules

        zone = zone_of(self.timezone)
        try:
            start = (_EPOCH + timedelta(microseconds=after)).astimezone(zone)
            for moment in CronSim(self.expression, start):
                time = (moment - _EPOCH) // _MICROSECOND
                if time > after:  # while an hour comes twice, cronsim also gives times of the first one
                    yield time
        except OverflowError:  # behind the end of the calendar
            return


class Every(NamedTuple):
    """An interval in microseconds. Each fire time follows from the last one, so that none drifts."""

    interval: int

    @property
    def text(self) -> str:
        """The exact interval: supervisors compare it with that in the store. People read `shown_timing`."""
        seconds = f"{self.interval / MICROSECONDS:.6f}".rstrip("0").rstrip(".")
        return f"every {seconds}s"

    def after(self, moment: int) -> int:
        return moment + self.interval

    def shortest_interval(self) -> float:
        return self.interval / MICROSECONDS

    def due(self, after: int, now: int, limit: int) -> Due:
        passed = max(0, now - after) // self.interval
        first = max(1, passed - limit + 1)
        return Due([after + n * self.interval for n in range(first, passed + 1)], first > 1)


Timing = Cron | Every


def shown_timing(text: str) -> str:
    """Return the text of a timing for people: "every 3600s" as "every 1h", unless that is less exact."""
    found = _EVERY.fullmatch(text)
    if found is None:
        return text
    seconds = float(found[1])
    shown = format_duration(seconds)
    is_exact = sum(parse_duration(part, zero=True) for part in shown.split()) == seconds
    return f"every {shown}" if is_exact else text


def zone_of(name: str) -> tzinfo:
    """Return the time zone. Raises ValueError if this system has none of this name."""
    if name == "UTC":  # without a search for the data of time zones
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise ValueError(f"no time zone {name!r}") from None


def checked_cron(expression: str) -> str:
    """Return the expression with single spaces. Raises ValueError with what was expected."""
    from cronsim import CronSim, CronSimError

    fields = expression.split()
    if len(fields) != 5:
        raise ValueError(f"expected {CRON}")
    try:
        first = next(CronSim(" ".join(fields), datetime(2000, 1, 1)), None)
    except CronSimError as error:
        wrong = str(error).removeprefix("Bad ").replace("-", " ")
        raise ValueError(f"expected {CRON}; its {wrong} is wrong") from None
    except Exception:  # combinations that cronsim does not expect
        raise ValueError(f"expected {CRON}") from None
    if first is None:
        raise ValueError("expected a cron expression that fires at some time")
    return " ".join(fields)

"""The sections of the config that decide when a failed attempt is retried."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Self

from supervisor.config import types as kind
from supervisor.config.section import InvalidSection, One, OneOrNone, Section, setting
from supervisor.jobs import MAX_RETRIES, Backoff

NO_FACTOR = "expected no factor beside exponential: false, which makes all delays equal"


class BackoffSettings(Section):
    base: float = setting(kind.duration, default=0.5)
    factor: float = setting(kind.factor, default=2.0)
    max: float = setting(kind.duration, default=30.0)
    jitter: str | float = setting(kind.jitter, default="full")
    exponential: bool = setting(kind.flag, default=True)

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if self.has_needless_factor:
            raise InvalidSection(f"exponential: {NO_FACTOR}")

    @property
    def has_needless_factor(self) -> bool:
        """Whether a factor is written beside `exponential: false`."""
        return not self.exponential and "factor" in self.written

    @property
    def curve(self) -> Backoff:
        return Backoff(self.base, self.factor if self.exponential else 1.0, self.max, self.jitter)

    def over(self, under: Self) -> Self:
        """Return the sections merged. A factor that is written here has an effect over `exponential: false` of `under`."""
        merged = super().over(under)
        needed = "factor" in self.written and "exponential" not in self.written
        return merged.replace(exponential=True) if needed and not merged.exponential else merged


class BudgetSettings(Section):
    limit: int = setting(kind.whole(1, 1_000_000_000), missing="a whole number")
    per: float = setting(kind.duration, missing="a duration such as 1m")


class RetrySettings(Section):
    max_retries: int = setting(kind.whole(0, MAX_RETRIES), default=3)
    backoff: BackoffSettings = setting(One(BackoffSettings), default=BackoffSettings())
    fetch_ratio: Fraction = setting(kind.share, default=Fraction(1, 5))
    burst: int = setting(kind.whole(1, 1_000_000_000), default=16)
    max_in_flight: Any = setting(kind.max_in_flight, default="half")
    urgent: int = setting(kind.whole(-1_000_000, 1_000_000), default=100)
    budget: BudgetSettings | None = setting(OneOrNone(BudgetSettings), default=None)
    adaptive: bool = setting(kind.flag, default=False)

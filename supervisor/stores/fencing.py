"""The fencing token of a claim: its low bits are the number of claims of the job, and those above are random.

If a store goes back in time (a backup is restored, or a standby that lagged behind is promoted), ids and counts are given again.
A random part is not, so an outcome from the lost time never settles the job that has its id now.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

COUNT_BITS = 24
RANDOM_BITS = 38

RandomPart = Callable[[], int]
"""A function that returns the random part of the tokens of one claim, shifted above the count."""

NEXT_TOKEN = f"((token + 1) & {2**COUNT_BITS - 1})"
"""SQL: the next token without its random part."""


def random_part() -> int:
    return secrets.randbits(RANDOM_BITS) << COUNT_BITS

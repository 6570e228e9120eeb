"""The fencing token of a claim: in its low bits the number of claims of the job, above them a random part.

Ids and counts come again when a store goes back in time: a backup is restored, or a standby that lagged behind is promoted. The
random part does not, so that an outcome of the lost time never settles the job that has its id now.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

COUNT_BITS = 24
RANDOM_BITS = 38

RandomPart = Callable[[], int]
"""Returns the random part of the tokens of one claim, in its place above the count."""

NEXT_TOKEN = f"((token + 1) & {2**COUNT_BITS - 1})"
"""SQL: the next token without its random part."""


def random_part() -> int:
    return secrets.randbits(RANDOM_BITS) << COUNT_BITS

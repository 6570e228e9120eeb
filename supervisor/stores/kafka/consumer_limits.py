"""The limits of the thread that reads the topics."""

from __future__ import annotations

from typing import NamedTuple


class ConsumerLimits(NamedTuple):
    """Times are seconds; the others are parts of a partition's share of the buffer."""

    batch: int = 500  # messages, at most, that are taken from the client at once
    poll: float = 0.1  # for the first message
    ask: float = 10.0  # for an answer about offsets
    gather: float = 0.1  # from the first refusal of an offset, for those of other partitions
    reset: float = 1.0  # until the brokers are asked again for the first and the last offset
    pause_at: float = 1.0
    resume_at: float = 0.5
    uncommitted: float = 10.0  # with failing commits, until they are a problem
    join: float = 60.0  # until the group should have given partitions
    recent: float = 30.0  # for which an error of the client is a problem


USUAL_LIMITS = ConsumerLimits()

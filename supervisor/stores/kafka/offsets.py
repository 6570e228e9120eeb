"""The offsets of one partition: which of them are done, and what is committed.

All offsets below `committable` are done: it is the offset to commit. Those done beyond it go into the metadata of the commit, so
that they are not run again after a restart. An offset without a record (the marker of a transaction, a record removed by
compaction) counts as done as soon as a later one has been fetched, or the end of the partition has been reached.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

VERSION = "supervisor:1:"
MAX_METADATA = 4000
"""Characters: brokers refuse a commit with more than `offset.metadata.max.bytes`, which is 4096 by default."""

Range = tuple[int, int]
"""The first offset, and the one behind the last."""


class Metadata(NamedTuple):
    text: str
    complete: bool
    """Whether it has all offsets that are done beyond the committed one; otherwise it has the lowest."""


class Offsets:
    """`position` is the offset that is fetched next; it is None before the first record if nothing was committed.

    `done_before` are ranges of offsets, ascending, that an earlier owner of the partition has done.
    """

    def __init__(self, position: int | None = None, done_before: Iterable[Range] = ()) -> None:
        self.position = position
        self._undone: OrderedDict[int, None] = OrderedDict()  # ascending, as they are fetched
        self._done_before = list(done_before)
        self._next = 0  # of these, the first one that ends behind the position

    @property
    def undone(self) -> int:
        """The number of fetched records that are not done."""
        return len(self._undone)

    @property
    def committable(self) -> int | None:
        """The offset to commit: all below it are done. None if nothing is known of the partition yet."""
        return next(iter(self._undone), self.position)

    def fetched(self, offset: int) -> bool:
        """Note that the record of this offset was fetched. Return whether it is to be run: not if it was done before, or was
        fetched before."""
        if self.position is not None and offset < self.position:
            return False
        self.position = offset + 1
        if self._done_before and self._was_done(offset):
            return False
        self._undone[offset] = None
        return True

    def _was_done(self, offset: int) -> bool:
        ranges = self._done_before
        while self._next < len(ranges) and ranges[self._next][1] <= offset:
            self._next += 1
        return self._next < len(ranges) and ranges[self._next][0] <= offset

    def reached_end(self, offset: int) -> None:
        """Note that the partition has no record before this offset that was not fetched."""
        self.position = offset if self.position is None else max(self.position, offset)

    def done(self, offset: int) -> None:
        self._undone.pop(offset, None)

    def metadata(self, limit: int = MAX_METADATA) -> Metadata:
        """Return the metadata of a commit of `committable`; it is empty if no offset beyond that is done."""
        ranges = list(self._done_beyond())
        kept = len(ranges)
        while kept:
            text = _encoded(self.committable or 0, ranges[:kept])
            if len(text) <= limit:
                return Metadata(text, kept == len(ranges))
            kept //= 2
        return Metadata("", not ranges)

    def _done_beyond(self) -> Iterator[Range]:
        """Yield the ranges beyond `committable` that are done, ascending: also those beyond `position`, that an earlier owner has done."""
        position = self.position
        if position is None:
            return
        last = None
        for offset in chain(self._undone, (position,)):
            if last is not None and offset > last + 1:
                yield last + 1, offset
            last = offset
        for begin, end in self._done_before[self._next :]:
            if end > position:
                yield max(begin, position), end


def done_ranges(committed: int, metadata: str | None) -> list[Range]:
    """Return the ranges of offsets beyond `committed` that are done, from the metadata of its commit; none if another program
    has written it."""
    if not metadata or not metadata.startswith(VERSION):
        return []
    try:
        numbers = list(_numbers(zlib.decompress(b64decode(metadata.removeprefix(VERSION), validate=True))))
    except (ValueError, zlib.error):
        return []
    ranges, at = [], committed
    for undone, done in zip(numbers[::2], numbers[1::2], strict=False):
        ranges.append((at + undone, at + undone + done))
        at += undone + done
    return ranges


def _encoded(committed: int, ranges: Iterable[Range]) -> str:
    """Return the metadata: in turn, how many offsets in a row are not done, and how many behind these are."""
    data, at = bytearray(), committed
    for begin, end in ranges:
        data.extend(_bytes_of(begin - at))
        data.extend(_bytes_of(end - begin))
        at = end
    return VERSION + b64encode(zlib.compress(data, 1)).decode()


def _bytes_of(number: int) -> Iterator[int]:
    """Yield the bytes of a variable-length integer: seven bits each, the lowest first, the eighth set in all but the last."""
    while number > 127:
        yield number & 127 | 128
        number >>= 7
    yield number


def _numbers(data: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0

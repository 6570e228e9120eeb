"""Limits of rate for each address: of requests, and of wrong tokens. Memory is bounded: the address not seen for longest is forgotten."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address


@dataclass(frozen=True)
class Rates:
    """The limits of one address. A probe has none."""

    requests_per_second: float = 100.0
    requests_at_once: int = 400
    wrong_tokens: int = 5
    """In a row, before a wait that doubles from one second to `max_wait`."""
    max_wait: float = 60.0
    forget_after: float = 600.0
    """Seconds without a wrong token after which the next one is the first again."""
    max_addresses: int = 4096


class Requests:
    """A token bucket for each address."""

    def __init__(self, rates: Rates, clock: Callable[[], float]) -> None:
        self._rates, self._clock = rates, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # permits left, and when that was true

    def __len__(self) -> int:
        return len(self._buckets)

    def wait(self, address: str) -> float:
        """Return 0.0 and count a request, or return the seconds until the next one is allowed."""
        now, rate = self._clock(), self._rates.requests_per_second
        permits, since = self._buckets.pop(address, (self._rates.requests_at_once, now))
        permits = min(permits + (now - since) * rate, self._rates.requests_at_once)
        allowed = permits >= 1
        self._buckets[address] = (permits - allowed, now)
        if len(self._buckets) > self._rates.max_addresses:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - permits) / rate


class WrongTokens:
    """A wait for each address that grows with each wrong token. The right token ends it."""

    def __init__(self, rates: Rates, clock: Callable[[], float]) -> None:
        self._rates, self._clock = rates, clock
        self._seen: OrderedDict[str, tuple[int, float]] = (
            OrderedDict()
        )  # wrong tokens in a row, and the time of the last

    def __len__(self) -> int:
        return len(self._seen)

    def wait(self, address: str) -> float:
        """Return the seconds for which no token of this address is looked at, right or wrong."""
        count, last = self._seen.get(address, (0, 0.0))
        if count < self._rates.wrong_tokens:
            return 0.0
        wait = min(2.0 ** min(count - self._rates.wrong_tokens, 30), self._rates.max_wait)
        return max(last + wait - self._clock(), 0.0)

    def wrong(self, address: str) -> None:
        now = self._clock()
        count, last = self._seen.pop(address, (0, now))
        self._seen[address] = (1 if now - last > self._rates.forget_after else count + 1, now)
        if len(self._seen) > self._rates.max_addresses:
            self._seen.popitem(last=False)

    def right(self, address: str) -> None:
        self._seen.pop(address, None)


def group(address: str) -> str:
    """Return the part of an address that one client can't change: 64 bits of IPv6, all of IPv4."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return parsed.exploded[:19] + "::/64"

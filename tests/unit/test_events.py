from typing import Any

from supervisor.events import Bus, StoreAvailableAgain, StoreBecameUnavailable


def test_every_subscriber_receives_every_event_in_order_and_at_once() -> None:
    bus, received = Bus(), []
    bus.subscribe(lambda event: received.append(("first", event)))
    bus.emit(StoreBecameUnavailable("locked"))
    bus.subscribe(lambda event: received.append(("second", event)))
    bus.emit(StoreAvailableAgain(1.0))
    assert received == [
        ("first", StoreBecameUnavailable("locked")),
        ("first", StoreAvailableAgain(1.0)),
        ("second", StoreAvailableAgain(1.0)),
    ]


def test_a_subscriber_to_one_type_receives_its_events_only_and_in_its_turn() -> None:
    bus = Bus()
    received: list[tuple[str, Any]] = []
    bus.subscribe(lambda event: received.append(("first", event)), StoreAvailableAgain)
    bus.subscribe(lambda event: received.append(("second", event)))
    bus.emit(StoreBecameUnavailable("locked"))
    bus.emit(StoreAvailableAgain(1.0))
    assert received == [
        ("second", StoreBecameUnavailable("locked")),
        ("first", StoreAvailableAgain(1.0)),
        ("second", StoreAvailableAgain(1.0)),
    ]

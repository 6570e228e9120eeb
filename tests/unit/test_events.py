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

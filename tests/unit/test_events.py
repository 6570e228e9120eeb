from supervisor.events import Bus, StoreBack, StoreLost


def test_every_subscriber_hears_every_event_in_order_and_at_once() -> None:
    bus, heard = Bus(), []
    bus.subscribe(lambda event: heard.append(("first", event)))
    bus.emit(StoreLost("locked"))
    bus.subscribe(lambda event: heard.append(("second", event)))
    bus.emit(StoreBack(1.0))
    assert heard == [("first", StoreLost("locked")), ("first", StoreBack(1.0)), ("second", StoreBack(1.0))]

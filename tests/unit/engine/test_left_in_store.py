"""What claims have left in the store: looks that show a part of thousands of queues say nothing of the others."""

from __future__ import annotations

from collections import Counter

from supervisor.config.settings import Settings
from supervisor.engine.current_config import CurrentConfig
from supervisor.engine.fairness import QueueBuffers
from supervisor.engine.left_in_store import LeftInStore
from supervisor.jobs import Lease, Policy, Tier
from supervisor.stores.records import Waiting

ONE = Waiting(1, 0)


def test_a_part_changes_the_numbers_of_its_own_queues_only() -> None:
    left = LeftInStore()
    left.note(dict.fromkeys("abcdefg", ONE), None)
    assert left.note({"c": Waiting(5, 2), "e": ONE}, "b") == ["d"]
    assert left.by_queue == dict.fromkeys("abefg", ONE) | {"c": Waiting(5, 2)}


def test_a_part_may_go_on_with_the_first_queues() -> None:
    left = LeftInStore()
    left.note(dict.fromkeys("abcdefg", ONE), None)
    assert sorted(left.note(dict.fromkeys("hb", ONE), "e")) == ["a", "f", "g"]
    assert left.by_queue.keys() == set("bcdeh")
    assert sorted(left.note(dict.fromkeys("ehc", ONE), "c")) == ["b", "d"]
    assert left.by_queue.keys() == set("ceh")


def test_a_look_at_all_queues_replaces_what_was_kept() -> None:
    left = LeftInStore()
    left.note(dict.fromkeys("abc", ONE), "")
    left.note({"c": ONE}, None)
    assert left.by_queue == {"c": ONE}
    assert left.note({"b": ONE}, "") == []
    assert left.by_queue.keys() == {"b", "c"}


def test_retries_spend_tokens_while_fresh_jobs_wait_in_a_queue_that_the_last_look_did_not_show() -> None:
    buffers = QueueBuffers(CurrentConfig(Settings(), []))
    buffers.note_left_in_store({"mail": Waiting(7, 3)})
    buffers.note_left_in_store({"news": ONE, "other": ONE}, "mail")
    buffers.add([Lease(n, 1, "send", "mail", "null", None, 1, 0, Tier.RETRY, 0, 0, Policy()) for n in range(100)])
    assert buffers.left_in_store.ready("mail") == 10
    assert len(list(buffers.in_turn(2, Counter))) < 100
    buffers.note_left_in_store({"news": ONE}, "a")
    assert buffers.left_in_store.ready("mail") == 0

"""No history of a Kafka store loses a record, runs one out of order, or commits an offset past one that is not done.

Two supervisors share the partitions of a topic. `SUPERVISOR_MODEL_EXAMPLES` is how many histories are tried.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from supervisor.config.settings import RetentionSettings
from supervisor.jobs import Lease
from supervisor.stores.kafka import state as kafka_state
from supervisor.stores.kafka.ids import place_of
from supervisor.stores.kafka.offsets import done_ranges
from supervisor.stores.kafka.partitions import line_of
from supervisor.stores.records import DeadLetter
from tests.stores.factories import TTL, Clock, again, dead, release, success, take
from tests.stores.simulated_kafka import FedStore, Log, PartitionName, kafka_settings
from tests.stores.test_model import EXAMPLES, Failed, pick

NAMES: list[PartitionName] = [("t", 0), ("t", 1)]
MAX_ENDED = 3
STEPS = 40

AT = st.integers(0, 1)
NAME = st.sampled_from(NAMES)
PICKS = st.lists(st.integers(0, 7), min_size=1, max_size=4)
ENDINGS = {
    "success": success,
    "retry": lambda lease: again(lease, delay=2.0),
    "retry at once": lambda lease: again(lease, delay=0.0),
    "dead letter": dead,
    "failed": lambda lease: dead(lease, dead_letter=False),
    "released": release,
    "put off": lambda lease: release(lease, delay=2.0),
}
ENDING = st.sampled_from(["success", *ENDINGS])
SETTLE = st.tuples(st.just("settle"), st.dictionaries(st.integers(0, 7), ENDING, min_size=1, max_size=6))
OPERATION = st.one_of(
    st.tuples(st.just("claim"), st.integers(1, 5)), SETTLE, SETTLE, SETTLE,
    st.tuples(st.just("claim_dead_letters"), st.integers(1, 3)),
    st.tuples(st.just("accept"), PICKS),
    st.tuples(st.just("postpone"), PICKS),
    st.tuples(st.just("cancel"), PICKS),
    st.tuples(st.just("make_due"), PICKS),
    st.tuples(st.just("look"), st.integers(0, 3)),
    st.tuples(st.just("prune"), st.integers(1, 3)),
)  # fmt: skip
OPERATIONS = st.lists(OPERATION, min_size=2, max_size=8)
WORK = st.lists(st.tuples(st.just("claim"), st.just(5)) | SETTLE, min_size=2, max_size=6)


@dataclass
class Model:
    """`done` are the offsets whose jobs have ended by an answer of their store that was not stale. `ended` are those of them that
    the present owner of a partition knows: it has done them, or the metadata says so."""

    done: dict[PartitionName, set[int]] = field(default_factory=lambda: defaultdict(set))
    ended: dict[PartitionName, set[int]] = field(default_factory=dict)
    held: list[dict[int, int]] = field(default_factory=lambda: [{}, {}])
    """Of each supervisor, the tokens of what is in flight."""
    offered: list[dict[int, int]] = field(default_factory=lambda: [{}, {}])
    """Of each supervisor, the pending dead letters and their tokens."""


class Machine(RuleBasedStateMachine):
    """`leases` and `dead_letters` are all that each supervisor ever got, the newest first."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.log, self.model = Clock(), Log(), Model()
        self.owner: dict[PartitionName, int] = {}
        self.starts: dict[PartitionName, int] = {}
        """The offset that was committed when a partition was assigned."""
        self.leases: list[list[Lease]] = [[], []]
        self.dead_letters: list[list[DeadLetter]] = [[], []]
        self.claimed: dict[Any, list[int]] = defaultdict(list)
        """The offsets that were claimed of each line in each assignment."""

    @initialize(ordering=st.sampled_from(["key", "key", "partition", "unordered"]))
    def start(self, ordering: str) -> None:
        self.ordering = ordering
        self.stores = [self.started(), self.started()]
        for at, name in enumerate(NAMES):
            for key in (b"a", b"b", b"a", None, b"b", None, b"a"):
                self.log.append(name, key)
            self.assign(at, name)
            self.fetch(name, 5)

    def started(self) -> FedStore:
        store = FedStore(self.log, kafka_settings({"t": "order"}, ordering=self.ordering), self.clock)
        store.join("one", "host", 4711, frozenset({"dlq"}))
        return store

    # the group

    @rule(name=NAME, keys=st.lists(st.sampled_from([None, b"a", b"b"]), min_size=1, max_size=4), gap=st.integers(0, 2))
    def produce(self, name: PartitionName, keys: Sequence[bytes | None], gap: int) -> None:
        for key in keys:
            self.log.append(name, key, gap=gap)

    @rule(name=NAME, limit=st.integers(1, 6))
    def fetch(self, name: PartitionName, limit: int) -> None:
        self.stores[self.owner[name]].fetch(name, limit)

    @rule(name=NAME)
    def commit(self, name: PartitionName) -> None:
        """All that is known to be done is known after a restart."""
        self.stores[self.owner[name]].commit(name)
        if name in self.log.committed:
            committed, metadata = self.log.committed[name]
            said = offsets_of(done_ranges(committed, metadata))
            assert all(offset < committed or offset in said for offset in self.model.ended[name])

    @rule(name=NAME, to=AT, operations=OPERATIONS, read=st.integers(0, 6))
    def revoke(self, name: PartitionName, to: int, operations: Sequence[tuple[str, Any]], read: int) -> None:
        """Some of what runs ends before the partition is dropped, and none of it starts."""
        at = self.owner[name]
        store = self.stores[at]
        store.state.give_up(store.named([name]), 0.0)
        mine = (at, name, store.partitions[name].epoch)
        before = {key: list(offsets) for key, offsets in self.claimed.items() if key[:3] == mine}
        with store.transaction():
            self.do_all(at, operations)
        self.do_all(at, [("look", 10), ("claim", 10)])
        assert {key: offsets for key, offsets in self.claimed.items() if key[:3] == mine} == before
        self.commit(name)
        store.lose(name)
        self.dropped(name)
        self.assign(to, name)
        self.fetch(name, read)

    @rule(name=NAME, to=AT, read=st.integers(0, 6))
    def lose(self, name: PartitionName, to: int, read: int) -> None:
        self.stores[self.owner[name]].lose(name)
        self.dropped(name)
        self.assign(to, name)
        self.fetch(name, read)

    @rule(at=AT)
    def crash(self, at: int) -> None:
        names = [name for name, owner in self.owner.items() if owner == at]
        for name in names:
            self.dropped(name)
        self.stores[at] = self.started()
        self.leases[at], self.dead_letters[at] = [], []
        self.claimed = defaultdict(list, {key: it for key, it in self.claimed.items() if key[0] != at})
        for name in names:
            self.assign(1 - at, name)

    def assign(self, at: int, name: PartitionName) -> None:
        committed, metadata = self.log.committed.get(name, (0, ""))
        self.model.ended[name] = offsets_of(done_ranges(committed, metadata))
        self.owner[name], self.starts[name] = at, committed
        self.stores[at].assign(name)

    def dropped(self, name: PartitionName) -> None:
        at = self.owner.pop(name)
        del self.model.ended[name]
        for tokens in (self.model.held[at], self.model.offered[at]):
            for id in [id for id in tokens if place_of(id).partition == name[1]]:
                del tokens[id]

    # the engine and operators

    @rule(at=AT, operations=WORK)
    def work(self, at: int, operations: Sequence[tuple[str, Any]]) -> None:
        self.do_all(at, operations)

    @rule(at=AT, operations=OPERATIONS)
    def one_after_the_other(self, at: int, operations: Sequence[tuple[str, Any]]) -> None:
        self.do_all(at, operations)

    @rule(at=AT, operations=OPERATIONS)
    def in_one_transaction(self, at: int, operations: Sequence[tuple[str, Any]]) -> None:
        with self.stores[at].transaction():
            self.do_all(at, operations)

    @rule(at=AT, operations=OPERATIONS)
    def in_a_transaction_that_fails(self, at: int, operations: Sequence[tuple[str, Any]]) -> None:
        with self.undone(), suppress(Failed), self.stores[at].transaction():
            self.do_all(at, operations)
            raise Failed

    @rule(seconds=st.sampled_from([1.0, 3.0, 40.0]))
    def step(self, seconds: float) -> None:
        self.clock.step(seconds)

    @contextmanager
    def undone(self) -> Iterator[None]:
        names = ("model", "leases", "dead_letters", "claimed")
        before = {name: deepcopy(getattr(self, name)) for name in names}
        yield
        self.__dict__.update(before)

    def do_all(self, at: int, operations: Sequence[tuple[str, Any]]) -> None:
        for name, argument in operations:
            getattr(self, f"do_{name}")(at, argument)

    def do_claim(self, at: int, limit: int) -> None:
        leases = take(self.stores[at], limit, queue="t")
        for lease in leases:
            name, offset = self.place(lease.id)
            partition = self.stores[at].partitions[name]
            record = self.stores[at].state.assignment.records[lease.id]
            assert offset not in self.model.ended[name], "it was done, by this owner or an earlier one"
            assert lease.id not in self.model.held[at]
            line = line_of(self.ordering, partition, record.key)
            if line is not None:
                before = self.claimed[at, name, partition.epoch, line]
                assert not before or before[-1] <= offset, "out of order"
                before.append(offset)
                mine = [id for id in self.model.held[at] if self.line(at, id) == line]
                assert not mine, "two of a line at once"
            self.model.held[at][lease.id] = lease.token
        self.leases[at] = leases + self.leases[at]

    def do_settle(self, at: int, picks: dict[int, str]) -> None:
        chosen = {lease.id: (lease, how) for n, how in picks.items() for lease in pick(self.leases[at], [n])}
        last = {id: job.settled for id, job in self.stores[at].state.jobs.items()}
        stale = self.stores[at].settle([ENDINGS[how](lease) for lease, how in chosen.values()])
        for lease, how in chosen.values():
            held = self.model.held[at].get(lease.id) == lease.token
            assert (lease.id not in stale) == (held or last.get(lease.id) == lease.token)
            if held:
                del self.model.held[at][lease.id]
                if how in ("success", "failed"):
                    self.is_done(lease.id)
                elif how == "dead letter":
                    self.model.offered[at][lease.id] = 0

    def do_claim_dead_letters(self, at: int, limit: int) -> None:
        claimed = self.stores[at].claim_dead_letters(limit, TTL)
        for each in claimed:
            name, offset = self.place(each.id)
            assert each.id in self.model.offered[at]
            assert (each.job["record"]["partition"], each.job["record"]["offset"]) == (name[1], offset)
            self.model.offered[at][each.id] = each.token
        self.dead_letters[at] = claimed + self.dead_letters[at]

    def do_accept(self, at: int, picks: Sequence[int]) -> None:
        chosen = {each.id: each for each in pick(self.dead_letters[at], picks)}
        stale = self.stores[at].mark_accepted(list(chosen.values()), "dlq")
        for each in chosen.values():
            if each.id not in stale and self.model.offered[at].get(each.id) == each.token:
                del self.model.offered[at][each.id]
                self.is_done(each.id)
        assert not set(stale) & {
            each.id for each in chosen.values() if self.model.offered[at].get(each.id) == each.token
        }

    def do_postpone(self, at: int, picks: Sequence[int]) -> None:
        self.stores[at].postpone(list({each.id: each for each in pick(self.dead_letters[at], picks)}.values()), 3.0)

    def do_cancel(self, at: int, picks: Sequence[int]) -> None:
        for id in self.stores[at].cancel(pick(sorted(self.stores[at].state.jobs), picks)).changed:
            self.model.held[at].pop(id, None)
            self.is_done(id)

    def do_make_due(self, at: int, picks: Sequence[int]) -> None:
        self.stores[at].retry(pick(sorted(self.stores[at].state.jobs), picks))

    def do_look(self, at: int, limit: int) -> None:
        self.stores[at].look(None, limit)

    def do_prune(self, at: int, limit: int) -> None:
        self.stores[at].prune(RetentionSettings(succeeded=0.0, failed=0.0, cancelled=0.0), limit)

    def is_done(self, id: int) -> None:
        name, offset = self.place(id)
        assert offset not in self.model.ended[name]
        self.model.ended[name].add(offset)
        self.model.done[name].add(offset)

    def place(self, id: int) -> tuple[PartitionName, int]:
        place = place_of(id)
        return NAMES[place.partition], place.offset

    def line(self, at: int, id: int) -> Any:
        return self.stores[at].state.assignment.records[id].line

    # what always holds

    @invariant()
    def all_below_a_committed_offset_is_done_and_so_is_what_its_metadata_says(self) -> None:
        for name, (committed, metadata) in self.log.committed.items():
            said = offsets_of(done_ranges(committed, metadata))
            for message in self.log.messages[name]:
                if message.offset < committed or message.offset in said:
                    assert message.offset in self.model.done[name], (name, message.offset)

    @invariant()
    def each_fetched_record_is_done_or_known(self) -> None:
        for name, at in self.owner.items():
            partition, records = self.stores[at].partitions[name], self.stores[at].state.assignment.records
            for message in self.log.messages[name]:
                if self.starts[name] <= message.offset < (partition.offsets.position or 0):
                    id = self.stores[at].record(partition, message).id
                    assert (id in records) != (message.offset in self.model.ended[name]), (name, message.offset)

    @invariant()
    def indices_agree_with_the_jobs(self) -> None:
        for at, store in enumerate(self.stores):
            state, assignment = store.state, store.state.assignment
            jobs = state.jobs.values()
            counted = Counter((job.row.queue, job.tier, job.state) for job in jobs)
            assert {key: n for key, n in state.counts.items() if n} == counted
            assert dict(store.held()) == self.model.held[at]
            assert {job.id for job in state.pending_dead_letters()} == set(self.model.offered[at])
            running = {
                id for id, job in state.jobs.items() if not job.state.terminal or job.dead_letter_state == "pending"
            }
            waiting = [record.id for record in assignment.lines.waiting()]
            assert sorted([*running, *waiting]) == sorted(assignment.records)
            assert len(state.jobs.keys() - running) <= MAX_ENDED
            for name, partition in assignment.partitions.items():
                mine = [record for record in assignment.records.values() if record.partition is partition]
                assert partition.offsets.undone == len(mine)
                assert partition.bytes == sum(record.bytes for record in mine)
                assert self.owner[name] == at

    def teardown(self) -> None:
        """Whatever has happened, all records are run to their end."""
        if not hasattr(self, "stores"):
            return
        for name in NAMES:
            self.fetch(name, 1000)
        for _ in range(2 * sum(len(messages) for messages in self.log.messages.values()) + 2):
            self.step(1000.0)
            for at in (0, 1):
                self.do_all(at, [("settle", dict.fromkeys(reversed(range(len(self.leases[at]))), "success"))])
                self.do_all(at, [("claim_dead_letters", 1000), ("accept", range(len(self.dead_letters[at]))[::-1])])
                self.do_all(at, [("look", 1000), ("claim", 1000)])
        self.all_below_a_committed_offset_is_done_and_so_is_what_its_metadata_says()
        for name in NAMES:
            self.commit(name)
            assert self.log.committed[name] == (self.log.ends[name], "")
            assert {message.offset for message in self.log.messages[name]} <= self.model.done[name]


def offsets_of(ranges: Sequence[tuple[int, int]]) -> set[int]:
    return {offset for begin, end in ranges for offset in range(begin, end)}


@pytest.mark.timeout(900)  # a history that fails is made short before it is reported
def test_no_history_loses_a_record_or_changes_the_order_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_state, "MAX_ENDED", MAX_ENDED)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )

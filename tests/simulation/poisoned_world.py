"""A world without faults but one: in each round some jobs kill every supervisor that runs them, among many innocent ones."""

from __future__ import annotations

from supervisor.jobs import Lease
from supervisor.stores.records import EnqueueRow
from tests.simulation.checks import TERMINAL
from tests.simulation.promises import holds
from tests.simulation.world import QUEUES, World

ROUNDS = 10
LONGEST_ROUND = 24 * 3600.0


class PoisonedWorld(World):
    may_limit = False

    def run(self) -> None:
        self.stormy = False
        try:
            for _ in range(self.random.randint(1, 3)):
                self.start_owner()
            for _ in range(ROUNDS):
                self._round()
        except Exception as error:
            error.add_note(f"seed {self.seed}, at {self.clock.now:.3f}; the last steps:")
            error.add_note("\n".join(self.steps))
            raise
        finally:
            self._close()

    def script(self, lease: Lease) -> tuple[str, float]:
        if lease.handler == "hopeless":
            return "poison", self.random.choice([0.0, 0.01, 2.0, 40.0])
        return "ok", self.random.choice([0.001, 1.0, 20.0, 200.0])

    def _row(self, name: str) -> EnqueueRow:
        return EnqueueRow(name, "null", self.random.choice(QUEUES), 0, max_retries=self.random.choice([None, 0]))

    def _round(self) -> None:
        first = max(self.checks.records, default=0)
        names = ["fast"] * self.random.randint(3, 30)
        for _ in range(self.random.choice([1, 1, 2, 4])):
            names.insert(self.random.randint(0, len(names)), "hopeless")
        self.add([self._row(name) for name in names])
        give_up = self.clock.now + LONGEST_ROUND
        fresh = self.random.choice([0, 0, 20])
        while True:
            records = [record for id, record in self.checks.records.items() if id > first]
            if all(record.state in TERMINAL for record in records):
                break
            self._go_on_for(20.0)
            if fresh:
                fresh -= 1
                self.add([self._row("fast"), self._row(self.random.choice(["fast"] * 9 + ["hopeless"]))])
            holds(self.clock.now < give_up, "the jobs of a round do not end:", records)
        for record in records:
            if record.handler == "hopeless":
                holds((record.state, record.retries) == ("failed", record.max_retries), "it does not pay:", record)
            else:
                holds((record.state, record.retries) == ("succeeded", 0), "an innocent job pays:", record)

"""The hand of the chaos: what it does, and when, is a function of its seed alone; whom it meets depends on who lives then."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import psutil

from tests.system.chaos_grounds import Ground, Span, Trick
from tests.system.chaos_load import Load
from tests.system.chaos_runs import Seat

BETWEEN = 0.3  # seconds from one act to the next, on the average
TURN = 0.03
MANY_WORKERS = 4

ACTS: dict[str, tuple[int, Span]] = {  # how often, and for how many seconds
    "kill worker": (14, (0.0, 0.0)),
    "stop worker": (8, (0.05, 3.5)),
    "term worker": (3, (0.0, 0.0)),
    "kill nursery": (5, (0.0, 0.0)),
    "stop nursery": (4, (0.1, 3.0)),
    "term nursery": (2, (0.0, 0.0)),
    "kill supervisor": (5, (0.0, 0.0)),
    "term supervisor": (4, (0.0, 0.0)),
    "stop supervisor": (7, (0.3, 9.0)),
    "delay supervisor": (8, (0.01, 0.08)),
    "hup supervisor": (3, (0.0, 0.0)),
    "ttin supervisor": (2, (0.0, 0.0)),
    "ttou supervisor": (2, (0.0, 0.0)),
    "kill client": (2, (0.0, 0.0)),
}
"""On every ground; each has tricks of its own."""


@dataclass(frozen=True)
class Act:
    """At `at` seconds from the beginning; `whom` and `which` in [0, 1) choose among those who are there."""

    at: float
    what: str
    whom: float
    which: float
    seconds: float


@dataclass
class Deed:
    """An act that met somebody: run number `run`, whoever sits at `stand`, or nobody in particular (0, None); monotonic
    seconds."""

    what: str
    run: int
    pid: int
    at: float
    until: float
    stand: int | None = None


def plan(
    seed: str, seconds: float, tricks: Mapping[str, tuple[int, Span]], without: frozenset[str] = frozenset()
) -> list[Act]:
    """The acts of `seconds` seconds. What is left out changes nothing of the rest."""
    chance, at, acts = Random(seed), 1.0, []
    known = {**ACTS, **tricks}
    names, weights = list(known), [size for size, _ in known.values()]
    while (at := at + chance.expovariate(1 / BETWEEN)) < seconds:
        what = chance.choices(names, weights)[0]
        act = Act(at, what, chance.random(), chance.random(), chance.uniform(*known[what][1]))
        if what not in without:
            acts.append(act)
    return acts


class Executor:
    """Every deed is undone in time, and by `rest` at the latest."""

    def __init__(self, seats: list[Seat], load: Load, ground: Ground) -> None:
        self._seats, self._load, self._ground = seats, load, ground
        self._undo: list[tuple[Deed, Callable[[], object]]] = []
        self.deeds: list[Deed] = []

    def follow(self, acts: list[Act]) -> None:
        begun = time.monotonic()
        for act in acts:
            self._wait_until(begun + act.at)
            self._do(act)

    def rest(self) -> None:
        """Let go of everything; a supervisor sits at every place."""
        self.let_go()
        while not self._tend():
            time.sleep(TURN)

    def ending(self) -> list[int]:
        """The runs that were told to end and have not: told once more, they would be forced."""
        told = {deed.run for deed in self.deeds if deed.what == "term supervisor"}
        return [seat.number for seat in self._seats if seat.number in told]

    def end_well(self) -> None:
        """Tell everybody to end."""
        for seat in self._seats:
            if (process := seat.process()) is not None:
                self._send(Act(0.0, "term supervisor", 0.0, 0.0, 0.0), signal.SIGTERM, seat, process)

    def _wait_until(self, when: float) -> None:
        while (now := time.monotonic()) < when:
            self.let_go(now)
            self._tend()
            time.sleep(min(TURN, when - now))

    def _tend(self) -> bool:
        return sum(seat.tend() for seat in self._seats) == len(self._seats)

    def let_go(self, now: float = float("inf")) -> None:
        """Undo what was to last until now."""
        due = [(deed, undo) for deed, undo in self._undo if deed.until <= now]
        self._undo = [(deed, undo) for deed, undo in self._undo if deed.until > now]
        for deed, undo in due:
            undo()
            deed.until = time.monotonic()

    def _do(self, act: Act) -> None:
        verb, _, object = act.what.partition(" ")
        if act.what == "kill client":
            self._load.kill()
            self._note(act, 0, 0)
        elif (trick := self._ground.tricks.get(act.what)) is not None:
            self._play(act, trick)
        else:
            self._signal(act, verb, object)

    def _note(self, act: Act, run: int, pid: int) -> Deed:
        now = time.monotonic()
        deed = Deed(act.what, run, pid, now, now + act.seconds)
        self.deeds.append(deed)
        return deed

    def _signal(self, act: Act, verb: str, object: str) -> None:
        seat = self._seats[int(act.whom * len(self._seats))]
        process = self._find(seat, object, act.which)
        if process is None or (verb in ("hup", "ttin", "ttou") and not seat.serves):
            return
        if verb == "ttin" and len(seat.workers()) >= MANY_WORKERS:
            return
        self._send(
            act, signal.SIGSTOP if verb in ("stop", "delay") else signal.Signals[f"SIG{verb.upper()}"], seat, process
        )

    def _send(self, act: Act, number: signal.Signals, seat: Seat, process: psutil.Process) -> None:
        deed = self._note(act, seat.number, process.pid)
        with suppress(psutil.Error):
            process.send_signal(number)
            if number is signal.SIGSTOP:
                self._undo.append((deed, lambda: self._let_go_on(process)))

    def _let_go_on(self, process: psutil.Process) -> None:
        """Unless another deed still holds it."""
        if not any(deed.pid == process.pid for deed, _ in self._undo):
            with suppress(psutil.Error):
                process.resume()

    def _find(self, seat: Seat, object: str, which: float) -> psutil.Process | None:
        if object == "supervisor":
            return seat.process()
        if object == "nursery":
            return seat.forkserver()
        workers = seat.workers()
        return workers[int(which * len(workers))] if workers else None

    def _play(self, act: Act, trick: Trick) -> None:
        deed = self._note(act, 0, 0)
        played = trick.play(act.whom)
        if played is None:
            self.deeds.remove(deed)
            return
        deed.stand, undo = played
        deed.until = time.monotonic() + act.seconds
        self._undo.append((deed, undo))

"""Whether a HUP comes from a terminal that was closed."""

from __future__ import annotations

from supervisor.runtime.terminal import RECENT, Terminal


class Scripted:
    def __init__(self, there: bool) -> None:
        self.there, self.now = there, 100.0
        self.terminal = Terminal(lambda: self.there, lambda: self.now)


def test_a_hup_right_after_the_terminal_was_closed_comes_from_it() -> None:
    here = Scripted(there=True)
    here.terminal.look()
    here.there = False
    here.terminal.look()  # a look between the end of the terminal and the signal changes nothing
    here.now += RECENT / 2
    assert here.terminal.was_closed()


def test_a_hup_long_after_the_terminal_was_closed_is_an_operators() -> None:
    here = Scripted(there=True)
    here.there = False
    here.terminal.look()
    here.now += RECENT
    assert not here.terminal.was_closed()


def test_without_a_terminal_or_while_it_is_there_every_hup_is_an_operators() -> None:
    assert not Scripted(there=False).terminal.was_closed()
    assert not Scripted(there=True).terminal.was_closed()

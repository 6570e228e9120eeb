"""The screens that lie over the main one: a question, the help, the story of a job."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from supervisor.cli.job_output import print_job
from supervisor.cli.render import clipped

HELP = """\
Tab, Shift-Tab    the next panel, the one before: queues, workers, jobs
Enter             open the job under the cursor, or list the jobs of the queue
/                 list the jobs with a text: an id, queue:NAME, handler:NAME,
                  or a part of a name or of the last error; Escape: all again
s, S              list the jobs in the next state, in the one before
o, O              sort the panel by its next column; the other way round
r                 retry: a scheduled job is due now, a failed one runs again
c                 cancel, after a question: the worker of a running job ends
d                 delete, after a question
R                 redrive a dead letter
p                 pause the queue under the cursor, or resume it
P                 show all problems
space             look now
q, Ctrl-C         quit

Escape leaves this page."""


class LookNow(Message):
    """Something has changed, or other jobs are wanted: do not wait for the next look."""


class Question(ModalScreen[bool]):
    """Asks before a job is changed. Only `y` is yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "answer(True)", "yes"),
        ("n,escape,enter,q,ctrl+c", "answer(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{self._question}\n\ny: yes   n: no"), id="question", markup=False)

    def action_answer(self, answer: bool) -> None:
        if self.is_current:  # else a key that was pressed twice has ended it already
            self.dismiss(answer)


class Page(Screen[None]):
    """Text of many lines that can be scrolled."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter", "leave", "back")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        yield Static(Text(self._title), classes="head", markup=False)
        with VerticalScroll():
            yield Static(Text(self._text), classes="text", markup=False)
        yield Static(Text(self.keys), classes="keys", markup=False)

    @property
    def keys(self) -> str:
        return "Escape back   ↑ ↓ PgUp PgDn scroll"

    def show(self, text: str) -> None:
        if text != self._text:
            self._text = text
            self.query_one(".text", Static).update(Text(text))

    def action_leave(self) -> None:
        if self.is_current:
            self.dismiss()


class JobPage(Page):
    """The story of one job, as `jobs show` prints it. The keys that change a job work here too."""

    def __init__(self, id: int) -> None:
        super().__init__(f"job {id}", "reading …")
        self.job = id

    def compose(self) -> ComposeResult:
        yield from super().compose()
        yield Static(id="report", markup=False)

    def on_mount(self) -> None:
        self.post_message(LookNow())

    def show(self, text: str) -> None:
        self.head(f"job {self.job}")
        super().show(text)

    def head(self, text: str) -> None:
        self.query_one(".head", Static).update(Text(clipped(text, 300)))

    def report(self, text: str) -> None:
        self.query_one("#report", Static).update(Text(clipped(text, 300)))

    @property
    def keys(self) -> str:
        return "Escape back   ↑ ↓ scroll   r retry   c cancel   d delete   R redrive"


def story(job: dict[str, Any] | None, shown: Callable[[str], str]) -> str:
    """Return all about a job; `print_job` escapes what would steer a terminal."""
    if job is None:
        return "there is no such job any more"
    with redirect_stdout(out := io.StringIO()):
        print_job(job, as_json=False)
    return shown(out.getvalue())

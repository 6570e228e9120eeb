"""The main screen of `supervisor top`: problems, and the panels of queues, workers and jobs."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Input, Static

from supervisor.cli.live.looks import Look, Wanted
from supervisor.cli.live.rows import (
    JOB_COLUMNS,
    QUEUE_COLUMNS,
    WORKER_COLUMNS,
    Mask,
    head_line,
    job_rows,
    list_line,
    problem_lines,
    queue_rows,
    worker_rows,
)
from supervisor.cli.live.screens import JobPage, LookNow
from supervisor.cli.live.tables import Table
from supervisor.cli.render import clipped
from supervisor.jobs import JobState

STATES = (None, *JobState)
MAX_PROBLEMS = 3
KEYS = (
    "? help  q quit  P problems  / find  s state  o sort  Enter open  r retry  c cancel  d delete  p pause  R redrive"
)


class MainScreen(Screen[None]):
    """`wanted` are the jobs that its list shall have at the next look."""

    VERTICAL_BREAKPOINTS = [(0, "-low"), (18, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "panel(1)", "next panel", priority=True),
        Binding("shift+tab", "panel(-1)", "panel before", priority=True),
        Binding("slash", "find", "find", priority=True),
        ("escape", "find_all", "all jobs"),
        ("s", "state(1)", "state"),
        ("S", "state(-1)", "state before"),
    ]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title
        self._last: Look | None = None
        self.wanted = Wanted()

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{self._title}: reading …"), id="head", markup=False)
        yield Static(id="problems", markup=False)
        yield Table("queues", QUEUE_COLUMNS)
        yield Table("workers", WORKER_COLUMNS)
        yield Static(id="list", markup=False)
        yield Table("jobs", JOB_COLUMNS, classes="-current")
        yield Static(id="message", markup=False)
        yield Input(
            id="find", placeholder="an id, queue:NAME, handler:NAME, a part of a name or of an error", compact=True
        )
        yield Static(Text(KEYS), classes="keys", markup=False)

    def on_mount(self) -> None:
        self.table.focus()

    def show(self, found: Look, mask: Mask) -> None:
        self._last = found
        self.line("head", head_line(found, self._title))
        lines = problem_lines(found, mask, MAX_PROBLEMS)
        problems = self.query_one("#problems", Static)
        problems.display = bool(lines)
        problems.update(Text("\n".join(lines)))
        for id, rows in (
            ("queues", queue_rows(found)),
            ("workers", worker_rows(found)),
            ("jobs", job_rows(found, mask)),
        ):
            self.query_one(f"#{id}", Table).show(rows)
        self.line("list", list_line(found))

    def line(self, id: str, text: str) -> None:
        """Show one line: `head`, `list` or `message`."""
        self.query_one(f"#{id}", Static).update(Text(clipped(text, 300)))

    # --- what is under the cursor

    @property
    def table(self) -> Table:
        """The panel that has the focus, or had it last."""
        return self.query_one("Table.-current", Table)

    @property
    def job(self) -> int | None:
        """The id of the job under the cursor."""
        return None if self.table.id == "queues" else self.table.selected

    @property
    def queue(self) -> str | None:
        """The queue under the cursor, or that of the job under it."""
        if self.table.id == "queues" or self._last is None:
            selected: str | None = self.table.selected
            return selected
        return next((job["queue"] for job in self._last.jobs if job["id"] == self.job), None)

    # --- keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Return whether the key is one of this screen; in the text to find it is a character."""
        return action != "find" or not isinstance(self.focused, Input)

    def action_panel(self, step: int) -> None:
        """Go to another panel. In a low terminal only this one is shown, and what is not shown takes no focus."""
        tables, before = list(self.query(Table)), self.table
        current = tables[(tables.index(before) + step) % len(tables)]
        before.remove_class("-current")
        current.add_class("-current")
        self.call_after_refresh(current.focus)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if self.table.id == "queues" and self.queue is not None:
            self.find(f"queue:{self.queue}")
        elif self.job is not None:
            self.app.push_screen(JobPage(self.job))

    def action_find(self) -> None:
        find = self.query_one("#find", Input)
        find.display, find.value = True, self.wanted.text
        self.set_focus(find)  # at once: the next key is a part of the text

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.find(event.value.strip())

    def action_find_all(self) -> None:
        self.find("")

    def find(self, text: str) -> None:
        """List the jobs that have this text."""
        self.query_one("#find", Input).display = False
        while self.table.id != "jobs":
            self.action_panel(1)
        self.table.focus()
        self._list(self.wanted._replace(text=text))

    def action_state(self, step: int) -> None:
        at = STATES.index(self.wanted.state)
        self._list(self.wanted._replace(state=STATES[(at + step) % len(STATES)]))

    def _list(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.line("list", f"reading {wanted.state or 'all'} jobs{f' with {wanted.text!r}' if wanted.text else ''} …")
        self.post_message(LookNow())

"""A table that keeps its cursor and its order while its rows change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.text import Text
from textual.binding import BindingType
from textual.widgets import DataTable

from supervisor.cli.live.rows import Row, unique
from supervisor.cli.render import STYLES

MIN_CUT = 16
"""No column is cut to fewer characters."""


class Table(DataTable[Text]):
    """Shows `Row`s. Their texts go into it as Text, in which markup has no meaning."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("o", "sort", "sort by the next column"),
        ("O", "sort_the_other_way", "sort the other way"),
    ]

    def __init__(self, id: str, columns: Sequence[str], classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes, cursor_type="row", cell_padding=1)
        self._names = columns
        self._given: Sequence[Row] = ()
        self._rows_shown: list[Row] = []
        self._sort_by: int | None = None
        self._downwards = False
        for n, name in enumerate(columns):
            self.add_column(Text(f"{name} "), key=str(n))

    @property
    def selected(self) -> Any:
        """The `of` of the row that the cursor is on; None if there is no row."""
        at = self.cursor_row
        return self._rows_shown[at].of if 0 <= at < len(self._rows_shown) else None

    def action_sort(self) -> None:
        """Sort by the next column; behind the last one comes the order in which the rows are given."""
        last = len(self._names) - 1
        self._sort_by = 0 if self._sort_by is None else None if self._sort_by == last else self._sort_by + 1
        self._downwards = False
        self.show(self._given)

    def action_sort_the_other_way(self) -> None:
        self._downwards = not self._downwards
        self.show(self._given)

    def show(self, rows: Sequence[Row]) -> None:
        """Replace the rows. The cursor stays on its row, or near it if that is gone."""
        by, ordered, is_same_look = self._sort_by, unique(rows), rows is self._given
        self._given = rows
        if by is not None:
            ordered.sort(key=lambda row: (isinstance(row.order[by], str), row.order[by]))
        if self._downwards:
            ordered.reverse()
        if ordered == self._rows_shown and not is_same_look:
            return
        at, top = self.cursor_row, self.scroll_y
        key = self._rows_shown[at].key if 0 <= at < len(self._rows_shown) else None
        self._rows_shown = ordered
        self.clear()
        self._set_columns()
        for row in ordered:
            self.add_row(*map(_text, row.cells, row.order), key=row.key)
        if ordered:
            found = next((n for n, row in enumerate(ordered) if row.key == key), min(at, len(ordered) - 1))
            self.move_cursor(row=max(0, found), scroll=False)
            self.scroll_to(y=top, animate=False, force=True)

    def _set_columns(self) -> None:
        """Mark the column by which the rows are sorted, and make each as wide as its texts: Textual may do that after it has drawn.
        A long name, unlike an error at the end of a row, must not push the other columns off the screen."""
        most = max(MIN_CUT, self.size.width // 3)
        for n, column in enumerate(self.ordered_columns):
            mark = " " if n != self._sort_by else "▼" if self._downwards else "▲"
            column.label = Text(f"{self._names[n]}{mark}")
            column.auto_width = False
            width = max(column.label.cell_len, *(cell_len(row.cells[n]) for row in self._rows_shown), 0)
            column.width = width if n == len(self._names) - 1 else min(width, most)


def _text(cell: str, order: Any) -> Text:
    justify: JustifyMethod = "right" if isinstance(order, int | float) else "left"
    return Text(cell, STYLES.get(cell, ""), justify=justify, overflow="ellipsis", no_wrap=True)

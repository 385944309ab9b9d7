"""Where commands write: people get text, programs get JSON. Everything goes to stdout but sentences about trouble.

JSON is written in ASCII, so that nothing in it can act on a terminal; text must have passed `lychd.cli.texts`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

STATUS_STYLES = {
    "queued": "cyan",
    "running": "blue",
    "cancelling": "yellow",
    "done": "green",
    "failed": "red",
    "cancelled": "yellow",
}

# A piece of a line: text, or text with a style.
type Piece = str | tuple[str, str]


def status_style(status: str) -> str:
    """The colour of a Run's status."""
    return STATUS_STYLES.get(status, "magenta")


class Output:
    """The two streams of a command.

    Args:
        as_json: write for programs.
        color: False never colours, None asks the terminal.
    """

    def __init__(self, *, as_json: bool, color: bool | None = None) -> None:
        self.as_json = as_json
        self.console = _console(sys.stdout, color)
        self._trouble = _console(sys.stderr, color)

    @property
    def interactive(self) -> bool:
        """Whether a person watches, so that something may be drawn over."""
        return self.console.is_terminal and not self.as_json

    def line(self, *pieces: Piece) -> None:
        """One line of text."""
        self.console.print(_text(pieces), soft_wrap=True)

    def text(self, text: str) -> None:
        """Harmless text of several lines, as it is."""
        self.console.print(Text(text), soft_wrap=True)

    def facts(self, rows: Sequence[tuple[str, Piece]]) -> None:
        """Names and values below each other."""
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.line((f"  {name:<{width}}  ", "dim"), value)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Piece]]) -> None:
        """A table: fitted to the terminal, or in full where nobody watches."""
        if self.interactive:
            table = Table(*header, box=None, pad_edge=False, header_style="dim")
            for row in rows:
                table.add_row(*(_text([cell]) for cell in row))
            self.console.print(table)
            return
        plain = [list(header), *([cell if isinstance(cell, str) else cell[0] for cell in row] for row in rows)]
        widths = [max(len(row[column]) for row in plain) for column in range(len(header))]
        for row in plain:
            self.line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    def document(self, value: Any) -> None:
        """The one JSON document of a command."""
        sys.stdout.write(json.dumps(value, indent=2) + "\n")
        sys.stdout.flush()

    def record(self, value: Any) -> None:
        """One JSON line of many."""
        sys.stdout.write(json.dumps(value, separators=(",", ":")) + "\n")
        sys.stdout.flush()

    def trouble(self, text: str) -> None:
        """A sentence on stderr; never JSON, never part of what a program reads."""
        self._trouble.print(Text(text), soft_wrap=True)


def _console(file: Any, color: bool | None) -> Console:
    return Console(
        file=file,
        markup=False,
        highlight=False,
        emoji=False,
        no_color=True if color is False else None,
        force_terminal=True if color else None,
    )


def _text(pieces: Sequence[Piece]) -> Text:
    return Text.assemble(*pieces)

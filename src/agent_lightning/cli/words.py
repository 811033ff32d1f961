"""Showing what strangers wrote: agents, models and users may write terminal codes, and must not reach the terminal."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 100  # columns where there is no terminal
WIDEST = 140


def console() -> Console:
    """As wide as the terminal, within reason; 100 columns in a pipe."""
    found = Console(highlight=False)
    return Console(highlight=False, width=min(found.width, WIDEST) if sys.stdout.isatty() else WIDTH)


def inert(text: str) -> str:
    """Control characters made visible; line ends and tabs stay."""
    return "".join(
        char if char in "\n\t" or char.isprintable() else repr(char)[1:-1] if char != "\r" else "" for char in text
    )


def shown(value: Any, *, limit: int = 400) -> str:
    """One JSON value as text of at most `limit` characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = inert(text)
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit:,} more characters)"


def tail(text: str, limit: int) -> str:
    """The end of a text, with what was left out counted."""
    text = inert(text)
    return text if len(text) <= limit else f"({len(text) - limit:,} characters before) … {text[-limit:]}"


def plain(text: str, style: str = "") -> Text:
    """Text in which square brackets mean nothing."""
    return Text(text, style=style)


def block(out: Console, what: Any) -> None:
    """With an empty line behind it."""
    out.print(what)
    out.print()


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    made = Table(
        title=title, title_justify="left", title_style="bold", pad_edge=False, show_edge=False, min_width=len(title)
    )
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def pairs(rows: list[tuple[str, Any]], *, limit: int = 400) -> Table:
    """Names and values, without a frame."""
    made = Table(show_header=False, box=None, pad_edge=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value if isinstance(value, Text) else plain(shown(value, limit=limit)))
    return made


def number(value: float | None, form: str = "{:.3f}") -> str:
    return "-" if value is None else form.format(value)

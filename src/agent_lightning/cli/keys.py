"""`agent-lightning keys`: make, list and revoke the keys of a server. A server that runs notices within a second."""

from __future__ import annotations

import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from agent_lightning.errors import SettingError
from agent_lightning.server.keyring import FILE, add_key, read_keys, revoke_key

keys = typer.Typer(name="keys", help="Make, list and revoke the keys of a server.", no_args_is_help=True)

Runs = Annotated[str, typer.Option(help="folder that holds the runs, and their keys.json")]
KeysFile = Annotated[Path | None, typer.Option("--file", help="keys file, where it is another one")]
_DAY = 86_400.0
_UNITS = {"h": 3600.0, "d": _DAY, "w": 7 * _DAY, "y": 365 * _DAY}


@keys.command()
def add(
    role: Annotated[str, typer.Argument(help="worker, admin or read")],
    name: Annotated[str | None, typer.Option(help="default ROLE-NUMBER")] = None,
    expires: Annotated[
        str | None, typer.Option(help="lifetime: 12h, 90d, 4w or 1y; default: until it is revoked")
    ] = None,
    runs: Runs = "runs",
    file: KeysFile = None,
) -> None:
    """Make a key and print it, once: only its hash is kept."""
    now, path = time.time(), _path(runs, file)
    key = add_key(path, role, name=name, now=now, expires=None if expires is None else now + _seconds(expires))
    made = next(known for known in reversed(read_keys(path)) if known.role == role)
    until = "" if made.expires is None else f", valid until {_day(made.expires)}"
    print(key)
    print(f"{role} key {made.name!r} of {path}{until}; it is not shown again", file=sys.stderr)


@keys.command("list")
def list_(runs: Runs = "runs", file: KeysFile = None) -> None:
    """Names, roles and times; the keys themselves are known to nobody but their holders."""
    from agent_lightning.cli.words import console, inert, table

    path, now = _path(runs, file), time.time()
    found = read_keys(path)
    if not found:
        print(f"{path} has no keys: `agent-lightning keys add worker` makes one")
        return
    shown = table(f"keys of {path}", "name", "role", "created", "expires")
    for key in found:
        until = "never" if key.expires is None else _day(key.expires) if key.valid(now) else "EXPIRED"
        shown.add_row(inert(key.name), key.role, _day(key.created), until)
    console().print(shown)


@keys.command()
def revoke(
    name: Annotated[str, typer.Argument(help="name of the key")], runs: Runs = "runs", file: KeysFile = None
) -> None:
    """Take a key out; whoever holds it is refused from the next second on."""
    path = _path(runs, file)
    gone = revoke_key(path, name)
    print(f"{gone.role} key {gone.name!r} of {path} is revoked")


def _path(runs: str, file: Path | None) -> Path:
    return file or Path(runs) / FILE


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d{1,4})([hdwy])", text.strip())
    if match is None or int(match[1]) == 0:
        raise SettingError(f"--expires is {text!r}: a lifetime such as 12h, 90d, 4w or 1y is wanted")
    return int(match[1]) * _UNITS[match[2]]


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="minutes")[:16]

"""The command `agent-lightning`. `work`, `run` and `inspect` run on the base install; the others need the extra `server`."""

from __future__ import annotations

import sys

BASE = ("work", "run", "inspect")  # commands of the agent's process: standard library and wrapt only


def main() -> None:
    """Entry point: errors of ours are one clear paragraph, not a traceback."""
    from agent_lightning.errors import LightningError

    try:
        if sys.argv[1:2] and sys.argv[1] in BASE:
            _base(sys.argv[1], sys.argv[2:])
        else:
            _full()
    except LightningError as error:
        print(f"agent-lightning: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _base(name: str, arguments: list[str]) -> None:
    if name == "work":
        from agent_lightning.cli.work import work

        work(arguments)
    elif name == "run":
        from agent_lightning.client.launch.command import run

        run(arguments)
    else:
        from agent_lightning.client.launch.inspection import inspect

        inspect(arguments)


def _full() -> None:
    from agent_lightning.errors import MissingExtra

    try:
        from agent_lightning.cli.app import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("agent_lightning"):
            raise
        raise MissingExtra(
            f"this command needs {error.name!r}, which is not installed: pip install 'agent-lightning[train]'; "
            "`agent-lightning work`, `run` and `inspect` run without it"
        ) from error
    app()

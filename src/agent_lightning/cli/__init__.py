"""The command `agent-lightning`. `work` runs on the base install; the other commands need the extra `server`."""

from __future__ import annotations

import sys

BASE = ("work",)  # commands of the agent's process: standard library and wrapt only


def main() -> None:
    """Entry point: errors of ours are one clear paragraph, not a traceback."""
    from agent_lightning.errors import LightningError

    try:
        if sys.argv[1:2] and sys.argv[1] in BASE:
            from agent_lightning.cli.work import work

            work(sys.argv[2:])
        else:
            _full()
    except LightningError as error:
        print(f"agent-lightning: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _full() -> None:
    from agent_lightning.errors import MissingExtra

    try:
        from agent_lightning.cli.app import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("agent_lightning"):
            raise
        raise MissingExtra(
            f"this command needs {error.name!r}, which is not installed: pip install 'agent-lightning[train]'; "
            "`agent-lightning work` runs without it"
        ) from error
    app()

"""`agent-lightning run -- COMMAND`: becomes the command, with an environment in which its interpreters find us."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent_lightning.client.config import PREFIX, read_config
from agent_lightning.errors import SettingError

SITE = Path(__file__).parent / "site"
# Frameworks that send telemetry of their own; what the user has set stays.
OPT_OUTS = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "ANONYMIZED_TELEMETRY": "false",
    "LITELLM_TELEMETRY": "False",
    "LANGCHAIN_TRACING_V2": "false",
}


def run(arguments: Sequence[str]) -> None:
    """Replace this process by the command: its output, signals and exit status are its own."""
    given, command = parsed("run", run.__doc__ or "", arguments)
    environment = launched(os.environ, endpoint=given.endpoint, component=given.component, rate=given.sample)
    os.execvpe(command[0], command, environment)


def launched(
    environment: Mapping[str, str], *, endpoint: str | None, component: Sequence[str] | None, rate: str | None
) -> dict[str, str]:
    """The environment of a launched command. Raises SettingError for a wrong setting, before anything runs."""
    wanted = {"endpoint": endpoint, "component": list(component) if component else None, "trace_sampling_rate": rate}
    read_config(wanted)
    made = {**OPT_OUTS, **environment}
    made["PYTHONPATH"] = os.pathsep.join(part for part in (str(SITE), environment.get("PYTHONPATH")) if part)
    values = {"endpoint": endpoint, "component": ",".join(component or ()), "trace_sampling_rate": rate}
    for name, value in values.items():
        if value:
            made[PREFIX + name.upper()] = value
    return made


def parsed(name: str, description: str, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our options, and the command behind `--`. Raises SettingError when there is none."""
    parser = argparse.ArgumentParser(
        prog=f"agent-lightning {name}", description=description, usage=f"agent-lightning {name} [options] -- command"
    )
    parser.add_argument("--component", action="append", help="train only this part of the agent; may be repeated")
    parser.add_argument("--endpoint", help="training server; default http://127.0.0.1:8000")
    parser.add_argument("--sample", help="share of runs that are recorded, or auto; default 0.3")
    options, command = _split(list(arguments))
    given = parser.parse_args(options)
    if not command:
        raise SettingError(f"agent-lightning {name}: a command is wanted, such as: -- python my_agent.py")
    if command[0].endswith(".py") and not os.access(command[0], os.X_OK):
        command.insert(0, sys.executable)
    if shutil.which(command[0]) is None:
        raise SettingError(f"agent-lightning {name}: there is no program {command[0]!r}")
    return given, command


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]

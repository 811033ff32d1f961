"""`agent-lightning inspect -- COMMAND`: run a program once against a stand-in model and say what training would see."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from agent_lightning.client import semconv
from agent_lightning.client.component import EVERYTHING, Selector
from agent_lightning.client.launch.command import launched, parsed
from agent_lightning.client.launch.standin import Heard, StandIn, stand_in

_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
_LOOPBACK = {"AGENT_LIGHTNING_COMPONENT": "", "AGENT_LIGHTNING_COMPONENT_OF_INTEREST": ""}


def inspect(arguments: Sequence[str]) -> None:
    """Run the command once, every LLM call answered by a stand-in; list entries, components, endpoints and what would be
    trained. No provider is asked. Ends with the command's own exit status."""
    given, command = parsed("inspect", inspect.__doc__ or "", arguments)
    environment = {**dict.fromkeys(_KEYS, "not-needed-here"), **os.environ, **_LOOPBACK}
    with stand_in() as heard:
        made = launched(environment, endpoint=heard.url, component=None, rate="1.0")
        status = subprocess.run(command, env=made, check=False).returncode
    chosen = Selector(patterns=tuple(given.component)) if given.component else EVERYTHING
    print(report(heard, chosen), file=sys.stderr)
    sys.exit(status)


def report(heard: StandIn, chosen: Selector) -> str:
    """One block a rollout: how it began, and its calls in order."""
    if not heard.calls:
        return (
            "agent-lightning saw no LLM call. Does the program make one on this path, in a process of its own Python, "
            "over httpx, httpx2 or DSPy?"
        )
    entries, addresses = _entries(heard), _addresses(heard)
    lines = []
    for key, asked in heard.inputs.items():
        calls = [call for call in heard.calls if call.rollout == key]
        lines.append(f"rollout of {entries.get(key, 'an agent that did not end')}, asked {str(asked)[:80]!r}")
        lines += [_line(call, addresses.get(call.id, "?"), chosen) for call in calls]
        lines += [] if calls else ["  no LLM call"]
    trained = sum(_trained(call, chosen) for call in heard.calls)
    names = sorted({"/".join(call.component) for call in heard.calls if call.component})
    lines.append(f"components: {', '.join(names) or 'none; --component NAME then labels all calls'}")
    lines.append(f"{trained} of {len(heard.calls)} calls would be trained")
    return "\n".join(lines)


def _line(call: Heard, address: str, chosen: Selector) -> str:
    fate = (
        f"refused: {call.refused}" if call.refused else "trained" if _trained(call, chosen) else "left to its provider"
    )
    return f"  {'/'.join(call.component) or '(unnamed)':<28} {call.model:<20} {address}{call.path:<22} {fate}"


def _trained(call: Heard, chosen: Selector) -> bool:
    """An agent without parts takes any exact name as its label."""
    return call.refused is None and (not call.component or chosen.matches(call.component))


def _entries(heard: StandIn) -> dict[str, str]:
    """Title of the agent by key of the rollout."""
    titles: dict[str, str] = {}
    for span in heard.spans:
        said = _said(span)
        if said.get(semconv.KIND) == "agent":
            titles[f"alr-{said[semconv.ATTEMPT].removeprefix('at-')}"] = said[semconv.AGENT]
    return titles


def _addresses(heard: StandIn) -> dict[str, str]:
    """The provider that was meant, by call."""
    found = (_said(span) for span in heard.spans)
    return {said[semconv.CALL]: said.get(semconv.ADDRESS, "?") for said in found if semconv.CALL in said}


def _said(span: Mapping[str, Any]) -> dict[str, str]:
    return {item["key"]: item["value"].get("stringValue", "") for item in span["attributes"]}

"""Branches of one attempt: which earlier call does a request continue, and with which token ids.

A conversation is continued by ids, never by a re-tokenised copy: prompt = the parent's prompt + what it sampled + the
ids of what was added. Messages are compared by what the policy reads of them: role, text without trailing white space,
and (tool, arguments as canonical JSON); ids, names and reasoning come back from frameworks changed or not at all.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_lightning.errors import RequestError
from agent_lightning.models.chat_template import ChatTemplate
from agent_lightning.models.tokenizer import ChatTokenizer
from agent_lightning.records import token_ids
from agent_lightning.wire.chat import readable
from agent_lightning.wire.parts import part_text

Message = Mapping[str, Any]
_MARKS = ("cache_control", "prompt_cache_breakpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A completed call, as the next one may continue it."""

    call_id: str
    order: int
    prompt_ids: array[int]  # in full
    sampled_ids: array[int]
    messages: int  # of its request; its reply is one more
    root: int  # messages of the request that began its branch


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The ids that the policy is asked to continue."""

    ids: array[int]  # in full
    parent_call_id: str | None
    offset: int  # ids that come from the parent: its prompt and what it sampled
    root: int | None = None  # messages of the request that began the branch; None: of this one
    note: str | None = None  # why a known parent was not continued

    @property
    def suffix_ids(self) -> array[int]:
        return self.ids[self.offset :]


class Branches:
    """Completed calls of one attempt by the conversation that they end: (tools, messages, reply) -> newest call.

    Any of them can be continued, so calls of several agents may come in any order.
    """

    def __init__(self) -> None:
        self._ends: dict[bytes, Turn] = {}
        self._turns: dict[str, Turn] = {}

    def add(self, turn: Turn, messages: Sequence[Message], reply: Message, tools: Sequence[Message]) -> None:
        *_, end = _digests([*messages, reply], tools)
        known = self._ends.get(end)
        if known is None or known.order <= turn.order:
            self._ends[end] = turn
        self._turns[turn.call_id] = turn

    def find(self, messages: Sequence[Message], tools: Sequence[Message]) -> Turn | None:
        """The call whose conversation is the longest beginning of this one."""
        if not self._ends:
            return None
        found = None
        for digest in _digests(messages, tools):
            found = self._ends.get(digest, found)
        return found

    def find_ids(self, ids: array[int]) -> Turn | None:
        """The call of whose prompt and answer, token for token, this prompt is the longest continuation."""
        found, longest = None, 0
        for turn in self._turns.values():
            size = len(turn.prompt_ids) + len(turn.sampled_ids)
            if longest < size <= len(ids) and ids[:size] == turn.prompt_ids + turn.sampled_ids:
                found, longest = turn, size
        return found

    def turn(self, call_id: str) -> Turn | None:
        return self._turns.get(call_id)


def message_key(message: Message) -> str:
    """What two renderings of one message have in common; equal keys are the same message."""
    calls = [
        (function.get("name"), _canonical(function.get("arguments") or {}))
        for function in (call.get("function") or {} for call in message.get("tool_calls") or ())
    ]
    text, opaque = _text(message.get("content"))
    return json.dumps([message.get("role"), text.rstrip(), calls, opaque])


def first_prompt(
    template: ChatTemplate, tokenizer: ChatTokenizer, messages: Sequence[Message], tools: Sequence[Message]
) -> Prompt:
    """The prompt of a new branch."""
    text = template.render(readable(messages), tools, disguise=tokenizer.disguise)
    return Prompt(ids=tokenizer.encode_rendered(text), parent_call_id=None, offset=0)


def continued(
    turn: Turn,
    template: ChatTemplate,
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Message],
    stop_ids: Sequence[int],
) -> Prompt:
    """The prompt that continues `turn`, whose request and reply are the first `turn.messages + 1` of `messages`.

    A reply that the policy did not end by itself (cut by a limit or a stop text) gets its end-of-turn token as context.
    A template that cannot place the new messages behind an arbitrary reply gets a new branch, with a note that says so.
    """
    plain = readable(messages)
    before, after = plain[: turn.messages], plain[turn.messages + 1 :]
    try:
        text = template.suffix_after(before, after, tools, disguise=tokenizer.disguise)
    except RequestError as error:
        fresh = first_prompt(template, tokenizer, messages, tools)
        return Prompt(ids=fresh.ids, parent_call_id=None, offset=0, note=f"not stitched: {error}")
    suffix = tokenizer.encode_rendered(text)
    if suffix and turn.sampled_ids and suffix[0] in stop_ids and turn.sampled_ids[-1] in stop_ids:
        suffix = suffix[1:]  # also where the policy ended its turn with another token than the template writes
    known = turn.prompt_ids + turn.sampled_ids
    return Prompt(ids=known + suffix, parent_call_id=turn.call_id, offset=len(known), root=turn.root)


def still_written(
    turn: Turn,
    template: ChatTemplate,
    tokenizer: ChatTokenizer,
    messages: Sequence[Message],
    tools: Sequence[Message],
) -> bool:
    """Whether the template would still write all that the policy read and wrote in the branch of `turn`."""
    try:
        return template.keeps_thoughts(readable(messages), turn.root, tools, disguise=tokenizer.disguise)
    except RequestError:
        return False


def full_prompt(parent: Turn | None, suffix_ids: array[int]) -> array[int]:
    """The prompt of a stored call out of its parent and its suffix."""
    return token_ids(suffix_ids) if parent is None else parent.prompt_ids + parent.sampled_ids + suffix_ids


def _digests(messages: Sequence[Message], tools: Sequence[Message]) -> Iterator[bytes]:
    """One digest for each beginning of the conversation: tools and 1, 2, ... messages."""
    chain = hashlib.blake2b(_canonical(list(tools)).encode(), digest_size=16)
    for message in messages:
        chain.update(b"\n" + message_key(message).encode())
        yield chain.copy().digest()


def _text(content: Any) -> tuple[str, list[Any]]:
    """Text of a content, and where it holds anything else all of its parts in their order."""
    if content is None or isinstance(content, str):
        return content or "", []
    parts = content if isinstance(content, list) else [content]
    texts = [part_text(part) for part in parts]
    opaque = None in texts
    told = [_canonical(_unmarked(part)) if text is None else [text] for part, text in zip(parts, texts, strict=True)]
    return "".join(text for text in texts if text is not None), told if opaque else []


def _unmarked(part: Any) -> Any:
    """A part without the marks of a provider's cache, which wander from turn to turn."""
    return {key: value for key, value in part.items() if key not in _MARKS} if isinstance(part, dict) else part


def _canonical(value: Any) -> str:
    """JSON with sorted keys; a text that holds JSON counts as what it holds."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return json.dumps(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"))

"""What the gateway keeps of running attempts: the branches that their next calls may continue.

It is a cache of the store: an attempt that is unknown (the gateway was restarted, or the attempt was pushed out) is
read back from its calls.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agent_lightning.errors import EngineBusy, RequestError
from agent_lightning.gateway.stitch import Branches, Turn, full_prompt
from agent_lightning.records import Call
from agent_lightning.store.store import Access, Admission, Store
from agent_lightning.wire.chat import ChatRequest
from agent_lightning.wire.dialects import BY_NAME


@dataclass(slots=True)
class Attempt:
    branches: Branches = field(default_factory=Branches)
    users: int = 0  # calls in flight; it is kept while there are any


class Attempts:
    """The most recent attempts; idle ones beyond `kept` are dropped."""

    def __init__(self, store: Store, kept: int = 256) -> None:
        self._store = store
        self._kept = kept
        self._attempts: OrderedDict[str, asyncio.Future[Attempt]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._attempts)

    async def of(self, access: Access) -> Attempt:
        """The attempt's state. One reader asks the store, the others wait for it."""
        known = self._attempts.get(access.attempt_id)
        if known is not None:
            self._attempts.move_to_end(access.attempt_id)
            return await asyncio.shield(known)
        reading: asyncio.Future[Attempt] = asyncio.get_running_loop().create_future()
        self._attempts[access.attempt_id] = reading
        try:
            calls = await self._store.calls(access.rollout.id, attempt_id=access.attempt_id)
            attempt = read_back(calls)
        except BaseException as error:
            self._attempts.pop(access.attempt_id, None)
            left = EngineBusy(f"the calls of attempt {access.attempt_id} could not be read back: try again")
            reading.set_exception(error if isinstance(error, Exception) else left)
            reading.exception()  # others may not be waiting: the reader's own raise is enough
            raise
        reading.set_result(attempt)
        self._drop_idle()
        return attempt

    def forget(self, attempt_id: str) -> None:
        """The attempt has ended."""
        self._attempts.pop(attempt_id, None)

    def _drop_idle(self) -> None:
        excess = len(self._attempts) - self._kept
        if excess <= 0:
            return
        idle = [name for name, state in self._attempts.items() if state.done() and not state.result().users]
        for name in idle[:excess]:
            del self._attempts[name]


async def admitted(store: Store, draft: Call) -> Admission:
    """The call as a new one, or the completed one that it repeats. Raises as `Store.admit`."""
    admission = await store.admit(draft)
    if admission.kind == "joined":  # nobody here works on it: the gateway that did is gone
        await store.break_call(draft.attempt_id, draft.id, "the gateway was restarted")
        admission = await store.admit(draft)
    return admission


def conversation(request: ChatRequest, calls: Mapping[str, Call]) -> ChatRequest:
    """The request with all of its messages: those of the call that it goes on from put before its own.

    Raises RequestError when that call is not among the completed ones of the attempt.
    """
    if request.previous is None:
        return request
    call = calls.get(request.previous)
    if call is None or call.response is None:
        raise RequestError(
            f"`previous_response_id` names call {request.previous!r}, which this rollout has not completed",
            field="previous_response_id",
            code="previous_response_not_found",
        )
    before = conversation(BY_NAME[call.dialect].parse(call.request), calls)
    own = int(request.instructed)
    history = (*before.messages[int(before.instructed) :], call.response["choices"][0]["message"])
    return replace(request, messages=(*request.messages[:own], *history, *request.messages[own:]))


def read_back(calls: list[Call]) -> Attempt:
    """The state of an attempt out of its stored calls."""
    attempt = Attempt()
    completed = {call.id: call for call in calls if call.spoken}
    for call in sorted(completed.values(), key=lambda call: (call.finished_at or 0.0, call.order)):
        _remember(attempt.branches, call, completed)
    return attempt


def _remember(branches: Branches, call: Call, completed: dict[str, Call]) -> None:
    parent = None
    if call.parent_call_id is not None:
        parent = branches.turn(call.parent_call_id)
        if parent is None:
            _remember(branches, completed[call.parent_call_id], completed)
            parent = branches.turn(call.parent_call_id)
    assert call.response is not None
    request = conversation(BY_NAME[call.dialect].parse(call.request), completed)
    turn = Turn(
        call_id=call.id,
        order=call.order,
        prompt_ids=full_prompt(parent, call.suffix_ids),
        sampled_ids=call.sampled_ids,
        messages=len(request.messages),
        root=len(request.messages) if parent is None else parent.root,
    )
    position = int(call.meta.get("choice", 0))
    reply = next(made for made in call.response["choices"] if made["index"] == position)["message"]
    branches.add(turn, request.messages, reply, request.tools)

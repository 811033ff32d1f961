"""Images, sound and files are carried through as they came; a policy that reads text alone is not shown them."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from agent_lightning.gateway.stitch import message_key
from agent_lightning.wire.chat import parse_chat
from agent_lightning.wire.messages import parse_messages
from agent_lightning.wire.responses import parse_responses
from gateway_rig import rig

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
FILE = {"type": "file", "file": {"file_id": "f"}}
TEXT = {"type": "text", "text": "look"}
THEIR_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
INPUT_IMAGE = {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"}
INPUT_FILE = {"type": "input_file", "file_id": "f"}
RESULT = {"type": "tool_result", "tool_use_id": "u", "content": [TEXT, THEIR_IMAGE]}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": [INPUT_IMAGE]}


@pytest.mark.parametrize("part", [IMAGE, SOUND, FILE, {"type": "hologram", "x": 1}])
def test_chat_keeps_a_part_as_it_came(part: Any):
    request = parse_chat({"model": "m", "messages": [{"role": "user", "content": [TEXT, part]}]})
    assert request.messages[0]["content"] == [TEXT, part]
    assert request.opaque == "messages[0].content[1]"


@pytest.mark.parametrize("part", [THEIR_IMAGE, DOCUMENT])
def test_messages_keep_a_part_as_it_came(part: Any):
    said = [
        {"role": "user", "content": [TEXT, part]},
        {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
    ]
    request = parse_messages({"model": "m", "max_tokens": 9, "system": "s", "messages": said})
    assert request.messages[1]["content"] == [TEXT, part]
    assert request.opaque == "messages[0].content[1]"
    result = parse_messages({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [RESULT, TEXT]}]})
    assert [message["role"] for message in result.messages] == ["tool", "user"]
    assert result.messages[0]["content"] == [TEXT, THEIR_IMAGE]
    assert result.opaque == "messages[0].content[0].content[1]"


@pytest.mark.parametrize("part", [INPUT_IMAGE, INPUT_FILE])
def test_responses_keep_a_part_as_it_came(part: Any):
    asked = {"model": "m", "instructions": "i", "input": [{"role": "user", "content": [part]}, OUTPUT]}
    request = parse_responses(asked)
    assert [message["content"] for message in request.messages[1:]] == [[part], [INPUT_IMAGE]]
    assert request.opaque == "input[0].content[0]"


def test_text_alone_is_one_text_in_every_dialect():
    assert parse_chat({"model": "m", "messages": [{"role": "user", "content": [TEXT]}]}).opaque is None
    theirs = parse_messages({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [TEXT, TEXT]}]})
    assert (theirs.messages, theirs.opaque) == (({"role": "user", "content": "looklook"},), None)


def test_parts_are_compared_by_what_they_hold_and_where():
    def key(*parts: Any) -> str:
        return message_key({"role": "user", "content": list(parts)})

    assert key(TEXT, IMAGE) == key({**TEXT}, dict(reversed(list(IMAGE.items()))))
    assert key(TEXT, IMAGE) != key(IMAGE, TEXT)
    assert key(TEXT, IMAGE) != key(TEXT, {**IMAGE, "image_url": {"url": "other"}})
    assert key(TEXT, {**THEIR_IMAGE, "cache_control": {"type": "ephemeral"}}) == key(TEXT, THEIR_IMAGE)
    assert key(TEXT, TEXT) == message_key({"role": "user", "content": "looklook"})


async def test_a_policy_that_reads_text_alone_refuses_the_part_by_its_place():
    async with rig(lambda request: "x") as here:
        claim = await here.claim()
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": [TEXT, IMAGE]}]}
        async with here.client(claim) as client:
            with pytest.raises(openai.BadRequestError, match="reads text alone") as chat:
                await client.chat.completions.create(**asked)
            with pytest.raises(openai.BadRequestError) as responses:
                await client.responses.create(model="m", input=[{"role": "user", "content": [INPUT_IMAGE]}, OUTPUT])  # type: ignore[list-item]
        async with anthropic.AsyncAnthropic(base_url=here.url, api_key=claim.key, max_retries=0) as client:
            said: Any = [{"role": "user", "content": [RESULT]}]
            with pytest.raises(anthropic.BadRequestError) as messages:
                await client.messages.create(model="m", max_tokens=9, messages=said)
        assert (chat.value.param, responses.value.param) == ("messages[0].content[1]", "input[0].content[0]")
        assert messages.value.body["error"]["param"] == "messages[0].content[0].content[1]"  # type: ignore[index]
        assert not here.engine.requests

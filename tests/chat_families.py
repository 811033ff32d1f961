"""Small tokenizers and chat templates in the manner of the families that people train, written for the tests.

Each tokenizer is trained here on a few lines, with its family's control tokens; each template does what its family's is
known for: a default system message and no tools (SmolLM2), thinking that is stripped from earlier turns (Qwen), a date
and JSON calls (Llama), rules for turns and a list of calls behind one mark (Mistral).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from agent_lightning.models.tokenizer import ChatTokenizer
from gateway_rig import CORPUS

SMOLLM2 = """\
{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nA small assistant.<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

QWEN = """\
{%- set last = namespace(question=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{%- set last.question = loop.index0 %}{%- endif %}
{%- endfor %}
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '<tools>' }}{%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}{{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- set thought = message.reasoning_content or '' %}
{%- set said = message.content %}
{%- if '</think>' in said %}
{%- set thought = said.split('</think>')[0].split('<think>')[-1] %}
{%- set said = said.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if thought and loop.index0 > last.question %}{{- '<think>\\n' + thought.strip() + '\\n</think>\\n\\n' }}{%- endif %}
{{- said }}
{%- for call in message.tool_calls or [] %}
{%- if said or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- elif not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

LLAMA3 = """\
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + strftime_now('%d %b %Y') }}
{%- if messages[0].role == 'system' %}{{- '\\n\\n' + messages[0].content | trim }}{%- endif %}
{{- '<|eot_id|>' }}
{%- set shown = namespace(tools=not tools) %}
{%- for message in messages if message.role != 'system' %}
{%- set role = 'ipython' if message.role == 'tool' else message.role %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}
{%- if message.role == 'user' and not shown.tools %}
{%- set shown.tools = true %}
{{- 'Call one as {"name": name, "parameters": object}:\\n' }}
{%- for tool in tools %}{{- tool | tojson(indent=4) + '\\n' }}{%- endfor %}
{%- endif %}
{{- message.content | trim }}
{%- for call in message.tool_calls or [] %}
{%- if loop.first and message.content | trim %}{{- '<|python_tag|>' }}{%- elif not loop.first %}{{- '; ' }}{%- endif %}
{{- '{"name": "' + call.function.name + '", "parameters": ' + call.function.arguments | tojson + '}' }}
{%- endfor %}
{{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

MISTRAL = """\
{{- bos_token }}
{%- set turn = namespace(user=true, first=true) %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
{%- if (message.role == 'user') != turn.user %}{{- raise_exception('user and assistant must alternate') }}{%- endif %}
{%- set turn.user = not turn.user %}
{%- endif %}
{%- if message.role == 'user' %}
{%- if turn.first and tools %}{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{{- '[INST] ' }}
{%- if turn.first and messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- message.content + '[/INST]' }}
{%- set turn.first = false %}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS] {"content": ' + message.content | tojson + '}[/TOOL_RESULTS]' }}
{%- elif message.role == 'assistant' %}
{%- if message.content | trim %}{{- ' ' + message.content | trim }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '[TOOL_CALLS] [' if loop.first else ', ' }}
{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- ', "id": "' + call.id + '"}' }}
{%- if loop.last %}{{- ']' }}{%- endif %}
{%- endfor %}
{{- eos_token }}
{%- endif %}
{%- endfor %}
"""

Call = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    source: str
    control: tuple[str, ...]  # special tokens
    added: tuple[str, ...]  # single tokens that are not special
    ends: tuple[str, ...]  # that end a turn; the first is written by the template
    special: Mapping[str, str]
    write: Callable[[str, Sequence[Call]], str]  # (text, calls) -> what a policy of this family would say
    pieces: bool = False  # SentencePiece's way: "▁" for spaces, bytes as tokens of their own

    def tokenizer(self) -> ChatTokenizer:
        return _tokenizer(self.name)

    def says(self, text: str = "", *calls: Call) -> str:
        """A reply's text."""
        return self.write(text, calls)


def _hermes(text: str, calls: Sequence[Call]) -> str:
    blocks = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls]
    return "\n".join([*([text] if text else []), *blocks])


def _llama(text: str, calls: Sequence[Call]) -> str:
    written = "; ".join(json.dumps({"name": call["name"], "parameters": call["arguments"]}) for call in calls)
    return f"{text}<|python_tag|>{written}" if text and calls else text + written


def _mistral(text: str, calls: Sequence[Call]) -> str:
    numbered = [{**call, "id": f"abcdefg{number:02}"} for number, call in enumerate(calls)]
    return text + (f"[TOOL_CALLS]{json.dumps(numbered)}" if calls else "")


_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>")
_MISTRAL = (
    "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
)  # fmt: skip
_QWEN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_EOS = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
FAMILIES = {
    family.name: family
    for family in (
        Family("smollm2", SMOLLM2, _CHATML, (), ("<|im_end|>",), _EOS, _hermes),
        Family("qwen", QWEN, _CHATML, _QWEN, ("<|im_end|>", "<|endoftext|>"), _EOS, _hermes),
        Family(
            "llama3", LLAMA3, _LLAMA, (), ("<|eot_id|>", "<|eom_id|>"),
            {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}, _llama,
        ),
        Family(
            "mistral", MISTRAL, _MISTRAL, (), ("</s>",),
            {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, _mistral, pieces=True,
        ),
    )
}  # fmt: skip


@cache
def _tokenizer(name: str) -> ChatTokenizer:
    family = FAMILIES[name]
    tokenizer = _pieces() if family.pieces else _bytes()
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in family.control])
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in family.added])
    return ChatTokenizer(
        tokenizer,
        stop_ids=[tokenizer.token_to_id(mark) for mark in family.ends],
        special_tokens=family.special,
        chat_template=family.source,
    )


def _bytes() -> Tokenizer:
    """Byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS * 4, trainers.BpeTrainer(vocab_size=380, initial_alphabet=alphabet, show_progress=False)
    )
    return tokenizer


def _pieces() -> Tokenizer:
    """BPE over characters; what the vocabulary lacks is spelled in bytes."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    alphabet = [chr(code) for code in range(33, 127)]
    trained.train_from_iterator(
        CORPUS * 4, trainers.BpeTrainer(vocab_size=200, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    merges = [tuple(pair) for pair in model["merges"]]
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<unk>", special=True, normalized=False)])
    return tokenizer

"""The tiny test model: a random two-layer Llama over 21 symbols. Written with numpy alone; needs no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

PAD, END, USER, ASSISTANT = "<pad>", "<end>", "<user>", "<assistant>"
SYMBOLS = (PAD, END, USER, ASSISTANT, *"0123456789", *"+-=:?ac")  # what is not here is read as "?"
HIDDEN, LAYERS, HEADS, KV_HEADS, INNER, CONTEXT = 64, 2, 4, 2, 208, 1024

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<assistant>' if message['role'] == 'assistant' else '<user>' }}{{ message['content'] or '' }}{{ '<end>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def write_tiny(folder: Path, seed: int = 0) -> None:
    """Write weights (float32, normal(0, 0.02)), configuration, tokenizer and chat template into an empty folder."""
    from safetensors.numpy import save_file

    save_file(_weights(np.random.default_rng(seed)), folder / "model.safetensors", metadata={"format": "pt"})
    files: dict[str, dict[str, Any]] = {
        "config.json": _config(),
        "generation_config.json": {"eos_token_id": SYMBOLS.index(END), "pad_token_id": SYMBOLS.index(PAD)},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": PAD,
            "unk_token": "?",
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    _tokenizer().save(str(folder / "tokenizer.json"))


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "dtype": "float32",
        "eos_token_id": SYMBOLS.index(END),
        "pad_token_id": SYMBOLS.index(PAD),
        "bos_token_id": None,
        "head_dim": HIDDEN // HEADS,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": INNER,
        "max_position_embeddings": CONTEXT,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "vocab_size": len(SYMBOLS),
    }


def _weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    def drawn(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.02).astype(np.float32)

    kv = KV_HEADS * (HIDDEN // HEADS)
    ones = np.ones(HIDDEN, np.float32)
    weights = {"model.embed_tokens.weight": drawn(len(SYMBOLS), HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        weights |= {
            f"{at}self_attn.q_proj.weight": drawn(HIDDEN, HIDDEN),
            f"{at}self_attn.k_proj.weight": drawn(kv, HIDDEN),
            f"{at}self_attn.v_proj.weight": drawn(kv, HIDDEN),
            f"{at}self_attn.o_proj.weight": drawn(HIDDEN, HIDDEN),
            f"{at}mlp.gate_proj.weight": drawn(INNER, HIDDEN),
            f"{at}mlp.up_proj.weight": drawn(INNER, HIDDEN),
            f"{at}mlp.down_proj.weight": drawn(HIDDEN, INNER),
            f"{at}input_layernorm.weight": ones.copy(),
            f"{at}post_attention_layernorm.weight": ones.copy(),
        }
    return weights | {"model.norm.weight": ones.copy(), "lm_head.weight": drawn(len(SYMBOLS), HIDDEN)}


def _tokenizer() -> Any:
    """One token a character; the four markers are special tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(SYMBOLS)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SYMBOLS[:4]])
    return tokenizer

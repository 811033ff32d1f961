"""From a name to a model folder."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agent_lightning.errors import CheckpointError, ModelError
from agent_lightning.models.models import read_card
from agent_lightning.models.source import cache_directory, resolve, verify


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_LIGHTNING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "cache"


def test_the_tiny_model_is_built_once_and_whole(own_cache):
    folder = resolve("tiny")
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    verify(folder)
    assert resolve("tiny") == folder and (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert folder.is_relative_to(own_cache)


def test_its_card_is_read_without_torch(own_cache):
    code = (
        "import sys; from agent_lightning.models.source import resolve; from agent_lightning.models.models import read_card;"
        "c = read_card(resolve('tiny')); print(c.context_length, c.vocab_size, c.eos_ids, c.pad_id, 'torch' in sys.modules)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.split() == ["1024", "21", "(1,)", "0", "False"]


def test_its_template_only_ever_appends():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve("tiny"))
    talk = [
        {"role": "user", "content": "12+7"},
        {"role": "assistant", "content": "c12+7"},
        {"role": "tool", "content": "=19"},
        {"role": "assistant", "content": "a19"},
    ]
    whole = tokenizer.apply_chat_template(talk, tokenize=False)
    for upto in range(1, 4):
        assert whole.startswith(tokenizer.apply_chat_template(talk[:upto], tokenize=False))
    ids = tokenizer(whole)["input_ids"]
    assert tokenizer.decode(ids) == whole and ids[-1] == tokenizer.eos_token_id


def test_a_damaged_copy_is_built_again():
    folder = resolve("tiny")
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        verify(folder)
    verify(resolve("tiny"))


def test_processes_that_ask_at_once_get_one_whole_copy(own_cache):
    code = "from agent_lightning.models.source import resolve, verify; verify(resolve('tiny'))"
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [child.wait(timeout=60) for child in children] == [0, 0, 0]
    assert [path.name for path in (own_cache / "models").iterdir() if path.suffix != ".lock"] == ["tiny-1"]


def test_the_cache_directory_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("AGENT_LIGHTNING_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "agent-lightning"


def test_a_folder_that_is_no_model_says_what_it_lacks(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"lacks tokenizer\.json, model\.safetensors"):
        resolve(str(tmp_path))


def test_a_path_that_is_not_there_and_an_id_that_is_not_cached_are_errors_with_a_remedy():
    with pytest.raises(ModelError, match="is no folder"):
        resolve("./nothing-here")
    with pytest.raises(ModelError, match="hf download someone/something"):
        resolve("someone/something")


def test_a_config_that_is_no_language_models_is_an_error():
    folder = resolve("tiny")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError, match="max_position_embeddings"):
        read_card(folder)


@pytest.mark.slow
def test_smollm2_comes_out_of_its_wheel_and_answers():
    import torch
    from transformers import AutoTokenizer

    from agent_lightning.models.load import load_model

    folder = resolve("smollm2")
    verify(folder)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), load_model(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_tensors="pt"
    )
    answer = model.generate(prompt["input_ids"], max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0])
    assert isinstance(answer, torch.Tensor) and read_card(folder).eos_ids == (2,)

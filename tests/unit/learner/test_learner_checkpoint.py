"""What is saved continues bit for bit, loads elsewhere, and is never half there."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from agent_lightning.errors import CheckpointError
from agent_lightning.learner.checkpoint import check_manifest, save_folder
from agent_lightning.replica.torch_host import fingerprint
from learner_cases import batch, learner, random_samples, shaken, tiny_folder, tiny_model


def saved(made, folder: Path) -> Path:
    with save_folder(folder) as draft:
        made.save(draft)
    return folder


@pytest.mark.parametrize("rank", [0, 4])
def test_a_restored_learner_continues_bit_for_bit(tmp_path, rank):
    undisturbed = learner(lora_rank=rank)
    undisturbed.update(batch(random_samples(1)), rate=1e-3, version=1)
    folder = saved(undisturbed, tmp_path / "one")
    resumed = shaken(learner(lora_rank=rank))
    assert resumed.restore(folder) == resumed.version == 1
    for version in (2, 3):
        reports = [
            made.update(batch(random_samples(version)), rate=1e-3, version=version) for made in (undisturbed, resumed)
        ]
        assert reports[0].figures["learner.grad_norm"] == reports[1].figures["learner.grad_norm"]
    assert torch.equal(undisturbed._weights.flat, resumed._weights.flat)


def test_nothing_is_pickled(tmp_path):
    files = sorted(path.name for path in saved(learner(), tmp_path / "one").iterdir())
    assert files == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "manifest.json",
        "optimizer.safetensors",
        "state.json",
    ]


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft reads transformers' old name
@pytest.mark.filterwarnings("error:Found missing adapter keys")
@pytest.mark.parametrize("layers", [None, 1])
def test_peft_loads_the_adapter_and_gives_the_same_logits(tmp_path, layers):
    from peft import PeftModel

    made = shaken(learner(lora_layers=layers))
    folder = saved(made, tmp_path / "one")
    theirs = PeftModel.from_pretrained(tiny_model(), str(folder))
    ids = torch.tensor([[2, 5, 3, 9, 11]])
    with torch.no_grad():
        ours = made._model(input_ids=ids).logits
        assert (ours - theirs(input_ids=ids).logits).abs().max() < 1e-5
        assert (ours - tiny_model()(input_ids=ids).logits).abs().max() > 1e-3


@pytest.mark.parametrize(("before", "now"), [(None, 1), (1, None)])
def test_a_checkpoint_of_other_blocks_is_refused_and_changes_nothing(tmp_path, before, now):
    folder = saved(shaken(learner(lora_layers=before)), tmp_path / "one")
    other = learner(lora_layers=now)
    plain = fingerprint(other.adapter())
    with pytest.raises(CheckpointError, match="lora_layers"):
        other.restore(folder)
    assert fingerprint(other.adapter()) == plain


def test_transformers_loads_full_weights(tmp_path):
    from transformers import AutoModelForCausalLM

    made = shaken(learner(lora_rank=0))
    theirs = AutoModelForCausalLM.from_pretrained(saved(made, tmp_path / "one"))
    ids = torch.tensor([[2, 5, 3, 9, 11]])
    with torch.no_grad():
        assert torch.equal(made._model(input_ids=ids).logits, theirs(input_ids=ids).logits)


def test_a_flipped_byte_is_found_and_named(tmp_path):
    folder = saved(learner(), tmp_path / "one")
    check_manifest(folder)
    path = folder / "optimizer.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors is damaged"):
        learner().restore(folder)


def test_a_missing_or_short_file_is_named(tmp_path):
    folder = saved(learner(), tmp_path / "one")
    (folder / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"state\.json is damaged"):
        learner().restore(folder)
    (folder / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"state\.json is missing"):
        learner().restore(folder)


def test_a_checkpoint_of_another_rank_is_refused_and_changes_nothing(tmp_path):
    folder = saved(shaken(learner()), tmp_path / "one")
    other = learner(lora_rank=8)
    before = other._weights.flat.detach().clone()
    with pytest.raises(CheckpointError, match="lora_rank 4"):
        other.restore(folder)
    assert torch.equal(other._weights.flat, before)


def test_a_failure_while_saving_leaves_the_old_checkpoint_whole(tmp_path):
    folder = saved(learner(), tmp_path / "best")
    before = (folder / "manifest.json").read_text()
    with pytest.raises(RuntimeError, match="stop"), save_folder(folder) as draft:
        (draft / "half").write_text("x")
        raise RuntimeError("stop")
    check_manifest(folder)
    assert (folder / "manifest.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_a_newer_checkpoint_takes_the_place_of_the_old_one(tmp_path):
    made = learner()
    folder = saved(made, tmp_path / "best")
    made.update(batch(random_samples(1)), rate=1e-3, version=1)
    saved(made, folder)
    assert json.loads((folder / "state.json").read_text())["version"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_a_crash_between_the_two_renames_brings_the_old_one_back(tmp_path):
    folder = saved(learner(), tmp_path / "best")
    folder.rename(tmp_path / ".best.retired")
    assert learner().restore(folder) == 0


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from agent_lightning.errors import CheckpointError
from agent_lightning.models.folder import save_folder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with save_folder(Path(sys.argv[1])) as draft:
        (draft / "big").write_bytes(bytes(100_000))
except CheckpointError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_old_checkpoint_whole_and_no_draft(tmp_path):
    folder = saved(learner(), tmp_path / "best")
    child = subprocess.run([sys.executable, "-c", FULL_DISK, str(folder)], capture_output=True, text=True, check=True)
    assert "the disk is full" in child.stdout and "untouched" in child.stdout
    check_manifest(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_a_full_disk_during_a_learner_save_is_a_checkpoint_error(tmp_path):
    made, folder = learner(), tmp_path / "one"
    folder.mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="could not be written"):
            made.save(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)


def test_a_folder_that_is_no_checkpoint_is_refused():
    with pytest.raises(CheckpointError, match=r"no manifest\.json"):
        learner().restore(tiny_folder())

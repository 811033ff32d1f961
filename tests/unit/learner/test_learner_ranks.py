"""Two real processes over gloo do what one does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from agent_lightning.errors import LearnerError
from agent_lightning.learner.ranks import GlooRanks
from agent_lightning.records import Batch
from learner_cases import apart, batch, learner, random_samples

SHARES = {"even": 6, "lopsided": 0}  # samples of rank 0, of 12


def run_rank(rank: int, folder: Path) -> None:
    """What each child does, for each way of sharing: three updates; the second batch is poisoned on rank 1 alone."""
    ranks = GlooRanks(rank, 2, f"file://{folder}/meeting", timeout=60)
    for case, cut in SHARES.items():
        made, version = learner(ranks=ranks), 0
        for seed in (1, 2, 3):
            samples = random_samples(seed)
            share = samples[:cut] if rank == 0 else samples[cut:]
            if seed == 2 and rank == 1:
                share[0].advantages[list(share[0].trained).index(1)] = float("nan")
            report = made.update(Batch(policy="p", samples=tuple(share), rollouts=12), rate=1e-3, version=version + 1)
            version = report.version
        figures = [report.figures["learner.tokens"], report.figures["learner.sampler_gap"], float(version)]
        kept = {"flat": made._weights.flat.detach().clone(), "figures": torch.tensor(figures)}
        save_file(kept, folder / f"{case}.{rank}.safetensors")
    ranks.close()


def test_two_processes_end_with_the_weights_of_one(tmp_path):
    here = Path(__file__).parent
    code = f"import sys; sys.path += {[str(here), str(here.parents[1])]!r}\n"
    code += "from test_learner_ranks import run_rank, Path\nrun_rank(int(sys.argv[1]), Path(sys.argv[2]))"
    children = [subprocess.Popen([sys.executable, "-c", code, str(rank), str(tmp_path)]) for rank in range(2)]
    alone = learner()
    start = alone._weights.flat.detach().double().clone()
    alone.update(batch(random_samples(1)), rate=1e-3, version=1)
    report = alone.update(batch(random_samples(3)), rate=1e-3, version=2)
    moved = alone._weights.flat.detach().double() - start
    assert [child.wait(timeout=110) for child in children] == [0, 0]
    for case in SHARES:
        first, second = (load_file(tmp_path / f"{case}.{rank}.safetensors") for rank in range(2))
        assert torch.equal(first["flat"], second["flat"]), "ranks must hold the same bits"
        assert torch.equal(first["figures"], second["figures"])
        assert apart(first["flat"].double() - start, moved) < 1e-2
        tokens, gap, version = first["figures"].tolist()
        assert (tokens, version) == (report.figures["learner.tokens"], 2.0)
        assert gap == pytest.approx(report.figures["learner.sampler_gap"], rel=1e-4)


def test_a_peer_that_never_comes_is_an_error_within_the_timeout(tmp_path):
    with pytest.raises(LearnerError, match="rank 0 of 2 could not meet"):
        GlooRanks(0, 2, f"file://{tmp_path}/meeting", timeout=1)

"""One GRPO update packed as a tree, against the same update in padded micro-batches and one branch at a time.

SmolLM2-135M with LoRA, one thread: groups of 8 branches of 64 sampled tokens behind a shared prompt of 256. Every way
gives the same loss and gradient; the figure is the median time, and the ratio to the packed one. The gap between the
learner's and the sampler's log-probabilities is measured in the same run, with the engine's own samples.

    python benchmarks/update.py [--prompt 256] [--branches 8] [--new 64] [--repeats 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from array import array
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from agent_lightning.inference.engine import GenerateRequest, Sampling
from agent_lightning.inference.torch_core import TorchCore
from agent_lightning.learner.learner import LearnerConfig
from agent_lightning.learner.update import TorchLearner
from agent_lightning.models.load import load_model
from agent_lightning.models.models import auto_dtype
from agent_lightning.models.source import resolve
from agent_lightning.records import Batch, Sample, nats, token_ids

WAYS: dict[str, dict[str, Any]] = {
    "packed": {"packing": True},
    "padded": {"packing": False, "micro_tokens": 4096},
    "one by one": {"packing": False, "micro_tokens": 16},
}


def sampled(core: TorchCore, prompt: list[int], branches: int, new: int) -> list[tuple[array[int], array[float]]]:
    """What the engine continues the prompt with: (ids, log-probabilities) a branch."""
    for branch in range(branches):
        core.submit(
            GenerateRequest(
                id=str(branch),
                policy="default",
                prompt_ids=token_ids(prompt),
                sampling=Sampling(max_new_tokens=new),
                noise_key=f"bench/{branch}",
            )
        )
    got: dict[str, tuple[array[int], array[float]]] = {str(i): (token_ids(), nats()) for i in range(branches)}
    while not core.idle:
        for name, piece in core.step():
            got[name][0].extend(piece.ids)
            got[name][1].extend(piece.logprobs)
    return list(got.values())


def batch_of(prompt: list[int], continuations: list[tuple[array[int], array[float]]]) -> Batch:
    samples = []
    for place, (ids, logprobs) in enumerate(continuations):
        head, count = len(prompt), len(ids)
        samples.append(
            Sample(
                rollout_id=str(place),
                group_id="g",
                tokens=token_ids(prompt) + ids,
                trained=array("b", [0] * head + [1] * count),
                logprobs=nats([0.0] * head) + logprobs,
                advantages=nats([0.0] * head + [1.0 if place % 2 else -1.0] * count),
                temperature=1.0,
                rollout_tokens=count,
                version=0,
            )
        )
    return Batch(policy="default", samples=tuple(samples), rollouts=len(samples))


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    dtype = auto_dtype()
    model = load_model(resolve("smollm2"), dtype)
    core = TorchCore(model, max_sequences=options.branches, context_length=2048)
    chance = random.Random(0)
    prompt = [chance.randrange(1000, 40_000) for _ in range(options.prompt)]
    first = TorchLearner(model, LearnerConfig(dtype=dtype), policy="default")
    core.publish(first.adapter())
    batch = batch_of(prompt, sampled(core, prompt, options.branches, options.new))
    rows, seconds = [], {name: [] for name in WAYS}
    learners = {
        name: TorchLearner(model, LearnerConfig(dtype=dtype, **way), policy="default") for name, way in WAYS.items()
    }
    reports = {}
    for repeat in range(options.repeats + 1):
        for name, learner in learners.items():
            began = time.perf_counter()
            reports[name] = learner.update(batch, rate=0.0, version=repeat + 1)
            if repeat:  # the first one warms up
                seconds[name].append(time.perf_counter() - began)
    base = median(seconds["packed"])
    for name, times in seconds.items():
        figures = reports[name].figures
        rows.append(
            {
                "way": name,
                "seconds": round(median(times), 3),
                "times_packed": round(median(times) / base, 2),
                "computed_tokens": figures["learner.computed_tokens"],
                "loss": figures["learner.loss"],
                "sampler_gap": figures["learner.sampler_gap"],
                "sampler_gap_p99": figures["learner.sampler_gap_p99"],
            }
        )
        print(
            f"{name:<12}{rows[-1]['seconds']:>8.2f} s {rows[-1]['times_packed']:>6.2f} x packed "
            f"{figures['learner.computed_tokens']:>7.0f} tokens   gap mean {figures['learner.sampler_gap']:.2e} "
            f"p99 {figures['learner.sampler_gap_p99']:.2e}"
        )
    result = {"benchmark": "update", "dtype": dtype, **vars(options), "json": None, "rows": rows}
    print(json.dumps(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--branches", type=int, default=8)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json")
    return parser.parse_args(sys.argv[1:])


if __name__ == "__main__":
    main()

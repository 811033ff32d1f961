"""Tokens a second of the engine's core against `transformers.generate`, in one run on one machine.

Both sample from the same random weights of SmolLM2-135M's shape, prompts about 100 tokens long. `generate` gets both
cores; ours runs as one process of one thread and as two, and once more with the general forward instead of the fast path.
The weights are bfloat16 values, as those of most checkpoints, so that float32 decodes from packed float16 copies. Every
figure is a median, and stands beside two limits that are measured in the same run: weights read a step against the
memory's rate, products against the matmul rate.

    python benchmarks/generation.py [--in-flight 1 8 32] [--new 32] [--repeats 3] [--dtype float32] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

SHAPES = ("equal", "ragged")


def lengths(count: int, middle: int, shape: str) -> list[int]:
    """The same for all, or spread evenly from half to one and a half times `middle`, shuffled."""
    if shape == "equal" or count == 1:
        return [middle] * count
    spread = [round(middle * (0.5 + i / (count - 1))) for i in range(count)]
    random.Random(count + middle).shuffle(spread)
    return spread


# -- in the child processes


def build(dtype_name: str) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=49152, tie_word_embeddings=True, max_position_embeddings=2048,
    )  # fmt: skip
    return LlamaForCausalLM(config).bfloat16().to(getattr(torch, dtype_name)).eval().requires_grad_(False)


def prompts_of(sizes: list[int], seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(49152) for _ in range(size)] for size in sizes]


class Ours:
    def __init__(self, dtype_name: str, kind: str) -> None:
        from agent_lightning.inference.general_forward import GeneralForward
        from agent_lightning.inference.torch_core import TorchCore
        from agent_lightning.models.adapter import Adapter

        model = build(dtype_name)
        forward = GeneralForward(model) if kind == "general" else None
        self.core = TorchCore(model, max_sequences=32, context_length=512, forward=forward)
        self.core.publish(Adapter(policy="p", version=0, rank=16, alpha=32.0, matrices={}))

    def run(self, prompt_sizes: list[int], new: list[int], seed: int) -> None:
        from agent_lightning.inference.engine import GenerateRequest, Sampling
        from agent_lightning.records import token_ids

        for i, (prompt, count) in enumerate(zip(prompts_of(prompt_sizes, seed), new, strict=True)):
            sampling = Sampling(max_new_tokens=count)
            name = f"{seed}/{i}"
            ids = token_ids(prompt)
            self.core.submit(GenerateRequest(id=name, policy="p", prompt_ids=ids, sampling=sampling, noise_key=name))
        while not self.core.idle:
            self.core.step()


class Theirs:
    def __init__(self, dtype_name: str) -> None:
        self.model = build(dtype_name)

    def run(self, prompt_sizes: list[int], new: list[int], seed: int) -> None:
        """One padded batch that lasts as long as its longest answer: the way `generate` takes a batch."""
        import torch

        longest = max(prompt_sizes)
        prompts = prompts_of(prompt_sizes, seed)
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        self.model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=max(new),
            min_new_tokens=max(new), pad_token_id=0, eos_token_id=None,
        )  # fmt: skip


def limits(dtype_name: str) -> dict[str, float]:
    """What this process can read and multiply: bytes a second, floating point operations a second."""
    import torch

    dtype = getattr(torch, dtype_name)
    big = torch.ones(1 << 26, dtype=torch.float32)
    side = 1024
    a, b = torch.ones(side, side, dtype=dtype), torch.ones(side, side, dtype=dtype)
    reads, products = [], []
    for _ in range(3):
        begin = time.perf_counter()
        big.sum()
        reads.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        torch.nn.functional.linear(a, b)
        products.append(time.perf_counter() - begin)
    return {"bytes": big.nbytes / median(reads), "flops": 2 * side**3 / median(products)}


def child(system: str, threads: int, dtype_name: str) -> None:
    """Answer jobs from standard input, one JSON line each, until it ends."""
    import torch

    torch.set_num_threads(threads)
    subject = Theirs(dtype_name) if system == "theirs" else Ours(dtype_name, system)
    subject.run([8], [2], 0)
    print(json.dumps({"limits": limits(dtype_name)}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        begin = time.perf_counter()
        subject.run(job["prompts"], job["new"], job["seed"])
        print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)


# -- in the parent


class Team:
    """Processes that share each batch."""

    def __init__(self, system: str, processes: int, threads: int, dtype_name: str) -> None:
        self.processes = processes
        command = [sys.executable, __file__, "--child", system, "--threads", str(threads), "--dtype", dtype_name]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.members = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            for _ in range(processes)
        ]
        measured = [self._read(member)["limits"] for member in self.members]
        self.limits = {name: sum(m[name] for m in measured) for name in ("bytes", "flops")}

    def _read(self, member: subprocess.Popen[str]) -> dict[str, Any]:
        assert member.stdout is not None
        line = member.stdout.readline()
        if not line:
            raise SystemExit(f"a benchmark process ended with code {member.wait()}")
        return json.loads(line)

    def seconds(self, prompts: list[int], new: list[int], seed: int) -> float:
        begin = time.perf_counter()
        for i, member in enumerate(self.members):
            share = slice(i, None, self.processes)
            assert member.stdin is not None
            job = {"prompts": prompts[share], "new": new[share], "seed": seed * 10 + i}
            member.stdin.write(json.dumps(job) + "\n")
            member.stdin.flush()
        for member in self.members:
            self._read(member)
        return time.perf_counter() - begin

    def close(self) -> None:
        for member in self.members:
            assert member.stdin is not None
            member.stdin.close()
            member.wait()


TEAMS = {
    "generate, 2 threads": ("theirs", 1, 2),
    "ours, 1 process": ("ours", 1, 1),
    "ours, 2 processes": ("ours", 2, 1),
    "general forward, 1": ("general", 1, 1),
}
WEIGHTS = 30 * (960 * 576 + 576 * 576 + 3 * 1536 * 576) + 49152 * 576  # each read once a decode step


def cases(in_flight: list[int], processes: int) -> list[tuple[int, str]]:
    return [(n, shape) for n in in_flight for shape in SHAPES if n >= processes and (n > 1 or shape == "equal")]


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    system, processes, threads = TEAMS[name]
    team = Team(system, processes, threads, options.dtype)
    rows = []
    for n, shape in cases(options.in_flight, processes):
        prompts, new = lengths(n, options.prompt, shape), lengths(n, options.new, shape)
        taken = median(team.seconds(prompts, new, seed) for seed in range(1, options.repeats + 1))
        print(f"{name}: {n} in flight, {shape}: {sum(new) / taken:.1f} tokens/s", file=sys.stderr, flush=True)
        steps = max(new) * processes
        width = 2 if options.dtype == "bfloat16" or system == "ours" else 4  # packed weights are float16
        rows.append({
            "system": name, "in_flight": n, "shape": shape, "tokens_per_second": sum(new) / taken,
            "share_of_memory": steps * WEIGHTS * width / taken / team.limits["bytes"],
            "share_of_matmul": 2 * WEIGHTS * (sum(prompts) + sum(new)) / taken / team.limits["flops"],
            "memory_gb_per_second": team.limits["bytes"] / 1e9, "matmul_gflops": team.limits["flops"] / 1e9,
        })  # fmt: skip
    team.close()
    return rows


def report(rows: list[dict[str, Any]]) -> str:
    base = {(r["in_flight"], r["shape"]): r["tokens_per_second"] for r in rows if r["system"].startswith("generate")}
    lines = [f"{'system':22} {'in flight':>9} {'shape':>7} {'tokens/s':>9} {'ratio':>6} {'memory':>7} {'matmul':>7}"]
    for r in rows:
        ratio = r["tokens_per_second"] / base[r["in_flight"], r["shape"]]
        lines.append(
            f"{r['system']:22} {r['in_flight']:9} {r['shape']:>7} {r['tokens_per_second']:9.1f} {ratio:6.2f} "
            f"{r['share_of_memory']:7.0%} {r['share_of_matmul']:7.0%}"
        )
    return "\n".join(lines)


def native_dtype() -> str:
    """bfloat16 where the processor multiplies it by itself; elsewhere it is several times slower than float32."""
    import torch

    found = torch.cpu.get_capabilities()
    return "bfloat16" if found.get("avx512_bf16") or found.get("amx_bf16") else "float32"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=100, help="tokens")
    parser.add_argument("--new", type=int, default=32, help="sampled tokens")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: what the processor does by itself")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--child", choices=["ours", "theirs", "general"], help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.threads, options.dtype)
        return
    options.dtype = options.dtype or native_dtype()
    load = os.getloadavg()[0]
    rows = [row for name in TEAMS for row in measure(name, options)]
    print(f"{options.dtype}, {os.cpu_count()} cores, load {load:.1f} at the start (other programs slow this down)")
    print(report(rows))
    result = {"benchmark": "generation", "dtype": options.dtype, "load_at_start": load, "rows": rows}
    print(json.dumps(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

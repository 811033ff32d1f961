"""Two trainers on one run or one port, a worker at another run's server: the second is refused with the reason."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

from agent_lightning.store.sqlite import SqliteStore
from agent_lightning.trainer.holding import held
from server_rig import on_a_socket, rig_state
from small_runs import command, settings_file


def refused(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=90)
    assert process.returncode == 2, said
    assert "Traceback" not in said
    return said


async def test_the_second_of_two_is_refused_with_the_reason_and_what_to_do(tmp_path: Path):
    """The first is held and served by this process, the others are processes of their own."""
    file = str(settings_file(tmp_path, workers=0))
    store = await SqliteStore.open(tmp_path / "runs/first/store.db")
    state = rig_state(store)
    state.run_id = "first"
    async with held(store, "first", {}), on_a_socket(state) as (_, port):
        agent = ("work", "examples.lookup.agent:answer", "--endpoint", f"http://127.0.0.1:{port}")
        started = [
            command("train", file, "--run", "first", "--plain"),
            command("serve", file, "--run", "first", "--port", "0", "--plain"),
            command("serve", file, "--run", "second", "--port", str(port), "--plain"),
            command(*agent, "--run", "second"),
        ]
        train, serve, same_port, other_run = [await asyncio.to_thread(refused, process) for process in started]
    await store.close()
    for said in (train, serve):
        assert "run 'first' is held by " in said and "stop that trainer, or wait" in said
    assert f"127.0.0.1:{port} cannot be used" in same_port
    assert "the server of run 'first' is running there." in same_port and "--port N" in same_port
    assert not (tmp_path / "runs/second").exists()
    assert "this server serves run 'first', not 'second': use the address of that run's server" in other_run

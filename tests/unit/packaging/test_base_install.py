"""The base install is what an agent's process needs: wrapt alone, small and quick."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("torch", "transformers", "numpy", "fastapi", "sqlalchemy", "httpx", "pydantic", "typer", "rich")


@pytest.fixture(scope="session")
def clean_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with this package's source and wrapt, and nothing else."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    packages = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    import wrapt

    (packages / "wrapt").symlink_to(Path(wrapt.__file__).parent)
    (packages / "agent_lightning.pth").write_text(str(ROOT / "src"))
    return python


def run(python: Path, code: str) -> str:
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_importing_the_package_takes_under_60_ms_and_no_extra(clean_python: Path):
    code = (
        "import sys, time, json\n"
        "began = time.process_time()\n"
        "import agent_lightning\n"
        "seconds = time.process_time() - began\n"
        f"print(json.dumps([seconds, [name for name in {HEAVY!r} if name in sys.modules]]))\n"
    )
    results = [json.loads(run(clean_python, code)) for _ in range(3)]
    assert min(seconds for seconds, _ in results) < 0.060
    assert all(loaded == [] for _, loaded in results)


def test_an_agent_is_injected_with_wrapt_alone(clean_python: Path):
    code = (
        "from agent_lightning import inject_runtime, emit_reward\n"
        "class Agent:\n"
        "    def run(self, task): return task.upper()\n"
        "agent = Agent()\n"
        "with inject_runtime(agent, endpoint='http://127.0.0.1:9', trace_sampling_rate=1.0):\n"
        "    print(agent.run('fine'))\n"
    )
    assert run(clean_python, code).strip() == "FINE"


def test_the_worker_command_runs_on_the_base_install(clean_python: Path):
    done = subprocess.run(
        [str(clean_python), "-m", "agent_lightning.cli", "work", "--help"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert "module:attribute" in done.stdout


def test_other_commands_name_the_extra_that_is_missing(clean_python: Path):
    done = subprocess.run(
        [str(clean_python), "-m", "agent_lightning.cli", "train", "x.toml"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "agent-lightning[train]" in done.stderr


def test_public_names_are_there():
    import agent_lightning

    for name in agent_lightning.__all__:
        assert getattr(agent_lightning, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = agent_lightning.nothing  # type: ignore[attr-defined]


def test_the_package_needs_nothing_but_wrapt():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [text.split(">")[0] for text in project["dependencies"]] == ["wrapt"]
    assert set(project["optional-dependencies"]) >= {"server", "train", "examples", "dev", "all"}
    assert sys.version_info >= (3, 11)

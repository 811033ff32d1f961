"""Keys of a server: hashed at rest, shown once, changed while it runs, needed wherever others can reach it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_lightning.cli.app import app
from agent_lightning.errors import AccessDenied, SettingError
from agent_lightning.server import access
from agent_lightning.server.access import Keys, check_binding
from agent_lightning.server.keyring import add_key, read_keys, revoke_key
from small_runs import command, environment, settings_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


class Watched:
    """Keys of a file, and the time that passes between two looks at it."""

    def __init__(self, file: Path) -> None:
        self.now, self.tick = 1000.0, 0.0
        self.keys = Keys(file=file, clock=lambda: self.now, ticks=lambda: self.tick)

    def later(self) -> Keys:
        self.tick += access.LOOK_SECONDS
        return self.keys


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["keys", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_key_is_shown_once_and_kept_as_its_hash_in_a_file_of_its_owner(file: Path):
    key = run("add", "worker", "--file", str(file)).strip()
    assert key.startswith("alw-") and len(key) >= 4 + 43, "256 random bits"
    assert key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    listed = run("list", "--file", str(file))
    assert "worker-1" in listed and "never" in listed
    assert key not in listed and key[4:12] not in listed
    assert Keys(file=file).role_of(key) == "worker"


def test_keys_rotate_without_a_restart(file: Path):
    old = add_key(file, "worker", now=0.0, name="old")
    watched = Watched(file)
    new = add_key(file, "worker", now=0.0, name="new")
    keys = watched.later()
    assert keys.role_of(old) == keys.role_of(new) == "worker"
    revoke_key(file, "old")
    assert watched.keys.role_of(old) == "worker", "the file is looked at once a second at most"
    keys = watched.later()
    assert (keys.role_of(old), keys.role_of(new)) == (None, "worker")
    with pytest.raises(AccessDenied):
        keys.work(old)


def test_a_key_opens_until_it_expires(file: Path):
    key = add_key(file, "read", now=0.0, expires=1500.0)
    watched = Watched(file)
    watched.keys.look(key)
    watched.now = 1500.0
    with pytest.raises(AccessDenied):
        watched.keys.look(key)


def test_a_server_that_was_open_asks_for_keys_as_soon_as_there_is_one(file: Path):
    watched = Watched(file)
    watched.keys.work(None)
    key = add_key(file, "admin", now=0.0)
    keys = watched.later()
    for door in (keys.work, keys.steer, keys.look):
        door(key)
        with pytest.raises(AccessDenied):
            door(None)


@pytest.mark.parametrize("damage", ["gone", "torn", "writable"])
def test_losing_the_file_never_opens_a_server(file: Path, damage: str, caplog: pytest.LogCaptureFixture):
    key = add_key(file, "worker", now=0.0)
    watched = Watched(file)
    if damage == "gone":
        file.unlink()
    elif damage == "torn":
        file.write_text('{"keys": [')
    else:
        file.chmod(0o666)
        os.utime(file, ns=(1, 1))
    keys = watched.later()
    assert keys.guarded
    with pytest.raises(AccessDenied):
        keys.work(None)
    assert keys.role_of(key) == (None if damage == "gone" else "worker")
    assert damage == "gone" or "the keys stay as they were" in caplog.text


@pytest.mark.parametrize("content", ["[]", "{", '{"keys": [{"name": 1}]}', '{"keys": [{"name": "a", "role": "king"}]}'])
def test_a_file_that_is_no_keys_file_is_named(file: Path, content: str):
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(SettingError, match=str(file)):
        Keys(file=file)


def test_writers_at_the_same_moment_lose_no_key(file: Path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: add_key(file, "worker", now=0.0), range(24)))
    assert len({key.name for key in read_keys(file)}) == len(set(made)) == 24


def test_the_commands_refuse_what_makes_no_sense(file: Path):
    add_key(file, "worker", now=0.0, name="mine")
    for arguments, wanted in (
        (("add", "king"), "worker, admin, read"),
        (("add", "read", "--name", "mine"), "has a key named 'mine'"),
        (("add", "read", "--name", "a\nb"), "printable"),
        (("add", "read", "--expires", "soon"), "12h, 90d"),
        (("revoke", "nobody"), "its keys are mine"),
    ):
        with pytest.raises(SettingError, match=wanted):
            run(*arguments, "--file", str(file))
    assert [key.name for key in read_keys(file)] == ["mine"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "example.org"])
def test_an_address_that_others_reach_needs_a_worker_and_an_admin_key(file: Path, host: str):
    with pytest.raises(SettingError, match=r"agent-lightning keys add worker --file .* keys add admin --file"):
        check_binding(host, Keys(file=file), file)
    add_key(file, "worker", now=0.0)
    add_key(file, "admin", now=0.0, expires=1.0)
    with pytest.raises(SettingError, match="keys add admin") as refused:
        check_binding(host, Keys(file=file), file)
    assert "keys add worker" not in str(refused.value)
    add_key(file, "admin", now=0.0)
    check_binding(host, Keys(file=file), file)
    check_binding(host, Keys(worker="alw-1", admin="ala-1"), file)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_none(file: Path, host: str):
    check_binding(host, Keys(file=file), file)


def test_the_command_off_loopback_says_how_to_make_it_right_and_does(tmp_path: Path):
    done = command("serve", str(settings_file(tmp_path, workers=0)), "--run", "r", "--host", "0.0.0.0", "--plain")
    said, _ = done.communicate(timeout=60)
    assert done.returncode == 2
    for role in ("worker", "admin"):
        wanted = f"agent-lightning keys add {role} --file {tmp_path / 'runs/keys.json'}"
        assert wanted in said
        made = subprocess.run(
            [sys.executable, "-m", "agent_lightning.cli", *wanted.split()[1:]],
            capture_output=True,
            text=True,
            check=True,
            env=environment(),
        )
        assert made.stdout.startswith("al") and "not shown again" in made.stderr
    keys = Keys(file=tmp_path / "runs/keys.json")
    check_binding("0.0.0.0", keys, tmp_path)
    assert [entry["role"] for entry in json.loads((tmp_path / "runs/keys.json").read_text())["keys"]] == [
        "worker",
        "admin",
    ]

"""The commands of the training side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agent_lightning.cli.keys import keys

app = typer.Typer(
    name="agent-lightning",
    help="Train any existing AI agent with reinforcement learning, without changing its code.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(keys)

File = Annotated[Path | None, typer.Argument(help="settings (TOML)", show_default=False)]
Settings = Annotated[list[str] | None, typer.Option("--set", "-s", help="NAME=VALUE, over the file; may be repeated")]
Resume = Annotated[str | None, typer.Option(help="run (name or folder) to go on with; FILE then gives its keys")]
RunName = Annotated[str | None, typer.Option(help="name of the new run")]
Plain = Annotated[bool, typer.Option("--plain", help="lines instead of a live display")]


@app.command()
def train(
    file: File = None,
    resume: Resume = None,
    settings: Settings = None,
    run: RunName = None,
    plain: Plain = False,
) -> None:
    """Train an agent: starts everything, shows progress, writes checkpoints and a report."""
    from agent_lightning.cli.training import train as go

    go(file, resume=resume, settings=settings or [], run=run, plain=plain)


@app.command()
def serve(
    file: File = None,
    resume: Resume = None,
    settings: Settings = None,
    run: RunName = None,
    host: Annotated[
        str | None, typer.Option(help="default 127.0.0.1; others need keys (`agent-lightning keys`)")
    ] = None,
    port: Annotated[int | None, typer.Option(help="default 8000")] = None,
    plain: Plain = False,
) -> None:
    """Serve and train; agents come from elsewhere with `agent-lightning work module:agent`."""
    from agent_lightning.cli.training import serve as go

    go(file, resume=resume, settings=settings or [], run=run, host=host, port=port, plain=plain)


@app.command()
def work() -> None:
    """Run an agent on rollouts that a training server has queued (`agent-lightning work --help`)."""
    raise typer.Exit(0)  # answered by cli/__init__ before this app is imported


@app.command()
def run() -> None:
    """Run an unchanged program under training (`agent-lightning run --help`)."""
    raise typer.Exit(0)  # answered by cli/__init__ before this app is imported


@app.command()
def inspect() -> None:
    """Run a program once against a stand-in model and list its calls and components (`inspect --help`)."""
    raise typer.Exit(0)  # answered by cli/__init__ before this app is imported


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="run (name or folder) or id of a rollout")],
    run: Annotated[str | None, typer.Option(help="run that holds the rollout")] = None,
    runs: Annotated[str, typer.Option(help="folder that holds the runs")] = "runs",
    full: Annotated[bool, typer.Option("--full", help="whole prompts and answers")] = False,
) -> None:
    """Show a run (settings, held-out success, what was dropped, alerts) or a rollout step by step with its credit."""
    from agent_lightning.cli.showing import show as go

    go(name, run=run, runs=runs, full=full)


@app.command()
def preflight(
    file: File = None,
    settings: Settings = None,
    tasks: Annotated[int, typer.Option(help="training tasks to try", min=1)] = 4,
) -> None:
    """Try a few tasks and show what would be trained, how long it would take, and what is wrong. Trains nothing."""
    from agent_lightning.cli.preflight import preflight as go

    go(file, settings=settings or [], tasks=tasks)


@app.command()
def trajectories(
    run: Annotated[str, typer.Argument(help="run (name or folder)")],
    out: Annotated[Path, typer.Argument(help="file of JSON lines to write")],
    step: Annotated[int | None, typer.Option(help="only the rollouts of this trainer step")] = None,
    runs: Annotated[str, typer.Option(help="folder that holds the runs")] = "runs",
) -> None:
    """Write the transitions of a run's rollouts, one rollout a line, with exact token ids."""
    from agent_lightning.cli.exporting import trajectories as go

    go(run, out, step=step, runs=runs)


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="run (name or folder)")],
    out: Annotated[Path, typer.Argument(help="folder to write the model to; must not exist")],
    checkpoint: Annotated[str, typer.Option(help="best, latest, or a step number")] = "best",
) -> None:
    """Write the trained model, merged, in Hugging Face format."""
    from agent_lightning.cli.exporting import export as go

    go(run, out, checkpoint)


@app.command()
def gc(
    run: Annotated[str, typer.Argument(help="run (name or folder)")],
    older_than: Annotated[str, typer.Option(help="age since their end: 90m, 12h, 30d, 8w")] = "30d",
    keep_training: Annotated[
        bool, typer.Option("--keep-training/--clear-training", help="keep the text of rollouts that were trained on")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be deleted")] = False,
) -> None:
    """Delete text, tokens and spans of old rollouts. Their rows, numbers and rewards stay. Also while the run trains."""
    from agent_lightning.cli.retention import gc as go

    go(run, older_than=older_than, keep_training=keep_training, dry_run=dry_run)


@app.command()
def forget(
    run: Annotated[str, typer.Argument(help="run (name or folder); must be stopped")],
    rollout: Annotated[str, typer.Argument(help="id of the rollout")],
    whole_task: Annotated[bool, typer.Option("--whole-task", help="and every other rollout of its task")] = False,
) -> None:
    """Delete all that was said in one rollout, down to the bytes of the files, and list the versions trained on it."""
    from agent_lightning.cli.retention import forget as go

    go(run, rollout, whole_task=whole_task)


@app.command()
def backup(
    run: Annotated[str, typer.Argument(help="run (name or folder)")],
    out: Annotated[Path, typer.Argument(help="file to write; must not exist")],
) -> None:
    """Copy a run's store as it is at this moment. Also while the run trains."""
    from agent_lightning.cli.backing import backup as go

    go(run, out)


@app.command()
def upgrade(run: Annotated[str, typer.Argument(help="run (name or folder); must be stopped")]) -> None:
    """Bring the store of an older version to this version's schema."""
    from agent_lightning.cli.retention import upgrade as go

    go(run)


if __name__ == "__main__":
    app()

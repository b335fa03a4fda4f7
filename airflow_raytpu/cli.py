"""The command ``airflow-raytpu``."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import click

from airflow_raytpu import __version__
from airflow_raytpu.model.errors import RayTpuError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_FOLDER = click.Path(file_okay=False, resolve_path=True, path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="airflow-raytpu")
def commands() -> None:
    """Run Ray on TPU slices from Airflow."""


@commands.command()
@click.option("--exit", "leave", is_flag=True, help="Stop everything after the run; always so without a terminal.")
@click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="Of the UI; 0 takes a free one."
)
@click.option("--keep", is_flag=True, help="Keep the last demo's runs and files instead of starting afresh.")
@click.option("--clean", is_flag=True, help="Only end and remove what an earlier demo left.")
@click.option("--home", "root", type=_FOLDER, hidden=True, help="Instead of .demo in the clone; for tests.")
@click.option("--dags", type=_FOLDER, hidden=True, help="Instead of dags in the clone; for tests.")
def demo(*, leave: bool, port: int, keep: bool, clean: bool, root: Path | None, dags: Path | None) -> None:
    """Train, infer and serve on a simulated TPU slice, under a real Airflow on this machine."""
    # Other commands, and a worker's import of this package, have no use for these.
    from rich.console import Console  # noqa: PLC0415

    from airflow_raytpu.demo import home, run  # noqa: PLC0415

    place = home.DemoHome(root=root or home.repository() / ".demo", dags=dags or home.repository() / "dags", port=port)
    console = Console()
    if clean:
        run.clean(place, console)
        return
    sys.exit(run.run(place, run.Wish(stay=sys.stdout.isatty() and not leave, keep=keep), console))


def _conf(_context: click.Context, _option: click.Parameter, value: str) -> dict[str, Any]:
    try:
        conf = json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}") from error
    if not isinstance(conf, dict):
        raise click.BadParameter("not a JSON object, such as '{\"steps\": 100}'")
    return conf


@commands.command()
@click.argument("dag_id")
@click.option("--task", "task_id", help="Of this task alone.")
@click.option("--conf", callback=_conf, default="{}", metavar="JSON", help="Parameters, as for a trigger.")
@click.option(
    "--dags-folder",
    "folder",
    type=click.Path(resolve_path=True, path_type=Path),
    help="Instead of Airflow's own dags_folder.",
)
@click.option("--output", type=click.Choice(["text", "json", "yaml", "manifest"]), default="text", show_default=True)
def explain(*, dag_id: str, task_id: str | None, conf: dict[str, Any], folder: Path | None, output: str) -> None:
    """Say what each task of a DAG would ask for, and what is wrong with it, without asking anybody.

    Exit status: 1 where something cannot work, 2 where there is no such DAG or task.
    """
    from airflow_raytpu.explain.command import Question, run  # noqa: PLC0415

    sys.exit(run(Question(dag_id=dag_id, task_id=task_id, conf=conf, folder=folder, output=output)))


@commands.command()
@click.option("--cluster", metavar="NAME", help="Of this cluster alone; the hash at its end may be left out.")
@click.option("--conn-id", metavar="ID", help="Where this Airflow connection leads, instead of this machine.")
@click.option("--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
def slices(*, cluster: str | None, conn_id: str | None, output: str) -> None:
    """Show the TPU slices of running clusters: which are whole, idle or held, and by whom."""
    from airflow_raytpu.slices_view.command import run  # noqa: PLC0415

    run(conn_id, cluster, output)


@commands.command()
@click.option("--conn-id", default="raytpu_default", show_default=True, metavar="ID", help="The Airflow connection.")
@click.option("--slice", "shape", default="", metavar="SHAPE", help="Look for nodes of this shape, such as v6e:4x4.")
@click.option("--namespace", default="", metavar="NAME", help="Instead of the connection's.")
@click.option("--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
def doctor(*, conn_id: str, shape: str, namespace: str, output: str) -> None:
    """Look whether the place that a connection names has what requests need, and say what to do where it has not.

    Exit status: 1 where something keeps requests from running.
    """
    from airflow_raytpu.doctor.command import Question, run  # noqa: PLC0415

    sys.exit(run(Question(conn_id=conn_id, slice=shape, namespace=namespace, output=output)))


def _seconds(_context: click.Context, _option: click.Parameter, value: str) -> float:
    found = re.fullmatch("([0-9]{1,9})([smhd])", value)
    if not found:
        raise click.BadParameter("not a number with s, m, h or d behind it, such as 90m")
    return int(found[1]) * _UNITS[found[2]]


@commands.command()
@click.option("--conn-id", default="raytpu_default", show_default=True, metavar="ID", help="The Airflow connection.")
@click.option(
    "--older-than",
    "older_than_s",
    callback=_seconds,
    default="1h",
    show_default=True,
    metavar="SPAN",
    help="Leave what somebody looked at within this time, such as 90m or 2d; never less than its own time to live.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
def reap(*, conn_id: str, older_than_s: float, dry_run: bool, output: str) -> None:
    """Remove what this Airflow deployment left where a connection leads, and nobody looks after any more.

    It does not ask Airflow what is at work: where Airflow has been down for longer, say how long with --older-than.

    Exit status: 1 where something does not go.
    """
    from airflow_raytpu.reaping.command import Question, run  # noqa: PLC0415

    sys.exit(run(Question(conn_id=conn_id, older_than_s=older_than_s, dry_run=dry_run, output=output)))


def main() -> None:
    """Entry point; an error of ours is told in its own words, without a traceback."""
    try:
        commands()
    except RayTpuError as error:
        click.echo(f"\n{error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()

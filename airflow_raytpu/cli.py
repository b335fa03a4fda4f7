"""The command ``airflow-raytpu``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from airflow_raytpu import __version__
from airflow_raytpu.model.errors import RayTpuError

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


def main() -> None:
    """Entry point; an error of ours is told in its own words, without a traceback."""
    try:
        commands()
    except RayTpuError as error:
        click.echo(f"\n{error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()

"""`pgpu install-runtime`: makes a container engine know the runtime `pgpu`."""

from pathlib import Path
from typing import Annotated

import typer

from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console


def install_runtime(
    context: typer.Context,
    *,
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="The engine's configuration file.")] = Path(
        "/etc/docker/daemon.json"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the change and make none.")] = False,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Take the runtime out again.")] = False,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What `docker run --runtime` calls it.")] = "pgpu",
    engine: Annotated[
        str, typer.Option("--engine", metavar="URL", help="The engine's own socket, by which it is asked for images.")
    ] = "unix:///var/run/docker.sock",
    settings: Annotated[
        Path, typer.Option("--settings", metavar="FILE", help="The machine's settings, such as simulated GPUs.")
    ] = Path("/etc/pgpu/config.toml"),
) -> None:
    """Make a Docker engine know `--runtime=pgpu`, for `docker run -e PGPU_MEMORY=4GiB` and Compose.

    Shows the change to the engine's configuration first and keeps what else stands there. The ledger is the machine's,
    /var/lib/pgpu, unless --state-dir of pgpu itself names another.
    """
    from pgpu.app.oci.engine_config import Installation, check_machine, plan_install, plan_uninstall

    state_dir = invocation_of(context).flags.get("state_dir") or "/var/lib/pgpu"
    installation = Installation(name, settings.absolute(), Path(state_dir).absolute(), engine)
    change = plan_uninstall(config, name) if uninstall else plan_install(config, installation)
    if change.is_none:
        console.print_note(f"{config} needs no change")
        return
    print(change.shown())
    if dry_run:
        return
    if not uninstall:
        check_machine(installation)
    change.make()
    console.print_note(
        f"{config} is written; the engine reads it on `systemctl reload docker`, containers go on running"
    )

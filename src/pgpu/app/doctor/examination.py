"""The order of the checks; a check that fails by itself is a finding, never the end of the examination."""

from collections.abc import Callable, Iterator
from functools import partial

from pgpu.app.doctor import gpu_checks, installation, places, sharing, trial
from pgpu.app.settings import Settings
from pgpu.errors import PgpuError
from pgpu.model.finding import Finding, broken

Check = Callable[[Settings], Iterator[Finding]]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("versions", installation.versions),
    ("distribution", installation.foreign_distribution),
    ("libraries", installation.libraries),
    ("state directory", places.ledger),
    ("runtime directory", places.runtime_folder),
    ("logout", places.logout),
    ("leftovers", places.leftovers),
    ("private views", installation.private_views),
    ("container engine", installation.container_engine),
    ("volumes of users", installation.volumes_of_users),
    ("driver", gpu_checks.driver),
    ("GPU locks", gpu_checks.locks),
    ("MPS", sharing.mps),
    ("trial on a simulated GPU", trial.on_simulated_gpu),
    ("trial on a GPU", trial.on_real_gpu),
)


def examine(settings: Settings, image: str | None = None) -> Iterator[Finding]:
    """Look at everything, in an order in which causes come before their effects.

    Args:
        settings: What to look at.
        image: Try a container of it, too.
    """
    checks = list(CHECKS)
    if image is not None:
        checks.append(("trial in a container", partial(trial.on_simulated_gpu, image=image)))
    for name, check in checks:
        try:
            yield from check(settings)
        except PgpuError as exc:
            yield broken(name, str(exc), exc.hint)

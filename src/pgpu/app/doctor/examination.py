"""The order of the checks: causes before their effects. An error in a check is a finding and does not end the others."""

from collections.abc import Callable, Iterator
from functools import partial

from pgpu.app.doctor import gpu_checks, machine_checks, trial
from pgpu.app.settings import Settings
from pgpu.errors import PgpuError
from pgpu.model.finding import Finding, broken

Check = Callable[[Settings], Iterator[Finding]]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("versions", machine_checks.versions),
    ("distribution", machine_checks.foreign_distribution),
    ("libraries", machine_checks.libraries),
    ("state directory", machine_checks.ledger),
    ("runtime directory", machine_checks.runtime_folder),
    ("logout", machine_checks.logout),
    ("leftovers", machine_checks.leftovers),
    ("private views", machine_checks.private_views),
    ("container engine", machine_checks.container_engine),
    ("volumes of users", machine_checks.volumes_of_users),
    ("driver", gpu_checks.driver),
    ("GPU locks", gpu_checks.locks),
    ("MPS", gpu_checks.mps),
    ("trial on a simulated GPU", trial.on_simulated_gpu),
    ("trial on a GPU", trial.on_real_gpu),
)


def examine(settings: Settings, image: str | None = None) -> Iterator[Finding]:
    """Run all checks.

    Args:
        settings: The settings to check.
        image: Also try a slice in a container of this image.
    """
    checks = list(CHECKS)
    if image is not None:
        checks.append(("trial in a container", partial(trial.on_simulated_gpu, image=image)))
    for name, check in checks:
        try:
            yield from check(settings)
        except PgpuError as exc:
            yield broken(name, str(exc), exc.hint)

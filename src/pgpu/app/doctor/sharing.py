"""What jobs need that share a GPU under MPS, and whose daemon else might catch those that don't."""

from collections.abc import Iterator
from pathlib import Path

from pgpu.app.doctor.gpu_checks import real_gpus
from pgpu.app.settings import Settings
from pgpu.enforcement.mps import MpsControl, find_control
from pgpu.model.finding import Finding, fine, weak

_NVIDIAS_PLACE = Path("/tmp/nvidia-mps")  # noqa: S108 - NVIDIA's own, which is only asked
_NVIDIAS_LOGS = Path("/var/log/nvidia-mps")


def mps(settings: Settings) -> Iterator[Finding]:
    """Look for the control program, and for a daemon at NVIDIA's own place."""
    program = find_control(is_simulated=settings.simulate is not None)
    if program is not None:
        yield from mps_findings(MpsControl(program, _NVIDIAS_PLACE, _NVIDIAS_LOGS, ""))
    elif real_gpus():
        yield weak(
            "MPS",
            "nvidia-cuda-mps-control is not on the PATH, so --sharing mps is refused",
            "install it; it comes with the driver, on Debian and Ubuntu in nvidia-compute-utils",
        )


def mps_findings(control: MpsControl) -> Iterator[Finding]:
    """Tell of a control program that there is.

    Args:
        control: It, and where programs look for a daemon that are told nothing.
    """
    yield fine("MPS", f"{control.program} can share a GPU among jobs")
    if control.servers() is not None:
        yield weak(
            "MPS",
            f"a control daemon that is not pgpu's listens in {control.pipe_directory}: jobs in other modes become its clients",
            "end it: echo quit | nvidia-cuda-mps-control",
        )

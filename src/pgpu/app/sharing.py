"""Joins what jobs need that share a GPU under MPS; nothing, where this machine's driver has no control program."""

from collections.abc import Mapping
from pathlib import Path

from pgpu.app.throwaway_jobs import hold_throwaway
from pgpu.enforcement.mps import MpsDaemons, MpsProof, find_control
from pgpu.engine.leases.mps_sharing import MpsSharing
from pgpu.ledger import Ledger
from pgpu.runtimes import Runtime


def make_mps(
    runtime_path: Path, simulated_directory: Path | None, ledger: Ledger, runtimes: Mapping[str, Runtime]
) -> MpsSharing | None:
    """Return the daemons of the GPUs, simulated ones where their directory is given; None without a control program.

    Raises:
        NodeError: The simulated program is missing from this installation.
    """
    program = find_control(is_simulated=simulated_directory is not None)
    if program is None:
        return None
    proof = MpsProof(
        lambda job, delivery, account, look: hold_throwaway(runtimes[job.spec.runtime], job, delivery, account, look)
    )
    return MpsSharing(MpsDaemons(runtime_path, program, simulated_directory), ledger, proof)

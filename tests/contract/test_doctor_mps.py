"""The doctor tells of a control program, and of a daemon that somebody else started."""

from tests.mps_world import mps_world

from pgpu.app.machine_checks import mps_findings
from pgpu.model.finding import Finding


def told(findings: list[Finding]) -> str:
    return " ".join(finding.finding for finding in findings)


def test_a_daemon_that_is_not_pgpus_is_a_weakness() -> None:
    with mps_world() as world:
        assert str(world.control.pipe_directory) in told(list(mps_findings(world.control)))


def test_a_control_program_alone_is_fine() -> None:
    with mps_world(is_started=False) as world:
        (finding,) = mps_findings(world.control)
        assert str(world.control.program) in finding.finding

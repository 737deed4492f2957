"""`python -m pgpu.workloads WORKLOAD`: one program for each kind of job.

Exit codes: 0 done; 1 the GPU refused, the result was wrong, or cuda-bindings is not installed; 2 bad arguments. The result is one
JSON line on standard output.
"""

import argparse
import inspect
import re
import sys
import time
from typing import Any, NoReturn

from pgpu.workloads import inference, training
from pgpu.workloads.cuda_driver import CudaError, MissingBindingsError
from pgpu.workloads.programs.antagonists import CROWD, DRAM_STREAM, FMA_CHAINS, L2_SWEEP
from pgpu.workloads.programs.irregular import Alignment, Clusters, Levels, Path
from pgpu.workloads.programs.matrices import ColumnWalk, RowWalk, TiledProduct
from pgpu.workloads.programs.particles import Particles
from pgpu.workloads.programs.problem import Program
from pgpu.workloads.programs.stencils import Chip, Speckle, Stack
from pgpu.workloads.stressors import Hog, Link, Spin
from pgpu.workloads.workload_run import WorkloadError, wait_for_start_line, wait_for_start_signal, wait_seconds

PROBLEMS = (Stack, Chip, Speckle, Path, Alignment, Clusters, Levels, RowWalk, ColumnWalk, TiledProduct, Particles)
_WORKLOADS: dict[str, Any] = {
    "inference": inference,
    "training": training,
    "spin": Spin(),
    "hog": Hog(),
    "link": Link(),
    **{problem.name: Program(problem) for problem in PROBLEMS},
    "l2_sweep": L2_SWEEP,
    "dram_stream": DRAM_STREAM,
    "fma_chains": FMA_CHAINS,
    "crowd": CROWD,
}
_MEMORY = re.compile(r"(\d+)(MiB|GiB)")
_UNIT_BYTES = {"MiB": 1 << 20, "GiB": 1 << 30}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _memory_bytes(text: str) -> int:
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount of memory; write it like 1205MiB or 2GiB")
    return int(match[1]) * _UNIT_BYTES[match[2]]


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m pgpu.workloads", description="CUDA programs over the driver API.")
    workloads = parser.add_subparsers(dest="workload", required=True, metavar="WORKLOAD", parser_class=_Parser)
    for name, module in _WORKLOADS.items():
        purpose = inspect.getdoc(module.problem if isinstance(module, Program) else module) or ""
        chosen = workloads.add_parser(
            name,
            help=purpose.splitlines()[0],
            description=purpose,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        chosen.add_argument("--start-line", action="store_true", help="print `ready`, then start at a line on stdin")
        chosen.add_argument("--start-signal", action="store_true", help="print `ready`, then start at SIGUSR1")
        chosen.add_argument(
            "--start-at", type=float, default=0.0, metavar="SECONDS", help="start no earlier; seconds since the epoch"
        )
        if module in (inference, training):
            chosen.add_argument(
                "--memory", type=_memory_bytes, default="1205MiB", help="what it needs, context included (1205MiB)"
            )
        elif isinstance(module, Program):
            chosen.add_argument(
                "--memory", type=_memory_bytes, help="what it holds, context included (as much as its sizes need)"
            )
        module.add_arguments(chosen)
    return parser


def main() -> int:
    """Run the workload named on the command line and return the exit code."""
    parser = _parser()
    arguments = parser.parse_args()
    # Counts and times are positive; a time may be zero.
    for name, value in vars(arguments).items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and (value < 0 or (value == 0 and isinstance(value, int))):
            parser.error(f"--{name.replace('_', '-')} must be positive, not {value}")
    wait_seconds(arguments.start_at - time.time())
    if arguments.start_line:
        wait_for_start_line()
    if arguments.start_signal:
        wait_for_start_signal()
    try:
        return int(_WORKLOADS[arguments.workload].run(arguments))
    except (CudaError, MissingBindingsError, WorkloadError) as error:
        sys.stderr.write(f"{arguments.workload}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())

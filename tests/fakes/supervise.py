"""The supervisor of the fake machine: `supervise.py ROOT JOB`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))


def main() -> None:
    from tests.fakes.machine import make_engine  # noqa: PLC0415 - likewise

    from pgpu.engine.supervisor import supervise  # noqa: PLC0415 - after the path is set

    supervise(make_engine(Path(sys.argv[1])), sys.argv[2])


if __name__ == "__main__":
    main()

"""`python -m pgpu.app.doctor.listing`: the real GPUs as JSON, for `gpus`, which wants them from another process."""

import dataclasses
import json
import sys

from pgpu.app.wiring import gpu_source
from pgpu.errors import PgpuError

if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps([dataclasses.asdict(gpu) for gpu in gpu_source(None).gpus()]))
    except PgpuError as exc:
        raise SystemExit(str(exc)) from exc

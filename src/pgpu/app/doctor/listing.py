"""`python -m pgpu.app.doctor.listing`: driver and real GPUs as JSON, for `gpus`, which wants them from another process."""

import dataclasses
import json
import sys

from pgpu.app.composition import gpu_source
from pgpu.errors import PgpuError

if __name__ == "__main__":
    try:
        source = gpu_source(None)
        found = {"cuda_version": source.cuda_version(), "gpus": [dataclasses.asdict(gpu) for gpu in source.gpus()]}
        sys.stdout.write(json.dumps(found))
    except PgpuError as exc:
        raise SystemExit(str(exc)) from exc

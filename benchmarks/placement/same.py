"""Whether pgpu's placer and its compiled copy decide alike, pod by pod (`python -m benchmarks.placement.same FOLDER`).

Plays openb's streams with both, on one seed for each load, and writes how many pods came to another place into a JSON file
in benchmarks/results.
"""

import argparse
import json
from pathlib import Path

from benchmarks.placement.cluster import Cluster, replay
from benchmarks.placement.compiled import replay_ours
from benchmarks.placement.openb import Stream, Trace, arrivals, departures, read_trace
from benchmarks.placement.others import typical
from benchmarks.placement.ours import Ours
from benchmarks.shim_overhead import RESULTS, circumstances


def main() -> None:
    """Play, compare, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("openb", type=Path)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--parts", nargs="*", default=["arrivals", "0.9", "1.0", "1.1"])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    trace = read_trace(arguments.openb)
    output = arguments.output or RESULTS / f"placement-same-{circumstances()['date']}.json"
    result = {}
    for part in arguments.parts:
        is_growing = part == "arrivals"
        stream = arrivals(trace, arguments.seed) if is_growing else departures(trace, arguments.seed, float(part))
        result[part] = compared(trace.shuffled(arguments.seed), stream)
        print(part, result[part], flush=True)
        output.write_text(json.dumps({**circumstances(), "seed": arguments.seed, **result}, indent=1) + "\n", "utf-8")


def compared(trace: Trace, stream: Stream) -> dict[str, int]:
    """Count pods, and those that the two place differently or only one of them places."""
    one, other = Cluster(trace), Cluster(trace)
    shipped = replay(one, stream, Ours(one)).places
    copied = replay_ours(other, stream, typical(trace)).places
    decided = int((stream.events >= 0).sum())
    differently = sum(shipped.get(pod) != copied.get(pod) for pod in range(len(stream.kinds)))
    return {"pods": decided, "refused": decided - len(shipped), "placed_differently": differently}


if __name__ == "__main__":
    main()

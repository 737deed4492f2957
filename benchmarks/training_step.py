"""What the shim, and a share, add to a PyTorch training step (`python -m benchmarks.training_step`).

A convolutional network with long kernels, and a deep narrow one with steps of mostly launch overhead, are
trained as they are, inside a slice, and inside a slice with a share that does not hold them back: in turns, each round in
processes of their own. PyTorch on an NVIDIA GPU is needed; it is not one of pgpu's own packages. The target is 1 % added by
the slice. Prints one JSON object; exits with 1 where the target is missed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any

PGPU = (sys.executable, "-c", "import sys; from pgpu.cli.main import main; sys.exit(main())")
WAYS: dict[str, tuple[str, ...]] = {
    "bare": (),
    "slice": ("run", "--memory", "8GiB", "--"),
    "share": ("run", "--memory", "8GiB", "--compute", "50%", "--"),
}
"""Words of pgpu before the program; a fair share of half leaves a job that is alone all of the GPU."""

NETWORKS = ("convolutional", "narrow")
TARGET_RATIO = 1.01
WARMING_STEPS = 20
LAYERS, WIDTH, BATCH, CLASSES = 100, 64, 64, 10


def main() -> int:
    """Train in one process, or in all ways in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each way and network")
    parser.add_argument("--steps", type=int, default=200, help="that are timed in each process")
    parser.add_argument("--train", choices=NETWORKS, help="only train this one here, and print what a step takes")
    parser.add_argument("--device", default="cuda", help="with --train: where")
    arguments = parser.parse_args()
    if arguments.train:
        print(json.dumps({"step_seconds": trained(arguments.train, arguments.steps, arguments.device)}))
        return 0
    report = {name: compared(name, arguments.rounds, arguments.steps) for name in NETWORKS}
    print(json.dumps({"torch": version("torch"), "target_ratio": TARGET_RATIO, "networks": report}))
    return int(any(row["slice"]["ratio"] > TARGET_RATIO for row in report.values()))


def compared(network: str, rounds: int, steps: int) -> dict[str, dict[str, float]]:
    """Return each way's median seconds of a step, and its ratio to the bare one as the median of the rounds'."""
    seen: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as state:
        for _ in range(rounds):
            for way, words in WAYS.items():
                seen[way].append(step_seconds(network, steps, words, state))
    return {way: {"step_seconds": statistics.median(taken), "ratio": ratio(taken, seen["bare"])}
            for way, taken in seen.items()}  # fmt: skip


def ratio(taken: Sequence[float], bare: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return round(statistics.median(one / other for one, other in zip(taken, bare, strict=True)), 4)


def step_seconds(network: str, steps: int, words: Sequence[str], state: str) -> float:
    """Train in a process of its own; return the median seconds of a step.

    Raises:
        CalledProcessError: It failed; what it wrote to standard error was shown.
    """
    training = (sys.executable, "-m", "benchmarks.training_step", "--train", network, "--steps", str(steps))
    command = (*PGPU, "--state-dir", state, *words, *training) if words else training
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["step_seconds"])


def trained(network: str, steps: int, device: str) -> float:
    """Train on random data; return the median seconds of a step, each waited for."""
    take_step, wait = made(network, device)
    taken = []
    for number in range(WARMING_STEPS + steps):
        began_seconds = time.perf_counter()
        take_step()
        wait()
        if number >= WARMING_STEPS:
            taken.append(time.perf_counter() - began_seconds)
    return statistics.median(taken)


def made(network: str, device: str) -> tuple[Callable[[], None], Callable[[], Any]]:
    """Build the network, its data and its optimiser; return what takes a step and what waits for its end."""
    torch: Any = import_module("torch")  # only the process that trains needs it
    layers, data = (convolutional if network == "convolutional" else narrow)(torch)
    model, data = layers.to(device), data.to(device)
    labels = torch.randint(CLASSES, (len(data),), device=device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)

    def take_step() -> None:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(data), labels).backward()
        optimiser.step()

    return take_step, torch.cuda.synchronize if device == "cuda" else lambda: None


def convolutional(torch: Any) -> tuple[Any, Any]:
    """Return a network with kernels that fill a GPU, and a batch of 64 images of 3 x 64 x 64."""
    nn = torch.nn
    blocks = []
    for inside, outside in ((3, 64), (64, 128), (128, 256)):
        blocks += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(256 * 8 * 8, CLASSES)), torch.randn(BATCH, 3, 64, 64)


def narrow(torch: Any) -> tuple[Any, Any]:
    """Return a network of a hundred small layers, some thousand launches a step, and a batch of 64 vectors."""
    nn = torch.nn
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)), torch.randn(BATCH, WIDTH)


if __name__ == "__main__":
    sys.exit(main())

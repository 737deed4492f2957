"""Sixteen families of jobs whose memory pgpu chooses: calls, durations, and what each job holds at every moment.

Families, arrivals and seeds were fixed before any rule was tuned. Fifteen families are drawn; the runs of `timm` are
measured ones of real vision models (GPUMemNet, see `benchmarks.demand`), drawn only where its table is given. How memory
rises in time is an assumption: half of the jobs take the last 3 to 12 % late, fragmentation rises from 80 to 100 % in four
steps, leaks grow in eight. Durations are log-normal with a median of 600 s and σ 0.8. Every job begins with 350 MiB and takes its
first tensors after 5 to 20 s.
"""

import random
from collections.abc import Callable, Mapping, Sequence

from pgpu.structs import Struct
from pgpu.units import GIB, MIB

CARD_BYTES = 23_541 * MIB
"""22.99 GiB: an RTX 3090 without headroom. No job of any family holds more than 90 % of it."""

MOST_BYTES = CARD_BYTES * 9 // 10
TUNING_SEEDS = (1, 2)
SEEDS = (907, 1663, 2741)
"""Of the results; rules and constants were chosen on the others."""

MIXED_SEEDS = (*SEEDS, 3259, 4051, 5077, 6173, 7297, 8431)
"""Of mixed scenes, which are one replay each: means of three vary by more than the bars allow."""

MEDIAN_SECONDS, SIGMA = 600.0, 0.8
START_BYTES = 350 * MIB

# One moment: seconds of the job's own run, and what it holds from then on.
Step = tuple[float, int]
Draw = Callable[[int, random.Random], "Work"]
"""The number of a job in its family, and dice → the job."""

Peaks = Mapping[str, Mapping[float, int]]
"""Of real models: MiB by batch."""


class Work(Struct, frozen=True):
    """One job as it really is; nothing of it is known to pgpu but its signature."""

    signature: str
    seconds: float
    """Of work, waits for memory not counted."""

    steps: tuple[Step, ...]
    """In the order of their seconds; bytes never fall."""

    @property
    def peak_bytes(self) -> int:
        return self.steps[-1][1]


class Arrival(Struct, frozen=True):
    """A job and the second in which it is submitted."""

    seconds: float
    work: Work


def alone(draw: Draw, seed: int, count: int = 60) -> list[Arrival]:
    """Return a stream in which each job comes two hours after the one before: nearly all of them find an empty GPU."""
    dice = random.Random(seed)
    return [Arrival(7200.0 * number, draw(number, dice)) for number in range(count)]


def burst(draw: Draw, seed: int, count: int = 60) -> list[Arrival]:
    """Return jobs of one family that all come at once."""
    dice = random.Random(seed)
    return [Arrival(0.0, draw(number, dice)) for number in range(count)]


def mixed(draws: Sequence[Draw], seed: int, each: int = 20, within_seconds: float = 5400.0) -> list[Arrival]:
    """Return so many jobs of every family, at random within a time in which eight GPUs cannot run them all."""
    dice = random.Random(seed)
    works = [[draw(number, dice) for number in range(each)] for draw in draws]
    times = [[dice.uniform(0, within_seconds) for _ in range(each)] for _ in draws]
    pairs = zip(works, times, strict=True)
    found = [Arrival(at, work) for own, when in pairs for at, work in zip(sorted(when), own, strict=True)]
    return sorted(found, key=lambda arrival: arrival.seconds)


def families(measured: Peaks | None = None) -> dict[str, Draw]:
    """Return the families by name; without measured peaks there are fifteen."""
    found: dict[str, Draw] = {
        "linear": _linear,
        "step": _step,
        "square": _square,
        "fragments 8 %": lambda _, dice: _fragments(dice, "frag8", 6.0, 0.08),
        "fragments 15 %": lambda _, dice: _fragments(dice, "frag15", 5.0, 0.15),
        "drift": _drift,
        "bimodal 15 %": lambda _, dice: _bimodal(dice, "bimodal15", 0.15),
        "bimodal 2 %": lambda _, dice: _bimodal(dice, "bimodal2", 0.02),
        "pareto": _pareto,
        "leak": _leak,
        "seeds": _seeds,
        "names": _names,
        "sweep": _sweep,
        "batch x length": _batch_by_length,
        "late": _late,
    }
    if measured is not None:
        found["timm"] = _timm(measured)
    return found


def _work(
    dice: random.Random, call: str, peak_gib: float, *, noise: float = 0.01, seconds: float | None = None
) -> Work:
    peak = _bytes(peak_gib * (1 + dice.uniform(-noise, noise)))
    seconds = _seconds(dice) if seconds is None else seconds
    first = dice.uniform(5.0, 20.0)
    share, at = dice.uniform(0.03, 0.12), dice.uniform(0.3, 0.9)
    if dice.random() < 0.5:
        return _of_levels(call, seconds, first, [(0.0, 1 - share), (at, 1.0)], peak)
    return _of_levels(call, seconds, first, [(0.0, 1.0)], peak)


def _of_levels(call: str, seconds: float, first: float, levels: Sequence[tuple[float, float]], peak: int) -> Work:
    """Return a job that holds a share of its peak from each share of its run on; the run counts from its first tensors."""
    steps = [(first + at * seconds, max(START_BYTES, int(share * peak))) for at, share in levels]
    return Work(call, first + seconds, ((0.0, START_BYTES), *steps))


def _bytes(gib: float) -> int:
    return min(MOST_BYTES, max(START_BYTES, int(gib * GIB)))


def _seconds(dice: random.Random) -> float:
    return MEDIAN_SECONDS * dice.lognormvariate(0, SIGMA)


def _call(program: str, words: str) -> str:
    return f"{program}.py@{sum(map(ord, program)):08x} {words}"


def _linear(_: int, dice: random.Random) -> Work:
    batch = dice.choice((8, 16, 24, 32, 48, 64, 96, 128))
    return _work(dice, _call("linear", f"--batch-size {batch} --epochs {dice.randint(1, 20)}"), 1.6 + 0.07 * batch)


def _step(_: int, dice: random.Random) -> Work:
    # Past a batch of 40 a library takes another algorithm, with a workspace of 3 GiB.
    batch = dice.choice((8, 16, 24, 32, 48, 64))
    return _work(dice, _call("step", f"--batch-size {batch}"), 2.0 + 0.03 * batch + (3.0 if batch > 40 else 0.0))


def _square(_: int, dice: random.Random) -> Work:
    length = dice.choice((256, 512, 768, 1024, 1536, 2048))
    return _work(dice, _call("square", f"--seq-len {length}"), 1.5 + 3.2 * (length / 1024) ** 2)


def _fragments(dice: random.Random, program: str, gib: float, spread: float) -> Work:
    peak = _bytes(gib * (1 + dice.uniform(0, spread) * 2))
    levels = [(0.0, 0.80), (0.2, 0.87), (0.4, 0.94), (0.6, 1.0)]
    return _of_levels(_call(program, "--epochs 10"), _seconds(dice), dice.uniform(5, 20), levels, peak)


def _drift(number: int, dice: random.Random) -> Work:
    return _work(dice, _call("drift", "--data new"), 7.0 * 1.005**number, noise=0.002)


def _bimodal(dice: random.Random, program: str, share: float) -> Work:
    # The larger mode comes at the start in half of the runs that have it, else late, such as with a long sample.
    call, seconds, first = _call(program, "--config a"), _seconds(dice), dice.uniform(5, 20)
    if dice.random() >= share:
        return _of_levels(call, seconds, first, [(0.0, 1.0)], _bytes(4.0 * (1 + dice.uniform(-0.01, 0.01))))
    levels = [(0.0, 1.0)] if dice.random() < 0.5 else [(0.0, 4 / 7), (dice.uniform(0.3, 0.9), 1.0)]
    return _of_levels(call, seconds, first, levels, _bytes(7.0))


def _pareto(_: int, dice: random.Random) -> Work:
    return _work(dice, _call("pareto", "--graph x"), 2.0 * dice.paretovariate(4.0))


def _leak(_: int, dice: random.Random) -> Work:
    # Memory and time grow with the epochs.
    epochs = dice.choice((5, 10, 20, 40))
    peak = _bytes(2.0 + 0.12 * epochs)
    levels = [(place / 8, (2.0 + 0.12 * epochs * place / 8) / (2.0 + 0.12 * epochs)) for place in range(8)]
    seconds = 40.0 * epochs * dice.uniform(0.9, 1.1)
    return _of_levels(_call("leak", f"--epochs {epochs}"), seconds, dice.uniform(5, 20), [*levels, (0.95, 1.0)], peak)


def _seeds(number: int, dice: random.Random) -> Work:
    return _work(dice, _call("seeds", f"--seed {number} --lr {dice.choice((0.1, 0.01, 0.001))}"), 3.3)


def _names(number: int, dice: random.Random) -> Work:
    # A new name every third job, each of its own size.
    name = dice.randrange(number // 3 + 1)
    return _work(dice, _call("names", f"--model net{name}b --pretrained"), 1.0 + (name * 7 % 11) * 0.9)


def _sweep(number: int, dice: random.Random) -> Work:
    hidden, batch, layers = dice.choice((256, 512, 768, 1024)), dice.choice((16, 32, 64)), dice.choice((2, 4, 8))
    rate = round(dice.uniform(0.0001, 0.01), 4)
    words = f"--hidden {hidden} --batch {batch} --layers {layers} --lr {rate} --seed {number}"
    gib = 1.1 + 4.0 * (hidden / 1024) * (batch / 64) + 2.5 * (hidden / 1024) ** 2 + 0.15 * layers
    return _work(dice, _call("sweep", words), gib)


def _batch_by_length(_: int, dice: random.Random) -> Work:
    batch, length = dice.choice((4, 8, 16, 32)), dice.choice((128, 256, 512, 1024))
    gib = 1.8 + 10.0 * (batch / 32) * (length / 1024)
    return _work(dice, _call("lengths", f"--batch {batch} --seq {length}"), gib)


def _late(_: int, dice: random.Random) -> Work:
    # The first evaluation, after the first epoch, takes the rest.
    batch = dice.choice((16, 32, 64))
    peak = _bytes((2.0 + 0.08 * batch) * (1 + dice.uniform(-0.01, 0.01)))
    levels = [(0.0, 0.57), (dice.uniform(0.1, 0.34), 1.0)]
    return _of_levels(_call("late", f"--batch {batch}"), _seconds(dice), dice.uniform(5, 20), levels, peak)


def _timm(measured: Peaks) -> Draw:
    fitting = {
        model: {batch: mib for batch, mib in peaks.items() if mib * MIB <= MOST_BYTES}
        for model, peaks in sorted(measured.items())
    }
    models = random.Random(SEEDS[0]).sample([model for model, peaks in fitting.items() if len(peaks) > 2], 6)

    def draw(_: int, dice: random.Random) -> Work:
        model = dice.choice(models)
        batch = dice.choice(sorted(fitting[model]))
        call = _call("timm", f"--model {model} --batch-size {batch:.0f}")
        return _work(dice, call, fitting[model][batch] / 1024)

    return draw

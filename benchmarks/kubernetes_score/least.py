"""The least number of GPUs that claims fit on: what no packing can be below, and what a packing reaches."""

from collections.abc import Sequence


def least(sizes_gib: Sequence[int], gpu_gib: int) -> tuple[int, int]:
    """Return a bound from below, and what the largest first on the first GPU with room takes; equal: that is the least."""
    bound = max(-(-sum(sizes_gib) // gpu_gib), sum(2 * size > gpu_gib for size in sizes_gib))
    return bound, _first_fit_decreasing(sizes_gib, gpu_gib)


def _first_fit_decreasing(sizes_gib: Sequence[int], gpu_gib: int) -> int:
    free: list[int] = []
    for size in sorted(sizes_gib, reverse=True):
        place = next((index for index, left in enumerate(free) if left >= size), None)
        if place is None:
            free.append(gpu_gib - size)
        else:
            free[place] -= size
    return len(free)

"""Writes words one by one, each sent as soon as it is there: a generator is a stream.

Ask with `Accept: text/event-stream` for server-sent events, or `application/x-ndjson` for a line of JSON each.

How to call it: ../README.md
"""

import random
from collections.abc import Iterator

import pgpu

TEXT = """a function that stays warm answers at once and a function that sleeps answers late
a slice of a gpu is enough for a function and a gpu is enough for many a slice"""


class Writer:
    """A chain of words: each is followed by one that followed it in the text."""

    def __init__(self) -> None:
        words = TEXT.split()
        self.followers: dict[str, list[str]] = {}
        for word, follower in zip(words, words[1:] + words[:1], strict=True):
            self.followers.setdefault(word, []).append(follower)

    def __call__(self, words: int = 20, seed: int = 0, *, ctx: pgpu.Context) -> Iterator[str]:
        """Write so many words; stop earlier if the client disconnects."""
        lot = random.Random(seed)
        word = "a"
        for _ in range(words):
            if ctx.is_cancelled:
                return
            yield word
            word = lot.choice(self.followers[word])

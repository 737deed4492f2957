"""Facts about an image, read from its files without running it: C library, preloads, library paths, users."""

from pgpu.runtimes.docker.image.facts import FactsCache, ImageFacts
from pgpu.runtimes.docker.image.look import image_facts

__all__ = ["FactsCache", "ImageFacts", "image_facts"]

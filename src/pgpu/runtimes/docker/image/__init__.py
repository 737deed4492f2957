"""What an image's files say, without running anything of it: its C library, its preloads, where CUDA is looked for."""

from pgpu.runtimes.docker.image.facts import FactsCache, ImageFacts
from pgpu.runtimes.docker.image.look import image_facts

__all__ = ["FactsCache", "ImageFacts", "image_facts"]

"""Facts about an image, read from its files without running it: C library, preloads, library paths, users."""

"""The record of past runs: memory peaks, durations and profiles, and what follows from them for the next run."""

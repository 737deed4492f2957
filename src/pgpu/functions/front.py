"""The former name of `pgpu.functions.replica`: `python -m pgpu.functions.front` starts a replica's process."""

import runpy

if __name__ == "__main__":
    # Job specs in ledgers, scripts in them for containers, and manifests in clusters run this name.
    runpy.run_module("pgpu.functions.replica", run_name="__main__", alter_sys=True)

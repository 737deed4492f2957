"""How a function comes to a server and becomes a job there: bundle, layer of packages, and the job of one replica.

A bundle is the packed source tree, and its SHA-256 is its address. It refuses to import the user's code, and to trust a
bundle that it did not pack itself.
"""

from pgpu.functions.deploy.bundle import PackedBundle, pack_tree
from pgpu.functions.deploy.bundle_files import IGNORE_FILE
from pgpu.functions.deploy.bundle_store import BundleStore
from pgpu.functions.deploy.deployer import Deployer

__all__ = ["IGNORE_FILE", "BundleStore", "Deployer", "PackedBundle", "pack_tree"]

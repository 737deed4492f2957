"""Deployment of functions: bundles of source, layers of packages, and the jobs that build and serve them.

A bundle is a packed source tree, addressed by its SHA-256. The user's code is never imported here, and a bundle that another
process packed is not trusted.
"""

from pgpu.functions.deploy.bundle_store import BundleStore
from pgpu.functions.deploy.deployer import Deployer
from pgpu.functions.deploy.source_bundle import IGNORE_FILE, PackedBundle, pack_tree

__all__ = ["IGNORE_FILE", "BundleStore", "Deployer", "PackedBundle", "pack_tree"]

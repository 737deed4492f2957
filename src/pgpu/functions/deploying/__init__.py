"""How a function comes to a server and becomes a job there: bundle, layer of packages, and the job of one replica.

A bundle is the packed source tree, and its SHA-256 is its address. It refuses to import the user's code, and to trust a
bundle that it did not pack itself.
"""

from pgpu.functions.deploying.choosing import IGNORE_FILE
from pgpu.functions.deploying.deployer import Deployer
from pgpu.functions.deploying.packing import Packed, pack_tree
from pgpu.functions.deploying.store import Store

__all__ = ["IGNORE_FILE", "Deployer", "Packed", "Store", "pack_tree"]

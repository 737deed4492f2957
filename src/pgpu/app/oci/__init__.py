"""`docker run --runtime=pgpu`: what happens between a container engine and runc.

`create` stands in the way of every such container and has milliseconds, so it and what it imports (`words`, `asking`,
`images`, `rootfs`, `layout`, `bundle`, `prepared`) use a few modules of the standard library and no other room; a test
watches over that. `preparing` and `attending` are processes of their own with all of pgpu. It refuses to choose a GPU.
"""

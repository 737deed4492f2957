"""`docker run --runtime=pgpu`: what happens between a container engine and runc.

`create` runs before every such container and has milliseconds. It and what it imports (`runc_call`, `gpu_request`,
`slice_layout`, `bundle`, `machine_facts`) use only a few modules of the standard library and no other room of
pgpu; a test checks that. `preparation` and `nursery` with `attendant` are other processes, with all of pgpu.
"""

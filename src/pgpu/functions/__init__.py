"""Warm callable objects: what a function is, the process that runs it, and the one that answers for it.

A function is constructed once and called for each request (P5). The HTTP loop and the user's code live in different
processes, so a call that burns the CPU never stops a health check, and a worker that dies is replaced.

Subrooms, lowest first; each imports only those before it (checked by import-linter):

    api         the interface of a function's author: decorator, declaration, project file; imports no other package
    scaling     how many replicas a function has, as a pure policy
    ipc         messages between gateway, replica and worker
    handler     loads, constructs and binds the author's callable
    protocols   HTTP bodies to arguments, results to HTTP bodies; pure
    requests    queues with deadlines, and their metrics
    worker      the process that owns CUDA and the handler
    http        connections, bodies and responses of replica and gateway
    replica     the HTTP process of a replica, which supervises its worker
    deploy      bundles of source, and the jobs that serve them
    dev         one replica on this machine that follows edits of its code
    router      requests to replicas, in the gateway's process
    control     replicas as jobs of the server, in the gateway's process
    gateway     the process in which a server's functions are called
    front       the former name of `replica`, for stored job specs

No subroom chooses a GPU or grants memory: a replica is a job, and its slice comes from the engine.
"""

"""The engine: admits jobs, supervises them, watches leases and reclaims them. Any process of pgpu may run it.

There is no daemon; the ledger is the only shared state. `pgpu.scheduling` decides, and enforcers and runtimes know CUDA and
containers. `app` builds it:

    ledger = Ledger(state_directory / "ledger.db")
    engine = Engine(
        EngineSettings(...),
        ledger,
        gpus,                  # GpuSource of exactly `settings.gpu_model`
        enforcer,
        {"process": ..., "docker": ...},
        agent_command,        # argv of the agent of a queue
    )
    supervise(engine, job_id)  # pgpu.engine.supervisor; an agent takes the steps of `supervision`

A job is supervised with the settings in the environment of the process that submitted the job, in the directory `/`. The model of its GPUs is
in the ledger: `ledger.job(job_id).gpu_model`.
"""

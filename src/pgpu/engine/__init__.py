"""The loop: admit, start, watch, reclaim. No daemon: any pgpu process runs it on the ledger.

It decides nothing itself (`scheduling` does) and knows neither CUDA nor Docker. How `app` joins it:

    ledger = Ledger(state_directory / "ledger.db")
    engine = Engine(
        EngineSettings(...),
        ledger,
        gpus,                  # GpuSource of exactly `settings.gpu_model`
        enforcer,
        {"process": ..., "docker": ...},
        supervisor_command,    # argv that becomes a supervisor; the job's id is appended as its last word
    )
    client = EmbeddedClient(engine)          # pgpu.client.embedded_client
    supervise(engine, job_id)                # pgpu.engine.supervisor; what `supervisor_command` ends up calling

A supervisor is started with the environment of the process that submitted the job, and with `/` as its directory. It
finds the model of its GPUs in the ledger: `ledger.job(job_id).gpu_model`.
"""

"""The loop: admit, start, watch, reclaim. No daemon: any pgpu process runs it on the ledger.

It decides nothing itself (`scheduling` does) and knows neither CUDA nor Docker.
"""

"""The papers' experiments, reproduced: each prints the paper's table beside ours and writes CSV and plots.

It refuses to script an outcome: what fails here fails because the device is really full.
"""

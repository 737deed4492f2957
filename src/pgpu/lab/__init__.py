"""The experiments of the papers behind pgpu: each prints the paper's table beside ours and writes CSV and plots.

No outcome is scripted: a job fails here because the device is really full. Needs the extra `lab`; loaded only by its verb.
"""

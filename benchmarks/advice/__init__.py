"""How good advice is: predictions from profiles of each job alone, against what the same jobs do together.

What they do together is measured on the simulated driver with processes of their own, in turns and under its MPS.
"""

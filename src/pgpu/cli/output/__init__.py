"""How results and complaints look: tables for people, documents for programs, and the streams that they go to.

It refuses to ask anybody for anything: it shows what it is given.
"""

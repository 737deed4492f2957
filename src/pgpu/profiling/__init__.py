"""A job under measure: what it did on the GPU, and the profile that is made of it.

It refuses to choose a GPU or to give advice.
"""

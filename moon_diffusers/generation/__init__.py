"""The paired run: one pipeline, the same initial latents, without and with the kernel.

This room knows pipelines and the public names of the package; what the two videos are worth is `quality`'s business.
"""

"""Comparing videos: frames, metrics, noise floors, gates and reports.

This room knows videos and latents, not kernels: nothing here imports the operator, and every function takes plain
arrays. Frames are `(frames, height, width, 3)` float32 in 0..1; latents are torch tensors of any shape.
"""

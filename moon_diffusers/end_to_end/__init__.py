"""Whole transformer steps and whole pipelines of real diffusers classes, timed with and without the kernel.

Rooms: `wan` (the models and their inputs), `rounds` (in which order, how long), `step` (one transformer step), `video` (a
whole pipeline run), `report` (JSON and Markdown). It knows the product by its public names alone.
"""

"""Side-by-side timing of attention kernels on a GPU.

Rooms: `grid` (what is measured), `peers` (who is measured), `schedule` (in which order and for how long), `telemetry`
(clock and power meanwhile), `check` (is the output right before it is timed), `run` (all of it), `report` (JSON, table,
plot).
"""

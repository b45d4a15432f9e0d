"""Recording rounds, reading them, and replaying them.

A recording holds what went into the scheduler and what came out, as the bytes that crossed (`record.py`). `replay.py`
feeds the inputs to a fresh scheduler and compares plans byte for byte; `render.py` says a round in one line. May import
`control_plane.scheduler` and below.
"""

"""Executes what the control plane decided: one forward thread, streams, the arena of blocks, and the models.

The only home of torch and cupy. May import `control_plane.messages` and `control_plane.errors`, nothing else of the
control plane. Start reading at `builder.py` (how the parts are put together), then `executor.py` (one plan, field by
field), `forward_thread.py` and `handle.py`.
"""

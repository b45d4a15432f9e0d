"""Queues of device work that run in order, beside each other: what they promise is in `base.py`.

`host_streams.py` gives each stream a worker thread, `cupy_streams.py` a CUDA stream, `inline_streams.py` runs the work
at once. May import `control_plane.messages`, and cupy and torch in `cupy_streams.py` alone.
"""

"""Queues of device work that run in order, beside each other: what they promise is in `base.py`.

`host_streams.py` gives each stream a worker thread, `cupy_streams.py` a CUDA stream, `inline_streams.py` runs the work
at once, `sim_streams.py` as late and in as bad an order as it may. `ordered_streams.py` stands around any of them and
shows the order checker what passes. May import that checker (`data_plane/ordering.py`), `control_plane.messages`, and
cupy and torch in `cupy_streams.py` alone.
"""

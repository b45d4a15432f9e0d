"""Where blocks and block tables are: one arena of bytes, the tables of every slot, host pages for copies.

Start reading at `layout.py` (how groups share the arena), then `arena.py` and `tables.py`; `device_memory.py` is what a
model sees of them. Nothing here knows what a block means. cupy is loaded only for a CUDA device.
"""

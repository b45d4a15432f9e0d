"""What each fence of the device is for: `python -m tools.fences` takes one away at a time and shows who notices.

A fence is whatever orders two steps: a stream that waits for another, the host that waits for a stream, and the order
of the forward stream itself, before and after every kind of step. Start with `watch.py`, which meets fences and takes
them away; `programs.py` are the programs that need them; `table.py` is a row a fence.
"""

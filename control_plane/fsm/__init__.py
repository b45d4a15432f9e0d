"""A request's life: its states, the events that move it, and the arrows between them.

`arrows.py` is the machine. A state is a frozen value, an arrow a function whose annotations are the diagram
(`python -m tools.fsm` draws them), and the pages of a request travel as one bundle (`resources.py`). May import
`control_plane.cache` and below; knows nothing of budgets, batches or time.
"""

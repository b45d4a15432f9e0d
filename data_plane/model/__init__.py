"""The models: what the executor needs of one is in `base.py`; `registry.py` finds one by name.

`stamp.py` is a model without tensors that checks every block it reads; it must load neither torch nor cupy, and
neither may `base.py`. `faulty.py` wraps any model so that chosen rounds fail.
"""

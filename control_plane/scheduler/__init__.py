"""The scheduler: rules of `admission`, `phases`, `retraction` and `recovery`, composed by `roles`.

Start at `scheduler.py` (the three calls), then `roles.py` (a role is a list of phases), then `admission.py`. Token
arithmetic is in `prefill_chunk.py` and `group_demands.py`; the hot columns are in `resident.py`. May import
`control_plane.fsm` and below; sees no clock, no thread, no randomness.
"""

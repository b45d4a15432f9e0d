"""Random programs on our scheduler and on the C++ reference, `tokenspeed-scheduler`, compared round by round.

May import the control plane and the reference. Begin reading at `program.py`; `their_rules.py` has what differs on
purpose, and docs/differences.md the reasons.
"""

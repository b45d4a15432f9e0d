"""Shipped helpers for tests of anything that schedules: a scripted device, stories told in rounds, checkers.

`rounds.py` is the small language of scenario tests; `simulated_device.py` answers plans by script; `checkers.py` checks
what must hold of every plan. May import all of the control plane.
"""

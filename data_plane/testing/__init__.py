"""Shipped helpers for tests and measurements of the device side: `plans.py` writes plans without a scheduler.

May import `control_plane.messages` and the rest of the data plane; nothing there imports this.
"""

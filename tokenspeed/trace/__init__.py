"""What people ask of a recording.

`commands.py` is the command line of it; reading and replaying are the control plane's own (`control_plane.rounds`).
"""

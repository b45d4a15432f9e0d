"""The device's work of a round beside the model: one file for each kind of work that a plan can carry.

Each kind has a host and a CUDA implementation with the same method, chosen once in `builder.py`. What a configuration
does not have (a host tier, a peer) is an "off" twin that refuses a plan asking for it.
"""

"""Paged attention through block tables. Imports torch, and of the control plane the messages alone.

Start with `geometry` (how a block is laid out), then `round_plan` (what one round writes and reads, computed once
for all layers), then `paged` (what one layer does with it) and `kernels` (the arithmetic, with the little that
differs between devices).
"""

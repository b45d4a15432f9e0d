"""Recurrent states through block tables. Imports torch, and of the control plane the messages alone.

A state group keeps snapshots: one block holds what every recurrent layer knows after some number of tokens. Start
with `geometry` (how a snapshot is laid out), then `round_plan` (which snapshots one round reads and writes, computed
once for all layers), then `paged` (what one layer does with it).
"""

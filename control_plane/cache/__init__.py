"""Blocks, who holds them, and which prefix they hold: storage without requests.

`core` owns the LCM pool and the block tables, `prefix` the hash chain and the index, `coordinator` makes all cache
groups one: start reading at `coordinator/coordinator.py`. May import `control_plane.messages`, `control_plane.config`
and nothing above.
"""

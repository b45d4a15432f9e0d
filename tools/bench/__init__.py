"""`python -m tools.bench`: what a round costs beside the C++ scheduler, and what serving costs beside the bare model.

Peers run in the same process or in the same minutes, in alternation, because machines drift. Figures that are
quoted anywhere come from `docs/performance.md`, which only these runs write. Start at `__main__.py`; `rounds.py`
measures the scheduler, `serving.py` the HTTP server.
"""

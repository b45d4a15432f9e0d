"""What an engine can say of itself while it runs: times and counts of requests and rounds.

`watch.py` sees what goes into the scheduler and comes out of it, and is the only reader of the clock; `requests.py`
keeps the times of requests, `rounds.py` the last rounds, `histogram.py` is where numbers are counted.
`tokenspeed/server` shows them. May import `control_plane`.
"""

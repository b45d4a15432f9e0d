"""The simulation: both planes in virtual time, from a seed, in bad weather: `python -m tools.simulate --seed N`.

Start with `program.py`, the words of a run: a setting and a list of steps. `draw_setting.py` and `draw_steps.py` draw a
program from a seed, `world.py` runs one and raises at the first thing that must not be, `shrink.py` makes a failing
program short, `report.py` says it all in words. Everything a run does follows from its program.
"""

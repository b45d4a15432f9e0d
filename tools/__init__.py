"""The workbench: what people who work on this repository run. Not installed for users.

Each tool is thin: it parses its arguments and calls the library. May import everything; nothing imports it.
`python -m tools.check` holds a change to what must hold, `python -m tools.bench` measures rounds and serving,
`python -m tools.simulate` looks for what breaks.
"""

"""The commands of the terminal, one file each; `tokenspeed/cli.py` puts them together.

`options.py` is what they share: the options that become an `EngineConfig`.
"""

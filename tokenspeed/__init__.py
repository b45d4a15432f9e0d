"""An LLM serving core: what a user imports.

Start reading at `engine.py`; `config.py` lists every setting, `sampling.py` what may be asked of a generation,
`server/` is the OpenAI-compatible HTTP front and `cli.py` the command line. May import everything below it:
`data_plane`, `control_plane`. Importing this package loads no torch; starting an engine does, if its model needs it.
"""

from control_plane.errors import ConfigError, RequestRejected
from tokenspeed.config import EngineConfig
from tokenspeed.engine import AsyncEngine
from tokenspeed.errors import EngineBusy, EngineUnavailable, GenerationFailed
from tokenspeed.generation import RequestOutput, Usage
from tokenspeed.offline import Engine
from tokenspeed.sampling import SamplingParams

__all__ = [
    "AsyncEngine",
    "ConfigError",
    "Engine",
    "EngineBusy",
    "EngineConfig",
    "EngineUnavailable",
    "GenerationFailed",
    "RequestOutput",
    "RequestRejected",
    "SamplingParams",
    "Usage",
]

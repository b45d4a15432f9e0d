"""The control plane decides what the engine does next, once per round. It cannot name a device.

`Scheduler` is the core: `submit`, `advance`, `next_plan`. Around it: `loop` (the asyncio shell), `rounds` (record and
replay), `testing` (shipped helpers). Below it: `fsm` (a request's life), `cache` (blocks and prefixes), `messages` (the
language of the boundary). Imports msgspec, numpy and the standard library only.
"""

from control_plane.config import CacheGroupConfig, GroupKind, Role, SchedulerConfig
from control_plane.errors import ConfigError, DeviceFailed, InvalidTransition, RequestRejected, WireError
from control_plane.scheduler.capacity_model import CapacityModel
from control_plane.scheduler.scheduler import Scheduler

__all__ = [
    "CacheGroupConfig",
    "CapacityModel",
    "ConfigError",
    "DeviceFailed",
    "GroupKind",
    "InvalidTransition",
    "RequestRejected",
    "Role",
    "Scheduler",
    "SchedulerConfig",
    "WireError",
]

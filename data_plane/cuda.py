"""cupy is optional and has no type stubs, so it is loaded in one place."""

import importlib
from typing import Any

from control_plane.errors import ConfigError


def load_cupy() -> Any:
    """The cupy module. Raises ConfigError, saying what to install, when it is missing or sees no device."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise ConfigError(["device='cuda' needs cupy: install the extra [cuda], or use device='cpu'"]) from error
    if not cupy.cuda.is_available():
        raise ConfigError(["device='cuda' finds no CUDA device: check the driver, or use device='cpu'"])
    return cupy


def has_cuda() -> bool:
    """Whether this machine has a CUDA device that cupy and torch can both use."""
    try:
        load_cupy()
        torch = importlib.import_module("torch")
    except (ConfigError, ImportError):
        return False
    return bool(torch.cuda.is_available())

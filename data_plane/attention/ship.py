"""Small host arrays to the device in one asynchronous copy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def ship(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Each integer array as an int64 tensor on `device`, of the same shape.

    One pinned copy that nobody waits for: torch keeps the pinned memory until the current stream has read it.
    """
    flat = np.concatenate([array.astype(np.int64, copy=False).reshape(-1) for array in arrays])
    packed = torch.from_numpy(flat)
    if device.type == "cuda":
        packed = packed.pin_memory().to(device, non_blocking=True)
    parts = torch.split(packed, [array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def share(array: Any) -> torch.Tensor:
    """A torch view of a numpy or cupy array; both sides see each other's writes."""
    return torch.utils.dlpack.from_dlpack(array)

"""Integer vectors travel as little-endian int32 bytes and are read back without a copy."""

import sys
from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from control_plane.errors import WireError

INT32 = np.dtype("<i4")
type_bytes = INT32.itemsize
_INT32_CODE = "i"
assert array(_INT32_CODE).itemsize == type_bytes, "a C int has 32 bits wherever this runs"

Int32s = npt.NDArray[np.int32]

_EMPTY: Int32s = np.frombuffer(b"", dtype=INT32)


def pack(values: Iterable[int] | Int32s) -> bytes:
    """The int32 column of `values`. Raises OverflowError when one does not fit."""
    if isinstance(values, np.ndarray):
        return values.astype(INT32, copy=False).tobytes()
    column = array(_INT32_CODE, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def repeat(value: int, count: int) -> bytes:
    """The int32 column that holds `value` so many times."""
    return value.to_bytes(type_bytes, "little", signed=True) * count


def view(column: bytes) -> Int32s:
    """A read-only array over the bytes of a column. Raises WireError when they are not whole numbers."""
    if not column:
        return _EMPTY
    if len(column) % type_bytes:
        raise WireError(f"an int32 column of {len(column)} bytes")
    return np.frombuffer(column, dtype=INT32)


def count(column: bytes) -> int:
    """How many numbers a column holds."""
    return len(column) // type_bytes

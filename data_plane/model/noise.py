"""Uniform numbers that depend on (seed, position) and on nothing else."""

import numpy as np
import numpy.typing as npt

# SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_BITS = 48


def uniforms(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each (seed, position), as arrays of one shape.

    The SplitMix64 generator started at a hash of the seed, its `position`-th output. No state is kept: any draw can
    be made again, in any batch. Numbers have 48 bits, so that 1 is never reached after rounding.
    """
    with np.errstate(over="ignore"):
        mixed = _mix(_mix(seeds + _GAMMA) + (positions + np.uint64(1)) * _GAMMA)
    return (mixed >> np.uint64(64 - _BITS)).astype(np.float64) * 2.0**-_BITS


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * _MULTIPLIERS[0]
    value = (value ^ (value >> np.uint64(27))) * _MULTIPLIERS[1]
    return value ^ (value >> np.uint64(31))

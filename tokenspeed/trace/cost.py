"""What a round costs in virtual time: a model with five coefficients, fitted to recorded rounds or shipped.

A forward costs a constant, something for every token fed, something for every pair of a fed token and a token that it
attends to, something for every decode row and for every token of context that decode rows read; a copy between the
tiers costs by the block. Planning costs a constant. See `docs/traces.md` for what such a model cannot know.
"""

from typing import Final

import numpy as np
from msgspec import Struct

from control_plane.errors import WireError
from control_plane.messages import ExecutionPlan
from control_plane.messages.columns import count, view

FEATURES: Final = ("round", "prefill token", "prefill pair", "decode row", "decode context token", "copied block")


class CostModel(Struct, frozen=True, kw_only=True):
    """Microseconds for each of FEATURES, and `plan_us` between a report and the plan that follows it."""

    name: str
    source: str
    round_us: float
    prefill_token_us: float
    prefill_pair_us: float
    decode_row_us: float
    decode_context_us: float
    copied_block_us: float = 0.0
    plan_us: float = 0.0

    def of(self, plan: ExecutionPlan) -> int:
        """How long the device works on a plan, at least one microsecond."""
        weights = (
            self.round_us,
            self.prefill_token_us,
            self.prefill_pair_us,
            self.decode_row_us,
            self.decode_context_us,
            self.copied_block_us,
        )
        return max(1, round(sum(w * f for w, f in zip(weights, features(plan), strict=True))))


def features(plan: ExecutionPlan) -> tuple[float, ...]:
    """What a plan makes the device do, in the order of FEATURES."""
    copied = sum(count(store.sources) for store in plan.stores)
    copied += sum(count(load.sources) for load in plan.load_backs)
    batch = plan.forward
    if batch is None:
        return 0.0, 0.0, 0.0, 0.0, 0.0, float(copied)
    begins = view(batch.prefix_lengths).astype(np.int64)
    fed = view(batch.input_lengths).astype(np.int64)
    n = batch.num_extends
    pairs = fed[:n] * begins[:n] + fed[:n] * (fed[:n] + 1) // 2
    decodes = batch.row_count - n
    context = int((begins[n:] + fed[n:]).sum())
    return 1.0, float(fed[:n].sum()), float(pairs.sum()), float(decodes), float(context), float(copied)


def roofline(
    *,
    name: str,
    source: str,
    parameters: float,
    kv_bytes_per_token: float,
    hidden_size: int,
    layers: int,
    flops: float,
    bandwidth: float,
    flops_used: float,
    bandwidth_used: float,
) -> CostModel:
    """A model from a device's data sheet: weights are read once a round, every token costs two operations a parameter.

    `flops` are operations a second and `bandwidth` bytes a second at best, of which the used parts are reached. Weights
    have two bytes a parameter. The shorter of two costs is not hidden behind the longer: an upper bound.
    """
    per_second, per_byte = flops * flops_used / 1e6, bandwidth * bandwidth_used / 1e6
    return CostModel(
        name=name,
        source=source,
        round_us=2 * parameters / per_byte,
        prefill_token_us=2 * parameters / per_second,
        prefill_pair_us=4 * layers * hidden_size / per_second,
        decode_row_us=2 * parameters / per_second,
        decode_context_us=kv_bytes_per_token / per_byte,
        copied_block_us=16 * kv_bytes_per_token / (25e9 / 1e6),
        plan_us=200,
    )


# Llama 3.1 8B: 8.03e9 parameters, 32 layers of 4096, 8 heads of 128 for keys and values (model card, config.json).
_LLAMA_8B = {"parameters": 8.03e9, "kv_bytes_per_token": 131_072, "hidden_size": 4096, "layers": 32}

PRESETS: Final = {
    preset.name: preset
    for preset in (
        roofline(
            name="h100-llama-8b",
            source="NVIDIA H100 SXM data sheet: 989 TFLOP/s bf16 dense, 3.35 TB/s; half of the one and 0.7 of the "
            "other assumed; copies at 25 GB/s",
            flops=989e12,
            bandwidth=3.35e12,
            flops_used=0.5,
            bandwidth_used=0.7,
            **_LLAMA_8B,  # type: ignore[arg-type]
        ),
        roofline(
            name="a100-llama-8b",
            source="NVIDIA A100 80 GB SXM data sheet: 312 TFLOP/s bf16 dense, 2.04 TB/s; half of the one and 0.7 of "
            "the other assumed; copies at 25 GB/s",
            flops=312e12,
            bandwidth=2.04e12,
            flops_used=0.5,
            bandwidth_used=0.7,
            **_LLAMA_8B,  # type: ignore[arg-type]
        ),
        CostModel(
            name="unit",
            source="none: every round takes a millisecond, whatever is in it, for comparing schedules by rounds",
            round_us=1000,
            prefill_token_us=0,
            prefill_pair_us=0,
            decode_row_us=0,
            decode_context_us=0,
        ),
    )
}


def preset(name: str) -> CostModel:
    """A shipped model. Raises WireError naming those that there are."""
    if name not in PRESETS:
        raise WireError(f"cost={name!r} is not a shipped model: {', '.join(PRESETS)}")
    return PRESETS[name]

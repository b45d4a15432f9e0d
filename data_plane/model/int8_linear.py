"""Linear layers of a CPU with weights of one byte: a quarter of the memory that a decode step reads.

Each output feature's weights are rounded to 8 bits with a scale of its own, each row's activations to twice 7 bits: the
rounded row, and what rounding left of it, as a row of its own. (FBGEMM adds products of pairs in 16 bits, which 8 bits
on both sides would saturate. On SmolLM2, 7 bits alone change every fourth most likely token, twice 7 every seventeenth,
as many as float32 activations do.) The sums are integers, so a row's product is the same in every batch, to the bit.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import nn

from data_plane.model.cpu_linear import Product

# Rows are divided by their largest magnitude, so that the integers 1..127 stand for -1..1, around 64.
_STEPS = 63
_ZERO = 64


class Int8Product(Product):
    """The product of one group's layers with 8-bit weights."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__(layers)
        weights = torch.cat([layer.weight.detach() for layer in layers])
        scales = weights.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / 127
        with warnings.catch_warnings():
            # Tensors of this kind are deprecated. oneDNN's successor refuses 8-bit products on CPUs without VNNI.
            warnings.filterwarnings("ignore", message=".*quantized tensor creation functions.*deprecated")
            quantized = torch.quantize_per_channel(
                weights, scales.double(), torch.zeros(len(weights), dtype=torch.int64), axis=0, dtype=torch.qint8
            )
        self._packed = torch.ops.quantized.linear_prepack(quantized, None)

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., outputs] of float32 rows [..., inputs]."""
        largest = rows.abs().amax(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        scaled = rows / largest
        coarse = (scaled * _STEPS).round_().div_(_STEPS)
        halves = torch.stack([coarse, scaled.sub_(coarse).mul_(2 * _STEPS)])
        coarse_product, fine_product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            halves, 1 / _STEPS, _ZERO, self._packed
        )
        product: torch.Tensor = coarse_product.add_(fine_product, alpha=0.5 / _STEPS).mul_(largest)
        return product if self.bias is None else product.add_(self.bias)


def has_int8() -> bool:
    """Whether this build of torch can multiply by 8-bit weights."""
    return "fbgemm" in torch.backends.quantized.supported_engines and hasattr(
        torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32"
    )

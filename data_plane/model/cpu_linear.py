"""Faster float32 matrix products on a CPU: every `nn.Linear` multiplies by weights laid out for oneDNN.

torch's own float32 product hands each call a plain matrix, which its BLAS must lay out again every time; with the few
rows of a decode that costs more than the product. Measured at 16 rows, the packed product takes a third of the time.
"""

from collections.abc import Callable

import torch
from torch import nn


def pack_linears(model: nn.Module) -> Callable[[], None]:
    """Give every float32 linear layer of a CPU model packed weights, in place of its own.

    Returns what puts the originals back; dropping it lets them go. Does nothing where this build of torch has no
    oneDNN. The products differ from the plain ones by rounding only.
    """
    layers = [module for module in model.modules() if type(module) is nn.Linear] if has_onednn() else []
    plain = {layer: layer.weight for layer in layers if layer.weight.dtype == torch.float32 and layer.weight.is_cpu}
    for layer in plain:
        # An instance's own `forward` is what nn.Module calls; the layer stays an nn.Linear for whoever looks.
        layer.__dict__["forward"] = _packed_forward(layer)
        layer.weight = nn.Parameter(torch.empty(0, dtype=torch.float32), requires_grad=False)

    def undo() -> None:
        for layer, weight in plain.items():
            del layer.__dict__["forward"]
            layer.weight = weight

    return undo


def has_onednn() -> bool:
    """Whether this build of torch can pack weights for oneDNN."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _packed_forward(layer: nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)
    bias, features = layer.bias, layer.out_features

    def forward(rows: torch.Tensor) -> torch.Tensor:
        if not rows.numel():
            return rows.new_empty((*rows.shape[:-1], features))
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
        return product

    return forward

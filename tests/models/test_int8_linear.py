"""Linear layers with 8-bit weights: near the float32 product, and the same in every batch."""

import pytest
import torch
from torch import nn

from control_plane.errors import ConfigError
from data_plane.model.cpu_linear import pack_linears
from data_plane.model.int8_linear import Int8Product, has_int8
from data_plane.model.registry import load_model
from tests.models.served import Served
from tests.models.shapes import saved

pytestmark = pytest.mark.skipif(not has_int8(), reason="needs a torch with FBGEMM")


def layers_of(inputs: int, outputs: tuple[int, ...], *, bias: bool = False) -> nn.ModuleList:
    """Layers for the same rows."""
    torch.manual_seed(inputs)
    return nn.ModuleList(nn.Linear(inputs, width, bias=bias) for width in outputs).requires_grad_(False)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 3, 64])
def test_the_product_is_near(rows: int, bias: bool) -> None:
    """Within 1 % of its norm, whatever the rows' magnitudes are, that of a row of zeros included."""
    (layer,) = layers_of(96, (80,), bias=bias)
    tokens = torch.randn(1, rows, 96) * torch.logspace(-6, 6, rows)[:, None]
    tokens[:, 1:2] = 0
    expected = layer(tokens)
    pack_linears(layer, make_product=Int8Product)
    product = layer(tokens)
    assert product.shape == expected.shape
    error = (product - expected).norm(dim=-1)
    assert torch.all(error <= 0.01 * expected.norm(dim=-1))


@pytest.mark.parametrize(("inputs", "outputs"), [(48, (32, 16, 16)), (576, (576, 192, 192)), (640, (2048, 2048))])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_product_in_every_batch_to_the_bit(
    inputs: int, outputs: tuple[int, ...], threads: int
) -> None:
    """Tokens never depend on scheduling."""
    layers = layers_of(inputs, outputs)
    pack_linears(layers, [list(layers)], Int8Product)
    rows = torch.randn(1, 97, inputs) * torch.logspace(-3, 3, 97)[:, None]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        alone = [[layer(row) for layer in layers] for row in rows.split(1, dim=1)]
        for first, last in [(0, 2), (0, 97), (1, 34), (5, 13), (30, 46), (64, 97), (90, 93)]:
            for index, layer in enumerate(layers):
                expected = torch.cat([each[index] for each in alone[first:last]], dim=1)
                assert torch.equal(layer(rows[:, first:last]), expected), f"rows {first} to {last}"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("shape", ["llama", "gemma3"])
def test_tokens_are_those_of_a_run_alone(shape: str) -> None:
    """Exactness holds within the quantized model: together, in chunks and with hits, as alone without cache."""
    prompts = [[3 + index, *range(40, 40 + 7 * index), 9] for index in range(5)]

    def tokens(*together: list[int]) -> list[list[int]]:
        loaded = load_model(str(saved(shape)), quantization="int8", block_granularity=4, progress=lambda line: None)
        served = Served(loaded.runner, prefix_granularity=4, max_scheduled_tokens=13)
        try:
            first = served.serve(*together, new_tokens=8)
            assert served.serve(*together, new_tokens=8) == first
            return first
        finally:
            served.close()

    assert tokens(*prompts) == [tokens(prompt)[0] for prompt in prompts]


@pytest.mark.parametrize(
    ("model", "dtype", "said"),
    [("hybrid", "auto", "is not for model='hybrid'"), ("llama", "bfloat16", "is for float32 on a CPU")],
)
def test_what_cannot_be_quantized_is_refused(model: str, dtype: str, said: str) -> None:
    """One error with the field, its value and what to give instead."""
    name = str(saved(model)) if model == "llama" else model
    with pytest.raises(ConfigError, match=said):
        load_model(name, dtype=dtype, quantization="int8", block_granularity=4, progress=lambda line: None)

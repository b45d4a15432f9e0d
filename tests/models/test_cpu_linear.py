"""Packed linear layers: the same product, and a way back for models that read the weights themselves."""

import pytest
import torch
from torch import nn

from data_plane.model.cpu_linear import has_onednn, pack_linears
from tests.models.shapes import generated, saved

pytestmark = pytest.mark.skipif(not has_onednn(), reason="needs a torch with oneDNN")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 3, 64])
def test_the_product_is_the_same_up_to_rounding(rows: int, bias: bool) -> None:
    """Any number of rows, none included, with and without bias, in packed sequences [1, rows, features]."""
    torch.manual_seed(rows)
    layer = nn.Linear(48, 80, bias=bias).requires_grad_(False)
    tokens = torch.randn(1, rows, 48)
    expected = layer(tokens)
    pack_linears(layer)
    assert layer.weight.numel() == 0
    torch.testing.assert_close(layer(tokens), expected)


def test_undoing_brings_back_the_very_weights() -> None:
    """Nothing of the packing is left."""
    layer = nn.Linear(8, 4).requires_grad_(False)
    weight, tokens = layer.weight, torch.randn(2, 8)
    expected = layer(tokens)
    pack_linears(layer)()
    assert layer.weight is weight
    assert torch.equal(layer(tokens), expected)


def test_other_types_are_left_alone() -> None:
    """bfloat16 layers and the layers of subclasses keep their weights."""

    class Doubled(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(8, 4, dtype=torch.bfloat16), Doubled(8, 4))
    pack_linears(model)
    assert [layer.weight.numel() for layer in model] == [32, 32]


def test_a_model_that_reads_its_weights_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found out by a trial forward at load: the model runs on its plain weights and writes the same text."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    from data_plane.model.registry import load_model
    from tests.models.group_driver import GroupDriver

    def forward(self: LlamaMLP, rows: torch.Tensor) -> torch.Tensor:
        gated = self.act_fn(rows @ self.gate_proj.weight.transpose(0, 1)) * self.up_proj(rows)
        return self.down_proj(gated)

    monkeypatch.setattr(LlamaMLP, "forward", forward)
    runner = load_model(str(saved("llama")), block_granularity=4, progress=lambda line: None).runner
    driver = GroupDriver(runner, prefix_granularity=4)
    slot = driver.start([7, 8, 9])
    outputs = driver.finish(new_tokens=5, budget_tokens=8, most_chunk=8)
    assert outputs[slot] == generated(saved("llama"), [7, 8, 9], 5)

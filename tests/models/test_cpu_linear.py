"""Packed linear layers: the same product, and a way back for models that read the weights themselves."""

import copy

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from data_plane.model.cpu_linear import has_onednn, pack_linears
from data_plane.model.hf import HookedDecoder
from data_plane.model.probe import Probe
from data_plane.model.siblings import watching
from tests.models.shapes import SHAPES, generated, saved

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


@pytest.mark.parametrize(("inputs", "outputs"), [(48, (32, 16, 16)), (576, (576, 192, 192)), (640, (2048, 2048))])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_product_in_every_batch_to_the_bit(
    inputs: int, outputs: tuple[int, ...], threads: int
) -> None:
    """Tokens never depend on scheduling: alone, among any number of rows, and packed with other layers or not."""
    torch.manual_seed(inputs)
    layers = nn.ModuleList(nn.Linear(inputs, width, bias=False) for width in outputs).requires_grad_(False)
    apart = copy.deepcopy(layers)
    pack_linears(layers, [list(layers)])
    pack_linears(apart)
    rows = torch.randn(1, 97, inputs)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        alone = [torch.cat([layer(rows[:, i : i + 1]) for i in range(97)], dim=1) for layer in apart]
        for count in (1, 2, 3, 5, 8, 13, 16, 31, 32, 33, 64, 97):
            batch = rows[:, :count]
            for layer, expected in zip(layers, alone, strict=True):
                assert torch.equal(layer(batch), expected[:, :count]), f"{count} rows"
    finally:
        torch.set_num_threads(before)


def test_layers_together_follow_whatever_rows_they_are_given() -> None:
    """In order, out of order, alone, and with the same tensor changed since the last time."""
    layers = nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 6)]).requires_grad_(False)
    plain = copy.deepcopy(layers)
    pack_linears(layers, [list(layers)])
    rows, others = torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    for index, given in [(0, rows), (1, rows), (1, others), (0, others), (0, rows), (1, others), (1, rows)]:
        torch.testing.assert_close(layers[index](given), plain[index](given))
    layers[0](rows), layers[1](rows)
    rows.add_(1.0)
    for layer, reference in zip(layers, plain, strict=True):
        torch.testing.assert_close(layer(rows), reference(rows))


def test_what_cannot_be_packed_together_is_packed_alone() -> None:
    """Layers of which only one has a bias, or one is of another type."""
    layers = nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 4, bias=False), nn.Linear(8, 4).to(torch.float64)])
    plain = copy.deepcopy(layers)
    undo = pack_linears(layers, [[layers[0], layers[1]], [layers[1], layers[2]]])
    rows = torch.randn(2, 8)
    for layer, reference in zip(list(layers)[:2], plain, strict=False):
        torch.testing.assert_close(layer(rows), reference(rows))
    assert [layer.weight.numel() for layer in layers] == [0, 0, 32]
    undo()
    assert [layer.weight.numel() for layer in layers] == [32, 32, 32]


def test_siblings_are_seen_not_guessed() -> None:
    """The same tensor, unchanged, one call after the other: anything else stands alone."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d, self.twice = (nn.Linear(8, 8) for _ in range(5))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            mixed = self.a(rows) + self.b(rows)
            rows.add_(1.0)
            return self.c(rows) + self.d(mixed) + self.twice(mixed) + self.twice(mixed)

    block = Block().requires_grad_(False)
    with watching(block) as siblings:
        block(torch.randn(3, 8))
    assert siblings.groups() == [(block.a, block.b)]
    assert not block.a._forward_pre_hooks


@pytest.mark.parametrize(("shape", "sizes"), [("llama", [3, 2]), ("gemma3", [3, 2]), ("gpt2", [])])
def test_the_projections_of_a_decoder_are_siblings(shape: str, sizes: list[int]) -> None:
    """Query, key and value; gate and up. GPT-2 has one projection for the three, and no linear layers."""

    model = AutoModelForCausalLM.from_config(SHAPES[shape]).eval()
    decoder = HookedDecoder(model)
    ids = torch.arange(4)
    with watching(model) as siblings:
        decoder.logits(ids, ids, ids[:0], Probe({}))
    assert [len(group) for group in siblings.groups()] == sizes * SHAPES[shape].num_hidden_layers


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

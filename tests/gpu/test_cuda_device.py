"""The device end to end on CUDA: encoded plans in, tokens out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from control_plane.messages import SlotBinding
from control_plane.messages.columns import Int32s
from data_plane.batch.rows import Rows
from data_plane.builder import build_device
from data_plane.memory.pinned import host_array
from data_plane.model.base import DeviceMemory, GroupLayout, ModelFacts
from data_plane.options import DeviceOptions
from data_plane.testing.drive import Driver

VOCABULARY = 997


class SumRunner:
    """Writes each fed token into its block; the next one is the weighted sum of all, read through the tables.

    Whole numbers, so that the result is exact on any device: torch kernels on the round's stream.
    """

    facts = ModelFacts("sum", VOCABULARY, 256, (), (GroupLayout("full", "full", 4, 32, packing=2),), "int64", 0)

    def attach(self, memory: DeviceMemory, *, slots: int) -> None:
        import torch

        self._torch = torch
        self._cells = torch.from_dlpack(memory.blocks(0)).view(torch.int64)
        self._table = torch.from_dlpack(memory.table(0))
        self._last = torch.zeros(slots, dtype=torch.int64, device="cuda")

    def bind(self, binding: SlotBinding) -> None:
        pass

    def run(self, rows: Rows) -> Callable[[], Int32s]:
        torch = self._torch
        fed = 0
        sampled = host_array((rows.count,), np.int64, device="cuda")
        for index, slot in enumerate(rows.slots.tolist()):
            begin, end = int(rows.prefix_lengths[index]), int(rows.ends[index])
            if index < rows.num_extends:
                ids = torch.from_numpy(rows.input_ids[fed : fed + end - begin].astype(np.int64)).cuda()
                fed += end - begin
            else:
                ids = self._last[slot : slot + 1]
            positions = torch.arange(end, device="cuda")
            blocks = self._table[slot].long()[positions // 4]
            self._cells[blocks[begin:], positions[begin:] % 4] = ids
            seen = self._cells[blocks, positions % 4]
            token = (seen * (positions + 1)).sum() % VOCABULARY
            if rows.samples[index]:
                self._last[slot] = token
            torch.from_numpy(sampled)[index].copy_(token, non_blocking=True)
        return lambda: sampled[rows.samples].astype(np.int32)


def expected(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(sum(token * (position + 1) for position, token in enumerate(tokens)) % VOCABULARY)
    return tokens[len(prompt) :]


def test_rounds_are_right_when_blocks_and_slots_are_reused() -> None:
    """Three batches of four requests through a pool that only just holds one: zeroing, tables and order all count."""
    options = DeviceOptions(model="sum", device="cuda", max_batch_size=4, device_blocks=12, prefix_granularity=4)
    specs, handle = build_device(options, runner=SumRunner())
    driver = Driver(specs, handle)
    for wave in range(3):
        prompts = {wave * 4 + key: [wave * 100 + key * 7 + index for index in range(5 + key)] for key in (1, 2, 3, 4)}
        found = driver.generate(prompts, 12)
        assert found == {key: expected(prompt, 12) for key, prompt in prompts.items()}
    handle.close()
    assert handle.failure is None


def test_a_transformers_model_says_on_cuda_what_generate_says(tmp_path: Path) -> None:
    """A small random Llama, greedy, float32, four prompts in one batch, beside `generate()` on the CPU one by one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    # Wide weights keep the best token well ahead of the second, so rounding does not decide.
    shape = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        max_position_embeddings=256,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(shape).eval()
    model.save_pretrained(tmp_path)
    chance = np.random.default_rng(1)
    prompts = {key: chance.integers(1, 256, size=9 + 5 * key).tolist() for key in (1, 2, 3, 4)}
    options = DeviceOptions(
        model=str(tmp_path), device="cuda", dtype="float32", max_batch_size=4, max_context_tokens=128
    )
    specs, handle = build_device(options)
    found = Driver(specs, handle).generate(prompts, 16)
    handle.close()
    for key, prompt in prompts.items():
        ids: Any = torch.tensor([prompt])
        alone = model.generate(ids, max_new_tokens=16, do_sample=False, pad_token_id=0)[0, len(prompt) :]
        assert found[key] == alone.tolist()

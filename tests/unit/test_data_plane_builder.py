"""Options in, facts out: sizes that follow from one another, and every problem in one answer."""

import pytest

from control_plane.errors import ConfigError
from data_plane.builder import build_device
from data_plane.cuda import has_cuda
from data_plane.model.stamp import StampOptions, StampRunner
from data_plane.options import DeviceOptions


def test_the_facts_of_a_stamp_device() -> None:
    """16 tokens of 16 bytes a block; the pool as asked for; the context cut to what was asked for."""
    lines: list[str] = []
    options = DeviceOptions(model="stamp", device_blocks=10, max_context_tokens=100, max_batch_size=3)
    specs, handle = build_device(options, progress=lines.append)
    handle.close()
    assert (specs.model, specs.device, specs.tokenizer_path) == ("stamp", "cpu", None)
    assert (specs.device_blocks, specs.parent_bytes, specs.prefix_granularity) == (10, 256, 16)
    assert (specs.max_context_tokens, specs.max_batch_size, specs.vocab_size) == (100, 3, 256)
    assert specs.stop_token_ids == (0,)
    assert [(group.id, group.packing) for group in specs.groups] == [("full", 1)]
    assert handle.stats().arena_bytes == 11 * 256
    assert lines[0].startswith("group full: full")
    assert lines[1].startswith("arena: 10 parents of 256 bytes")


def test_memory_is_divided_into_parents_and_the_null_one() -> None:
    """10,000 bytes hold 39 parents of 256 bytes: one is null."""
    specs, handle = build_device(DeviceOptions(model="stamp", memory_bytes=10_000))
    handle.close()
    assert specs.device_blocks == 38


def test_without_a_size_the_pool_holds_a_full_house() -> None:
    """Whoever plans says how much that is; the memory that is free bounds it."""
    options = DeviceOptions(model="stamp", max_batch_size=4, max_context_tokens=160)
    specs, handle = build_device(options, full_house=lambda groups, context: 4 * context // groups[0].block_granularity)
    handle.close()
    assert specs.device_blocks == 40


def test_groups_of_different_blocks_share_parents() -> None:
    """Blocks of 256 and 48 bytes, three of the latter asked for in a parent: parents of 2304 bytes, 9 and 48 in one."""
    options = StampOptions(group_kinds=("full", "full"), block_granularities=(None, 3), packings=(1, 3))
    with pytest.raises(ConfigError, match="prefix_granularity=16 must be a multiple of 3"):
        build_device(DeviceOptions(model="stamp", device_blocks=5), runner=StampRunner(options))
    specs, handle = build_device(
        DeviceOptions(model="stamp", device_blocks=5, prefix_granularity=48), runner=StampRunner(options)
    )
    handle.close()
    assert specs.parent_bytes == 2304
    assert [group.packing for group in specs.groups] == [9, 48]


def test_every_problem_is_named_at_once_with_field_value_and_fix() -> None:
    """Seven fields are wrong, seven lines say so; nothing was built."""
    options = DeviceOptions(
        model="",
        device="tpu",
        dtype="int3",
        prefix_granularity=0,
        max_batch_size=-1,
        max_context_tokens=1,
        device_blocks=5,
        memory_bytes=7,
    )
    with pytest.raises(ConfigError) as raised:
        build_device(options)
    assert len(raised.value.problems) == 7
    text = str(raised.value)
    for part in ("model=''", "device='tpu'", "dtype='int3'", "prefix_granularity=0 must be at least 1"):
        assert part in text
    for part in ("max_batch_size=-1", "max_context_tokens=1 must be at least 2", "device_blocks=5 and memory_bytes=7"):
        assert part in text


def test_what_the_model_cannot_do_is_named_with_its_limit() -> None:
    """A context beyond the model's and memory for no parent, in one answer."""
    options = DeviceOptions(model="stamp", max_context_tokens=70, memory_bytes=300)
    with pytest.raises(ConfigError) as raised:
        build_device(options, runner=StampRunner(StampOptions(max_context_tokens=64)))
    assert len(raised.value.problems) == 2
    assert "max_context_tokens=70 must be at most 64" in str(raised.value)
    assert "memory_bytes=300 must be at least 512" in str(raised.value)


def test_a_stamp_model_is_not_for_a_gpu() -> None:
    """Said before anything is loaded."""
    with pytest.raises(ConfigError, match="device='cuda' is not for model='stamp'"):
        build_device(DeviceOptions(model="stamp", device="cuda"))


@pytest.mark.skipif(has_cuda(), reason="there is a CUDA device")
def test_a_missing_gpu_is_a_matter_of_configuration() -> None:
    """Whether cupy or the device is missing, the message says what to do instead, before a model is looked for."""
    with pytest.raises(ConfigError, match="use device='cpu'"):
        build_device(DeviceOptions(model="no such model", device="cuda"))

"""The facts of a device side: what its model says, what was asked for, and the sizes of the pools that follow."""

from collections.abc import Callable

from msgspec import Struct

from control_plane.errors import ConfigError
from data_plane.capacity import free_memory_bytes
from data_plane.memory.layout import ArenaLayout
from data_plane.model.base import GroupLayout, ModelFacts
from data_plane.options import DeviceOptions

FullHouse = Callable[[tuple[GroupLayout, ...], int], int]
"""(groups, tokens of the longest context) -> parents that as many requests as may run could use at once"""


class DeviceSpecs(Struct, frozen=True):
    """Plain facts about the device side, safe to keep. `groups` have their final packing.

    `device_blocks` and `host_blocks` are parents of `parent_bytes` without the null one. `max_context_tokens` is what
    was asked for, or else what the model can do.
    """

    model: str
    device: str
    dtype: str
    vocab_size: int
    max_context_tokens: int
    stop_token_ids: tuple[int, ...]
    weights_bytes: int
    groups: tuple[GroupLayout, ...]
    prefix_granularity: int
    max_batch_size: int
    device_blocks: int
    host_blocks: int
    parent_bytes: int
    tokenizer_path: str | None = None
    has_logits: bool = False


def device_specs(
    options: DeviceOptions,
    device: str,
    facts: ModelFacts,
    layout: ArenaLayout,
    tokenizer_path: str | None,
    full_house: FullHouse | None,
) -> DeviceSpecs:
    """The facts, with the size of the pool decided. Raises ConfigError."""
    problems = []
    context = options.max_context_tokens or facts.max_context_tokens
    if context > facts.max_context_tokens:
        problems.append(
            f"max_context_tokens={context} must be at most {facts.max_context_tokens}, which the model {facts.name} "
            f"can do"
        )
    for group in layout.groups:
        if options.prefix_granularity % group.block_granularity:
            problems.append(
                f"prefix_granularity={options.prefix_granularity} must be a multiple of {group.block_granularity}, "
                f"the block granularity of group {group.id!r}"
            )
    device_blocks = options.device_blocks
    if options.memory_bytes is not None:
        device_blocks = options.memory_bytes // layout.parent_bytes - 1
        if device_blocks < 1:
            problems.append(
                f"memory_bytes={options.memory_bytes} must be at least {2 * layout.parent_bytes}: room for the null "
                f"parent and one more of {layout.parent_bytes} bytes"
            )
    host_blocks = options.host_blocks
    if options.host_memory_bytes is not None:
        host_blocks = options.host_memory_bytes // layout.parent_bytes - 1
        if host_blocks < 1:
            problems.append(
                f"host_memory_bytes={options.host_memory_bytes} must be at least {2 * layout.parent_bytes}: room for "
                f"the null parent and one more of {layout.parent_bytes} bytes"
            )
    if problems:
        raise ConfigError(problems)
    if device_blocks is None:
        device_blocks = max(1, free_memory_bytes(device) // layout.parent_bytes - 1)
        if full_house is not None:
            device_blocks = min(device_blocks, full_house(layout.groups, context))
    return DeviceSpecs(
        model=facts.name,
        device=device,
        dtype=facts.dtype,
        vocab_size=facts.vocab_size,
        max_context_tokens=context,
        stop_token_ids=facts.stop_token_ids,
        weights_bytes=facts.weights_bytes,
        groups=layout.groups,
        prefix_granularity=options.prefix_granularity,
        max_batch_size=options.max_batch_size,
        device_blocks=device_blocks,
        host_blocks=host_blocks,
        parent_bytes=layout.parent_bytes,
        tokenizer_path=tokenizer_path,
        has_logits=facts.has_logits,
    )

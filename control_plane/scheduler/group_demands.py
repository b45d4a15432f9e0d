"""What one step asks of each cache group, reserve included."""

from msgspec import Struct

from control_plane.cache.coordinator.demand import GroupDemand
from control_plane.config import CacheGroupConfig, GroupKind
from control_plane.fsm.tokens import Window


class PrefillReserve(Struct, frozen=True):
    """What an admission holds beyond its chunk, stated once a round.

    `prompt_headroom_tokens` is not zero on the first chunk only: what is left of the prompt, and the output that the
    admission prepays. `sliding_growth_tokens` is the part of that growth which sliding groups cannot fund by recycling.
    Where the decode happens elsewhere, only its first slot is held.
    """

    decode_width: int
    completes_prefill: bool
    decodes_here: bool = True
    prompt_headroom_tokens: int = 0
    sliding_growth_tokens: int = 0


def reserve_prefill_demands(
    groups: tuple[CacheGroupConfig, ...], demands: list[GroupDemand], reserve: PrefillReserve
) -> list[GroupDemand]:
    """Add each group's reserve, by its retention (R3.4). The only place that sets `reserve_tokens`."""
    reserved = []
    for group, demand in zip(groups, demands, strict=True):
        assert demand.reserve_tokens == 0, "a reserve is decided once"
        reserved.append(GroupDemand(demand.end, _reserve_tokens(group, reserve), demand.first))
    return reserved


def state_growth_tokens(group: CacheGroupConfig, decode_width: int) -> int:
    """At least one block beyond the endpoint, so that the first boundary crossing needs no empty parent."""
    return max(group.block_granularity, decode_width)


def prefill_demands(
    groups: tuple[CacheGroupConfig, ...], window: Window, *, checkpoint: int, replay_begin: int
) -> list[GroupDemand]:
    """Blocks for a chunk: dense history, or the sparse suffix that a state or a replayed window needs."""
    demands = []
    for group in groups:
        first = 0
        if group.kind is GroupKind.STATE:
            # Its input snapshot is held already; between that, the checkpoint and the final state are holes.
            first = ((checkpoint or window.end) - 1) // group.block_granularity
        elif group.replayable:
            first = replay_begin // group.block_granularity
        demands.append(GroupDemand(window.end, first=first))
    return demands


def landing_demands(groups: tuple[CacheGroupConfig, ...], window: Window) -> list[GroupDemand]:
    """Blocks for a prompt that a peer writes: what the first decode steps read, and nothing that they do not."""
    demands = []
    for group in groups:
        first = 0
        if not group.is_prefix_closed:
            first = max(0, window.end - group.retention_tokens + 1) // group.block_granularity
        demands.append(GroupDemand(window.end, first=first))
    return demands


def decode_demands(groups: tuple[CacheGroupConfig, ...], *, end: int) -> list[GroupDemand]:
    """Blocks for every row of the next decode step, in every group."""
    return [GroupDemand(end)] * len(groups)


def _reserve_tokens(group: CacheGroupConfig, reserve: PrefillReserve) -> int:
    """Full history: the completing chunk holds the decode slot, so the first decode step is sure of it; a first chunk
    holds the prompt headroom if that is more. Sliding: the decode slot, since the rest recycles, and what growth
    recycling cannot fund. State: a growth block once its shape is final.
    """
    decode_slot_tokens = reserve.decode_width if reserve.completes_prefill else 0
    match group.kind:
        case GroupKind.FULL:
            return max(decode_slot_tokens, reserve.prompt_headroom_tokens)
        case GroupKind.SLIDING:
            growth_tokens = min(reserve.sliding_growth_tokens, group.window - 1)
            return max(decode_slot_tokens, growth_tokens)
        case GroupKind.STATE:
            grows = reserve.completes_prefill and reserve.decodes_here
            return state_growth_tokens(group, reserve.decode_width) if grows else 0

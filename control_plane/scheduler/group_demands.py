"""What one step asks of each cache group, reserve included."""

from msgspec import Struct

from control_plane.cache.coordinator.demand import GroupDemand
from control_plane.config import CacheGroupConfig


class PrefillReserve(Struct, frozen=True):
    """What an admission holds beyond its chunk, stated once a round.

    `prompt_headroom_tokens` is not zero on the first chunk only: what is left of the prompt, and the output that the
    admission prepays.
    """

    decode_width: int
    prompt_headroom_tokens: int
    completes_prefill: bool


def reserve_prefill_demands(
    groups: tuple[CacheGroupConfig, ...], demands: list[GroupDemand], reserve: PrefillReserve
) -> list[GroupDemand]:
    """Add each group's reserve, by its retention (R3.4). The only place that sets `reserve_tokens`.

    Full history: the completing chunk holds the decode slot, so the first decode step is sure of it; an intermediate
    one holds nothing, since it is not about to decode; a first chunk holds the prompt headroom if that is more.
    """
    reserved = []
    for _group, demand in zip(groups, demands, strict=True):
        assert demand.reserve_tokens == 0, "a reserve is decided once"
        decode_slot_tokens = reserve.decode_width if reserve.completes_prefill else 0
        reserve_tokens = max(decode_slot_tokens, reserve.prompt_headroom_tokens)
        reserved.append(GroupDemand(demand.end, reserve_tokens))
    return reserved


def dense_demands(groups: tuple[CacheGroupConfig, ...], *, end: int) -> list[GroupDemand]:
    """Blocks for every token before `end`, in every group."""
    demand = GroupDemand(end)
    return [demand] * len(groups)

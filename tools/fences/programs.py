"""Programs that need every fence: little room, rounds that land late, copies that take long, clients that leave."""

from collections.abc import Mapping

from tools.simulate.program import Group, Latency, Leave, Peer, Program, Run, Setting, Step, Submit

_MIX = (Group(), Group("sliding", packing=2, window=5), Group("state"))
_MIXED = Setting(groups=_MIX, batch=2, pool=22, host_blocks=60, overlap_depth=1, safe_steps=8, context_tokens=64)
_GROWING = Setting(pool=14, batch=6, host_blocks=60, safe_steps=4, context_tokens=40)
_LOADING = Setting(pool=16, host_blocks=60, budget_tokens=10, overlap_depth=1, context_tokens=64)
_PAIR = Setting(
    peer=Peer(budget_tokens=8, overlap_depth=1, pool=24),
    groups=_MIX[:2],
    pool=16,
    overlap_depth=1,
    host_blocks=40,
    safe_steps=8,
    context_tokens=64,
)


def programs() -> Mapping[str, Program]:
    """By name. Each path of the device is taken, and so tight that what a fence orders is ordered by nothing else."""
    crowd: list[Step] = [Submit(shared_tokens=12, own_tokens=4 + index, seed=index % 2) for index in range(6)]
    late: list[Step] = [Latency(forward=3, store=4)]
    leaving: list[Step] = [step for index in range(6) for step in (Run(2), Leave(index))]
    at_once: list[Step] = [Latency(forward=12), Latency(peer=True)]
    slow_stores: list[Step] = [Latency(forward=2, store=12), *(Submit(own_tokens=3 + index) for index in range(6))]
    prefixes: list[Step] = [Submit(base=base, shared_tokens=16, max_new_tokens=1) for base in range(2)]
    evicting: list[Step] = [Run(40), Submit(own_tokens=56, max_new_tokens=1), Run(40)]
    again_late: list[Step] = [Latency(forward=3)]
    again_late += [Submit(base=base, shared_tokens=16, own_tokens=10, max_new_tokens=1) for base in range(2)]
    return {
        "one victim after the other": Program(_GROWING, tuple(slow_stores)),
        "one load after the other": Program(_LOADING, (*prefixes, *evicting, *again_late)),
        "clients that leave": Program(_MIXED, (*late, *crowd, *leaving)),
        "two engines": Program(_PAIR, (*late, Latency(forward=3, peer=True), *crowd)),
        "a peer that is faster": Program(_PAIR, (*at_once, *crowd[:3])),
    }

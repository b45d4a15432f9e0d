"""Design §4: the run of a decode line and the plain path plan the same bytes, whatever else goes on."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from control_plane import CacheGroupConfig, GroupKind, Role, Scheduler, SchedulerConfig
from control_plane.messages import Abort, Bootstrapped, Event, Finish, RemotePrefillDone, RequestSpec
from control_plane.messages.columns import pack, view
from control_plane.messages.wire import encode_plan
from control_plane.testing.simulated_device import result_of
from tests.properties.programs import check, programs, share
from tools.simulate.engine import Watch
from tools.simulate.program import Program
from tools.simulate.run import run


class LooksAlways(Scheduler):
    """Every decode of every round goes through the objects."""

    def next_plan(self):  # type: ignore[no-untyped-def]
        """A plan for which every row was looked at."""
        self.resident.next_event_at[:] = 0
        return super().next_plan()


@share(8)
@given(program=programs())
def test_runs_vectors_and_objects_plan_alike(program: Program) -> None:
    """And §8.2 within one process: the same program, the same recording."""
    with_runs = run(program)
    vectors = run(program, watch=Watch(scheduler=lambda config: Scheduler(config, decode_runs=False)))
    objects = run(program, watch=Watch(scheduler=lambda config: LooksAlways(config, decode_runs=False)))
    for outcome in (with_runs, vectors, objects):
        check(outcome)
    assert with_runs.digest == vectors.digest
    assert with_runs.digest == objects.digest


GROUPS = {
    GroupKind.FULL: CacheGroupConfig(id="full", block_granularity=4),
    GroupKind.SLIDING: CacheGroupConfig(id="sliding", kind=GroupKind.SLIDING, block_granularity=2, window=6),
    GroupKind.STATE: CacheGroupConfig(id="state", kind=GroupKind.STATE, block_granularity=4),
}


@st.composite
def configurations(draw: st.DrawFn) -> SchedulerConfig:
    """What programs of the stamp model do not vary: the role, and how wide a decode step is."""
    kinds = draw(st.lists(st.sampled_from(sorted(GROUPS)), min_size=1, max_size=3, unique=True))
    return SchedulerConfig(
        role=draw(st.sampled_from([Role.FUSED, Role.FUSED, Role.DECODE])),
        prefix_granularity=4,
        max_scheduled_tokens=draw(st.sampled_from([40, 64])),
        max_batch_size=draw(st.integers(1, 5)),
        device_blocks=draw(st.integers(40, 60)),
        groups=tuple(GROUPS[kind] for kind in kinds),
        max_context_tokens=64,
        decode_width=draw(st.integers(1, 3)),
        overlap_depth=draw(st.integers(0, 1)),
        mixed=draw(st.booleans()),
        prefix_cache=draw(st.booleans()),
        safe_steps=draw(st.sampled_from([2, 8])),
    )


actions = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 20), st.one_of(st.none(), st.integers(1, 30))),
        st.tuples(st.just("run"), st.integers(1, 25), st.none()),
        st.tuples(st.just("abort"), st.integers(0, 9), st.none()),
        st.tuples(st.just("finish"), st.integers(0, 9), st.none()),
    ),
    min_size=2,
    max_size=14,
)


def plans_of(scheduler: Scheduler, program: list[tuple[str, int, int | None]]) -> list[bytes]:
    """Every plan of a program, in which each decode samples one token and finishes at its limit."""
    plans: list[bytes] = []
    live: dict[int, int] = {}
    spoken: set[int] = set()
    out: list[Event] = []

    def one_round() -> None:
        while scheduler.has_room:
            plan = scheduler.next_plan()
            plans.append(encode_plan(plan))
            if plan.remote_prefill is not None:
                remote = plan.remote_prefill
                for key, attempt in zip(view(remote.keys).tolist(), view(remote.attempts).tolist(), strict=True):
                    scheduler.advance([RemotePrefillDone(key, attempt, pack([7]))])
                    spoken.add(key)
                    live[key] -= 1
            if plan.forward is None:
                break
            out.append(result_of(plan))
        if not out:
            return
        result = out.pop(0)
        assert hasattr(result, "counts")
        scheduler.advance([result])
        for key, count in zip(view(result.keys).tolist(), view(result.counts).tolist(), strict=True):
            if key in live and count:
                spoken.add(key)
                live[key] -= count
                if live[key] <= 0:
                    del live[key]
                    scheduler.advance([Finish(key)])

    for action, number, declared in program:
        if action == "run":
            for _ in range(number):
                one_round()
        elif action == "submit":
            tokens = np.arange(number, dtype=np.int32)
            if declared is not None:
                declared = min(declared, max(1, scheduler.max_single_request_tokens - number))
            spec = RequestSpec(id="r", tokens=pack(tokens), max_new_tokens=declared)
            (key,) = scheduler.submit([spec])
            live[key] = scheduler.max_new_tokens(spec)
            if scheduler.role is not Role.FUSED:
                scheduler.advance([Bootstrapped(key)])
        elif live:
            key = sorted(live)[number % len(live)]
            can_stop = action == "finish" and key in spoken
            del live[key]
            scheduler.advance([Finish(key) if can_stop else Abort(key)])
    assert scheduler.audit() == []
    return plans


@given(config=configurations(), program=actions)
def test_in_every_role_and_width(config: SchedulerConfig, program: list[tuple[str, int, int | None]]) -> None:
    """Group kinds, overlap, decode widths and the decoding role."""
    width = config.decode_width
    config = structs.replace(config, max_scheduled_tokens=config.max_scheduled_tokens + config.max_batch_size * width)
    with_runs = plans_of(Scheduler(config), program)
    assert with_runs == plans_of(Scheduler(config, decode_runs=False), program)
    assert with_runs == plans_of(LooksAlways(config, decode_runs=False), program)

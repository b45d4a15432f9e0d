"""The simulation finds what is wrong: a rule broken on purpose fails within a few seeds, for a fitting reason."""

from collections.abc import Callable, Iterable, Sequence
from itertools import count

import pytest
from msgspec import structs

from control_plane.fsm.resources import ForwardResources
from control_plane.messages import ExecutionPlan, LoadBackDone, Store, StoreSourceGuard
from control_plane.scheduler import progress, retraction
from control_plane.scheduler.feedback import Feedback
from control_plane.scheduler.scheduler import Scheduler
from data_plane.ops.host_tier import CopyInFlight, StreamedHostTier
from data_plane.ops.zeroing import HostZeroing
from tools.simulate.program import Group, Peer, Program, Setting, Submit
from tools.simulate.run import Outcome, run, simulate

Patch = pytest.MonkeyPatch
ROUNDS = 150
MOST_SEEDS = 60


def skip_zeroing(patch: Patch) -> None:
    """Blocks come to their new owner as the old one left them."""
    patch.setattr(HostZeroing, "zero", lambda self, lists: None)


def store_without_a_fence(patch: Patch) -> None:
    """What a retraction gives away is copied as if it were pinned: after somebody else has it."""
    store = StreamedHostTier.store

    def pinned(self: StreamedHostTier, round: int, stores: Sequence[Store]) -> list[CopyInFlight]:
        guard = StoreSourceGuard.PINNED_UNTIL_ACK
        return store(self, round, [structs.replace(each, guard=guard) for each in stores])

    patch.setattr(StreamedHostTier, "store", pinned)


def retract_whoever_is_out(patch: Patch) -> None:
    """No victim's forward is waited for (R5.4)."""
    patch.setattr(ForwardResources, "results_in_flight", property(lambda self: 0))


def publish_what_was_not_computed(patch: Patch) -> None:
    """The frontier of publication is the last known token (R4.7)."""
    computed_tokens = progress.computed_tokens
    patch.setattr(progress, "computed_tokens", lambda request, resident: computed_tokens(request, resident) + 1)


def take_tokens_of_the_thrown_out(patch: Patch) -> None:
    """Who was retracted is told what its withheld forward says."""
    patch.setattr(Scheduler, "void_keys", lambda self, round_number: frozenset())


def believe_every_load(patch: Patch) -> None:
    """A load-back that failed is taken for one that went well."""
    loaded = Feedback.loaded
    patch.setattr(Feedback, "loaded", lambda self, event: loaded(self, LoadBackDone(event.op)))


def spare_the_exempt_always(patch: Patch) -> None:
    """There is no last resort (R5.6)."""
    choose_victim = retraction.choose_victim
    patch.setattr(retraction, "choose_victim", lambda desk, *, spares_covered: choose_victim(desk, spares_covered=True))


def plan_by_mood(patch: Patch) -> None:
    """Plans depend on something that no recording knows."""
    next_plan, calls = Scheduler.next_plan, count(1)

    def moody(self: Scheduler) -> ExecutionPlan:
        plan = next_plan(self)
        return structs.replace(plan, notes=()) if next(calls) % 64 == 0 else plan

    patch.setattr(Scheduler, "next_plan", moody)


FOUND_AS = {
    skip_zeroing: {"forward"},
    store_without_a_fence: {"order"},
    retract_whoever_is_out: {"plan", "audit", "tokens"},
    publish_what_was_not_computed: {"plan", "forward", "tokens"},
    take_tokens_of_the_thrown_out: {"tokens"},
    believe_every_load: {"tokens"},
    plan_by_mood: {"replay"},
}


@pytest.mark.parametrize("breaks", FOUND_AS, ids=lambda breaks: breaks.__name__)
def test_a_broken_rule_is_found(breaks: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """The mutants of the two planes are told from the real ones, each by what it violates."""
    breaks(monkeypatch)
    found = first_failure(range(MOST_SEEDS))
    assert found.failure is not None
    assert found.failure.kind in FOUND_AS[breaks], found.failure


def test_without_a_last_resort_the_exempt_starve(monkeypatch: Patch) -> None:
    """R5.6; seed 28, shrunk: two that are exempt hold all of the pool of who decodes, and neither can go on."""
    program = Program(
        Setting(
            groups=(Group(kind="sliding", window=2), Group()),
            budget_tokens=1,
            batch=2,
            context_tokens=48,
            pool=16,
            stop_probability=0.0,
            recompute_failed_transfers=False,
            peer=Peer(budget_tokens=1, batch=1, pool=11),
        ),
        (
            Submit(shared_tokens=22, own_tokens=9, max_new_tokens=3),
            Submit(base=2, shared_tokens=13, max_new_tokens=4),
        ),
    )
    assert run(program).failure is None
    spare_the_exempt_always(monkeypatch)
    failure = run(program).failure
    assert failure is not None
    assert failure.kind == "stall"


def first_failure(seeds: Iterable[int]) -> Outcome:
    """The outcome of the first seed that fails."""
    for seed in seeds:
        outcome = simulate(seed, rounds=ROUNDS)
        if outcome.failure is not None:
            return outcome
    raise AssertionError(f"none of {seeds} fails")

"""The rules of the reference where ours differ on purpose, each as a stand-in: with all of them the two must agree.

`docs/differences.md` says why ours are others, in one row for each name in `RULES`.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from control_plane.cache.coordinator.demand import Listed, Refused, RequestProgress
from control_plane.cache.coordinator.holdings import Holdings
from control_plane.cache.coordinator.step import Step
from control_plane.cache.core.block_table import BlockTables
from control_plane.cache.prefix.eviction import Category
from control_plane.cache.prefix.hash_chain import HashChain
from control_plane.cache.prefix.matcher import PrefixHit, PrefixMatcher
from control_plane.config import Role, SchedulerConfig
from control_plane.fsm.request import Request
from control_plane.fsm.states import Decoding, Prefilling, Retracted, Submitted
from control_plane.fsm.tokens import Window
from control_plane.messages import ExecutionPlan, RequestSpec, Store, StoreSourceGuard
from control_plane.scheduler import admission, phases, retraction, roles
from control_plane.scheduler.admission import Admission, AdmissionFeedback, Refusal
from control_plane.scheduler.host_copies import HostCopies
from control_plane.scheduler.line import Candidates, WaitingLine
from control_plane.scheduler.phases import Desk
from control_plane.scheduler.plan_build import PlanBuild, PlanOutput
from control_plane.scheduler.recovery import RecoveryLine, admission_headroom_tokens
from control_plane.scheduler.resident import NEVER
from control_plane.scheduler.scheduler import Scheduler


class _With:
    """Something with a few attributes replaced; all it does, it does to the original."""

    def __init__(self, original: object, replaced: dict[str, object]) -> None:
        self.__dict__.update(replaced, _original=original)

    def __getattr__(self, name: str) -> object:
        return getattr(self._original, name)


def _with(original: Any, **replaced: object) -> Any:
    """Passes for the original."""
    return _With(original, replaced)


def grant_to_one(
    desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates, *, decodes_first: bool
) -> bool:
    """A retraction serves the blocker alone; if that is the victim, the first prompt that waits, or else nobody."""
    served = feedback.capacity_blocker
    assert served is not None
    if served.key in build.retracted:
        waiting = (request for request in line.waiting if request.key not in build.retracted)
        served = next(waiting, None)
        if served is None:
            return True
    if not isinstance(served.state, Prefilling | Submitted | Retracted):
        return phases.schedule_blocked_decode(desk, build, feedback, served)
    if build.decodes and not desk.is_mixed and desk.role is Role.FUSED:
        return False
    if isinstance(served.state, Prefilling):
        phases.schedule_resident_chunks(desk, build, feedback, line)
    else:
        alone = _with(line, waiting=_with(line.waiting, candidates=lambda: iter([served])))
        schedule = never_sealed if desk.role is Role.DECODE else phases.schedule_new_prompts
        schedule(desk, build, feedback, alone)
    return build.has_prefill_progress


def no_headroom_undeclared(
    *, remaining_new_tokens: int, is_declared: bool, safe_steps: int, retraction_count: int
) -> int:
    """A request that declared no output prepays nothing, however often it was retracted."""
    if not is_declared:
        return 0
    return admission_headroom_tokens(
        remaining_new_tokens=remaining_new_tokens,
        is_declared=True,
        safe_steps=safe_steps,
        retraction_count=retraction_count,
    )


give_away = HostCopies.give_away


def publish_for_the_host_only(self: HostCopies, *arguments: Any) -> bool:
    """What a victim completed is published if there is a host tier; then it recovers in order, whatever was stored."""
    if self._has_host:
        give_away(self, *arguments)
    return self._has_host


schedule_readmission = phases.schedule_readmission


def readmit_one_a_round(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> bool:
    """One readmission in a round, though another may still prefill; on role D beside no other chunk."""
    if desk.role is Role.DECODE and build.has_prefill_progress:
        return False
    waiting = len(line.recovering)
    holds_line = schedule_readmission(desk, build, feedback, _with(line, prefilling=()))
    build.__dict__["has_readmitted"] = len(line.recovering) < waiting
    return holds_line


def seal_if_refused(build: PlanBuild, line: Candidates) -> bool:
    """A new prompt waits only if a readmission failed in this round."""
    waits = any(request.key not in build.retracted for request in line.recovering)
    return waits and not build.__dict__.get("has_readmitted", False)


choose_victim = retraction.choose_victim


def largest_prefill_first(desk: Desk, *, spares_covered: bool) -> Request | None:
    """Of prefills the one with the most tokens is the victim."""
    victim = choose_victim(desk, spares_covered=spares_covered)
    if victim is None or not isinstance(victim.state, Prefilling):
        return victim
    prefilling = [request for request in desk.residents() if isinstance(request.state, Prefilling)]
    return max(prefilling, key=lambda request: request.prefill_tokens)


remote_prompt = Admission.remote_prompt


def remote_prompt_of_the_device(self: Admission, request: Request, **arguments: Any) -> Window | Refusal:
    """A prompt that a peer prefills loads nothing from the host."""
    matcher = self._coordinator.matcher
    self._coordinator.matcher = PrefixMatcher(
        self._coordinator.index, self._config.groups, prefix_granularity=self._config.prefix_granularity, host=None
    )
    try:
        return remote_prompt(self, request, **arguments)
    finally:
        self._coordinator.matcher = matcher


schedule_remote_prompt = phases.schedule_remote_prompt


def never_sealed(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """A prompt goes to the peer though a retracted request waits."""
    schedule_remote_prompt(desk, build, feedback, _with(line, recovering=()))


def first_chunk_with_its_hit(
    self: Admission, request: Request, *, budget_tokens: int, round_number: int, output: PlanOutput
) -> Window | Refusal | None:
    """A hit is never given up."""
    hit = self._probe(request)
    outcome = self._try_first_chunk(request, hit, budget_tokens, round_number, output)
    return Refusal(outcome, hit.awaited) if isinstance(outcome, Refused) else outcome


start = WaitingLine._start


def try_everybody(self: WaitingLine) -> int:
    """Whoever was refused is tried again in every round, and with what is left of the budget."""
    start(self)
    return 0


decode = Admission.decode


def slide_out_only_what_is_ones_own(self: Admission, request: Request, **arguments: Any) -> Refused | None:
    """A decode that needs no block and completes no page lets go of what slid out only if nobody else holds it."""
    slot = request.resources.slot
    progress = self._progress(request)
    needs_block = self._decode_end(slot) > self._resident.writable_until[slot]
    if not needs_block and progress.completed_pages == progress.published_pages and not _frees(self, slot, progress):
        self._resident.next_event_at[slot] = NEVER
    return decode(self, request, **arguments)


def _frees(admission: Admission, slot: int, progress: RequestProgress) -> bool:
    coordinator = admission._coordinator
    for index, group in enumerate(admission._config.groups):
        expired = group.expired_rows(progress.computed_tokens)
        blocks = coordinator.tables.blocks(slot, index)[coordinator.tables.live_from(slot, index) : expired]
        if any(coordinator._holdings._references[index][block] == 1 for block in blocks.tolist()):
            return True
    return False


initialise, probe, make_request = Admission.__init__, Admission._probe, Scheduler._request


def hash_always(self: Scheduler, key: int, spec: RequestSpec) -> Request:
    """Pages have names without a prefix cache as well."""
    request = make_request(self, key, spec)
    if not self.config.prefix_cache:
        request.chain = HashChain(namespace=spec.namespace, prefix_granularity=self.config.prefix_granularity)
        request.chain.extend(request.tokens, len(request.tokens))
    return request


def publish_always(self: Admission, config: SchedulerConfig, *arguments: Any) -> None:
    """Without a prefix cache pages are listed all the same, and equal ones kept once."""
    initialise(self, config, *arguments)
    self._publish_granularity = config.prefix_granularity


def find_nothing_without_cache(self: Admission, request: Request) -> PrefixHit:
    """Without a prefix cache a prompt finds nothing of what is listed."""
    return probe(self, request) if self._config.prefix_cache else self._coordinator.matcher.nothing()


slide_out = Step.slide_out


def spend_what_slides_out_as_it_is_listed(self: Step) -> None:
    """Blocks that are listed and slide out in one admission go before all others, if that admission lacks room."""
    slide_out(self)
    order = self._holdings._order
    for group, block, _ in self.listed:
        if order.leave(group, block):
            order.enter(-1, Category.PROBATIONARY, [(group, block)], depth=0)
            self._later.append(partial(_comes_of_age, self._holdings, group, block))


def _comes_of_age(holdings: Holdings, group: int, block: int) -> int:
    if holdings._order.leave(group, block):
        holdings._order.enter(*holdings.worth(group, block), [(group, block)], depth=0)
    return 0


def store_at_the_end(self: HostCopies, request: Request, listed: Sequence[Listed], output: PlanOutput) -> None:
    """What is listed is taken for the host when the round is decided; of output all but closed prefixes."""
    if isinstance(request.state, Decoding):
        listed = [each for each in listed if not self._coordinator._groups[each[0]].is_prefix_closed]
    if listed and self._stores_prompts:
        output.__dict__.setdefault("later", []).append(
            (self._coordinator, request.key, self._coordinator.pieces(listed))
        )


take_due = HostCopies.take_due


def count_due_stores(self: HostCopies) -> list[Store]:
    """Stores that a round begins with keep it from retracting anybody, like those that are out."""
    self._due, due = [], self._due
    take_due(self)
    return due


finish = PlanBuild.finish


def finish_with_stores(self: PlanBuild, tables: BlockTables) -> ExecutionPlan:
    """In a round that retracts somebody they are held by nobody, like the victim's."""
    for coordinator, key, pieces in self.output.__dict__.get("later", ()):
        if self.retracted:
            self.output.stores += coordinator.host.begin_stores(pieces, StoreSourceGuard.STREAM_ORDERED, key)
        else:
            self.output.stores += coordinator.store(pieces, StoreSourceGuard.PINNED_UNTIL_ACK, key)
    return finish(self, tables)


Replacement = tuple[object, str, object]  # owner, attribute, stand-in

RULES: dict[str, tuple[Replacement, ...]] = {
    "grant": ((retraction, "_grant", grant_to_one),),
    "headroom": ((admission, "admission_headroom_tokens", no_headroom_undeclared),),
    "victim-pages": ((HostCopies, "give_away", publish_for_the_host_only),),
    "victim-store": ((HostCopies, "awaits_store", lambda self, request: False),),
    "store-sites": (
        (HostCopies, "write_through", store_at_the_end),
        (HostCopies, "take_due", count_due_stores),
        (PlanBuild, "finish", finish_with_stores),
    ),
    "victim-choice": ((retraction, "choose_victim", largest_prefill_first),),
    "readmissions": (
        (phases, "schedule_readmission", readmit_one_a_round),
        (roles, "schedule_readmission", readmit_one_a_round),
    ),
    "remote-hit": ((Admission, "remote_prompt", remote_prompt_of_the_device),),
    "seal": (
        (roles, "schedule_remote_prompt", never_sealed),
        (retraction, "schedule_remote_prompt", never_sealed),
        (phases, "seals_newcomers", seal_if_refused),
        (roles, "seals_newcomers", seal_if_refused),
    ),
    "scattered-hit": ((Admission, "first_chunk", first_chunk_with_its_hit),),
    "tried-again": (
        (RecoveryLine, "is_hopeless", False),
        (WaitingLine, "_start", try_everybody),
        (WaitingLine, "_is_hopeless", lambda self, request: False),
    ),
    "cache-off": (
        (Scheduler, "_request", hash_always),
        (Admission, "__init__", publish_always),
        (Admission, "_probe", find_nothing_without_cache),
    ),
    "canonical-room": ((Holdings, "is_held", lambda self, group, block: False),),
    "shared-slides-out": ((Admission, "decode", slide_out_only_what_is_ones_own),),
    "listed-slides-out": ((Step, "slide_out", spend_what_slides_out_as_it_is_listed),),
}


@contextmanager
def reference_rules(without: Sequence[str] = ()) -> Iterator[None]:
    """Ours by the reference's rules, but for those of these names."""
    unknown = [name for name in without if name not in RULES]
    assert not unknown, f"no such rules: {', '.join(unknown)}; there are {', '.join(RULES)}"
    with ExitStack() as stack:
        for name, replacements in RULES.items():
            if name not in without:
                for owner, attribute, stand_in in replacements:
                    stack.enter_context(patch.object(owner, attribute, stand_in))
        yield

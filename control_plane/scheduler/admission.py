"""The admission of one step: size it, ask the coordinator for all of it, and move the request if it was granted.

Sees only what a plan puts out (fresh blocks, notes) and reports outcomes; it cannot compose the batch.
"""

from msgspec import Struct, structs

from control_plane.cache.coordinator.coordinator import CacheCoordinator
from control_plane.cache.coordinator.demand import CacheProgress, Granted, GroupDemand, Refused, RequestProgress
from control_plane.cache.prefix.matcher import PrefixHit
from control_plane.config import Role, SchedulerConfig
from control_plane.fsm.events import ScheduleChunk, ScheduleDecode, ScheduleFirstChunk, ScheduleRemotePrefill
from control_plane.fsm.request import Request
from control_plane.fsm.resources import ForwardResources
from control_plane.fsm.states import PrefillDone, Prefilling, resources_of
from control_plane.fsm.tokens import Window
from control_plane.messages import NOT_SAMPLED, NoteKind, SlotBinding
from control_plane.messages.columns import Int32s, count, pack
from control_plane.scheduler.group_demands import (
    PrefillReserve,
    decode_demands,
    landing_demands,
    prefill_demands,
    reserve_prefill_demands,
)
from control_plane.scheduler.host_copies import HostCopies
from control_plane.scheduler.overlap import overlap_ends
from control_plane.scheduler.plan_build import PlanOutput
from control_plane.scheduler.prefill_chunk import (
    ChunkRules,
    prefill_chunk_tokens,
    probe_limit_tokens,
    replay_tokens,
    state_checkpoint,
)
from control_plane.scheduler.progress import advance_request_progress, record_boundary
from control_plane.scheduler.recovery import admission_headroom_tokens
from control_plane.scheduler.resident import NEVER, ResidentTable
from control_plane.scheduler.stats import HitCounts


class AdmissionFeedback:
    """What the admissions of one round report: whether any failed for room, and for whom first."""

    def __init__(self) -> None:
        self.capacity_blocker: Request | None = None
        self.blocked_decodes: list[Request] = []

    @property
    def admission_failed(self) -> bool:
        """Whether any admission of this round failed for room."""
        return self.capacity_blocker is not None

    def report_refusal(self, request: Request) -> None:
        """The first blocker is the one that a retraction serves."""
        if self.capacity_blocker is None:
            self.capacity_blocker = request


class Refusal(Struct, frozen=True):
    """What a waiting prompt lacked, and the digests whose listing would let it ask for less."""

    lacked: Refused
    awaited: tuple[bytes, ...]


class Admission:
    """Admits first chunks, further chunks and decode steps."""

    def __init__(
        self,
        config: SchedulerConfig,
        coordinator: CacheCoordinator,
        resident: ResidentTable,
        copies: HostCopies,
    ) -> None:
        self._config = config
        self._copies = copies
        self._coordinator = coordinator
        self._resident = resident
        self._chunk_rules = ChunkRules(
            prefix_granularity=config.prefix_granularity,
            ends_on_pages=config.has_state,
            final_window_tokens=config.replay_window_tokens,
        )
        self._paged_chunk_rules = structs.replace(self._chunk_rules, ends_on_pages=True)
        self._open_groups = [(g, group) for g, group in enumerate(config.groups) if not group.is_prefix_closed]
        self._decodes_here = config.role is not Role.PREFILL
        self.hits = HitCounts(config)
        # No granularity to publish by: nothing is hashed, matched or published.
        self._publish_granularity = config.prefix_granularity if config.prefix_cache else 0

    @property
    def available_blocks(self) -> int:
        """LCM blocks that could be had at most."""
        return self._coordinator.available_blocks

    def releasable_blocks(self, slot: int) -> int:
        """LCM blocks that could be had if this slot let go of its pages."""
        return self._coordinator.releasable_blocks(slot)

    def holds_all(self, request: Request) -> bool:
        """Whether all blocks that are held are a request's own: none is a copy's, a transfer's or another request's."""
        is_only_resident = resources_of(request.state) is not None and self._resident.count == 1
        return is_only_resident and not self._coordinator.is_held_outside

    def first_chunk(
        self, request: Request, *, budget_tokens: int, round_number: int, output: PlanOutput
    ) -> Window | Refusal | None:
        """Give a waiting request a slot, its cached prefix and its first chunk; or say what lacked.

        None: the budget that is left is too small for its first chunk.
        """
        if request.starts_afresh and not self._resident.count:
            # What is cached lies scattered, and so would be whatever is placed beside it: pack from the beginning.
            self._coordinator.clear_cache()
        hit = self._probe(request)
        outcome = self._try_first_chunk(request, hit, budget_tokens, round_number, output)
        if isinstance(outcome, Refused) and hit.tokens and self._is_alone:
            # Alone in the pool and yet no room: the hit's blocks lie scattered over parents that other groups need.
            nothing = self._coordinator.matcher.nothing()
            outcome = self._try_first_chunk(request, nothing, budget_tokens, round_number, output)
        return Refusal(outcome, hit.awaited) if isinstance(outcome, Refused) else outcome

    def remote_prompt(self, request: Request, *, round_number: int, output: PlanOutput) -> Window | Refusal:
        """Give a waiting request a slot, its cached prefix, and room for the rest of its prompt, which a peer writes.

        With the decode slot and its growth: what has landed must be able to run (F7). Nothing is fed again (R3.7).
        """
        hit = self._probe(request)
        outcome = self._try_remote(request, hit, round_number, output)
        if isinstance(outcome, Refused) and hit.tokens and self._is_alone:
            outcome = self._try_remote(request, self._coordinator.matcher.nothing(), round_number, output)
        return Refusal(outcome, hit.awaited) if isinstance(outcome, Refused) else outcome

    def hand_over(self, request: Request, *, output: PlanOutput) -> int:
        """A completed prompt is about to go to the peer: what it completed is published. Returns its first token."""
        listed = self._coordinator.publish(request.resources.slot, self._progress(request))
        self._copies.write_through(request, listed, output)
        return int(self._resident.tokens(request.resources.slot)[-1])

    def _first_step_after_landing(self, request: Request, output: PlanOutput) -> None:
        """Tell the model which token to feed: the peer sampled it."""
        tokens = self._resident.tokens(request.resources.slot)
        self._bind(request, request.resources.slot, tokens, output, last_token=int(tokens[-1]))

    def next_chunk(self, request: Request, *, budget_tokens: int, output: PlanOutput) -> Window | Refused | None:
        """The next chunk of a resident prefill. None: the budget that is left is too small for it."""
        state = request.state
        assert isinstance(state, Prefilling)
        slot, before = state.resources.slot, state.resources.progress
        rules = self._chunk_rules
        # A boundary that was reached is pending until an admission published it: this chunk ends on a page, too.
        if before.promotion_boundary > before.published_pages * rules.prefix_granularity:
            rules = self._paged_chunk_rules
        chunk_tokens = prefill_chunk_tokens(
            rules,
            begin=state.window.end,
            prefill_tokens=request.prefill_tokens,
            budget_tokens=budget_tokens,
            promotion_boundary=before.promotion_boundary,
        )
        if not chunk_tokens:
            return None
        window = state.window.next(chunk_tokens)
        completes = window.end == request.prefill_tokens
        reserve = PrefillReserve(
            decode_width=self._config.decode_width, completes_prefill=completes, decodes_here=self._decodes_here
        )
        demands = self._demands(window, reserve, replay_begin=0)
        granted = self._admit_resident(request, demands, self._progress(request), output)
        if isinstance(granted, Refused):
            return granted
        request.apply(ScheduleChunk(chunk_tokens, request.prefill_tokens, demands[0].reserve_tokens))
        self._chunk_scheduled(request, slot, window)
        return window

    def decode(self, request: Request, *, output: PlanOutput) -> Refused | None:
        """Room for the next decode step of a request, and publication of what it completed; None: granted."""
        slot = request.resources.slot
        end = self._decode_end(slot)
        progress = self._progress(request)
        has_event = progress.computed_tokens >= int(self._resident.next_event_at[slot])
        if has_event or end > int(self._resident.writable_until[slot]):
            granted = self._admit_resident(request, decode_demands(self._config.groups, end=end), progress, output)
            if isinstance(granted, Refused):
                return granted
        self._watch(slot, request.resources.progress)
        if isinstance(request.state, PrefillDone):
            if self._config.role is Role.DECODE and not request.retraction_count:
                self._first_step_after_landing(request, output)
            request.apply(ScheduleDecode())
        return None

    def checkpoint(self, window: Window) -> int:
        """The aligned position inside a chunk whose snapshot its forward makes as well (R3.6); 0: none."""
        if not self._config.has_state:
            return 0
        return state_checkpoint(begin=window.begin, end=window.end, prefix_granularity=self._config.prefix_granularity)

    def publish_completed(self, request: Request) -> None:
        """Publish what a request computed, outside an admission: it is about to let go of its pages."""
        self._coordinator.publish(request.resources.slot, self._progress(request))

    def give_away(self, victim: Request, output: PlanOutput) -> bool:
        """A victim is about to lose its pages. Whether it can come back by loading any of them."""
        return self._copies.give_away(victim, self._progress(victim), output)

    def _probe(self, request: Request) -> PrefixHit:
        limit = probe_limit_tokens(
            prefill_tokens=request.prefill_tokens, prefix_granularity=self._config.prefix_granularity
        )
        return self._coordinator.probe_prefix(request.chain.digests, limit)

    def _try_first_chunk(
        self, request: Request, hit: PrefixHit, budget_tokens: int, round_number: int, output: PlanOutput
    ) -> Window | Refused | None:
        replay = replay_tokens(hit_tokens=hit.tokens, window_tokens=self._config.replay_window_tokens)
        chunk_tokens = prefill_chunk_tokens(
            self._chunk_rules,
            begin=hit.tokens,
            prefill_tokens=request.prefill_tokens,
            budget_tokens=budget_tokens - replay,
            promotion_boundary=hit.closed_tokens,
        )
        if not chunk_tokens:
            return None
        window = Window(hit.tokens, hit.tokens + chunk_tokens, replay)
        reserve = self._first_reserve(request, window)
        demands = self._demands(window, reserve, replay_begin=hit.tokens - replay)
        resources = self._admit_first(request, hit, window, demands, round_number, output)
        if isinstance(resources, Refused):
            return resources
        request.apply(ScheduleFirstChunk(resources, window, request.prefill_tokens, demands[0].reserve_tokens))
        self._chunk_scheduled(request, resources.slot, window)
        return window

    @property
    def _is_alone(self) -> bool:
        """Whether nobody holds blocks, and no copy or transfer either, which would give them back by itself."""
        return not self._resident.count and not self._coordinator.is_held_outside

    def _first_reserve(self, request: Request, window: Window) -> PrefillReserve:
        """What a first admission holds beyond its window. Where nobody decodes, nothing grows (R3.4)."""
        completes = window.end == request.prefill_tokens
        if not self._decodes_here:
            return PrefillReserve(
                decode_width=self._config.decode_width, completes_prefill=completes, decodes_here=False
            )
        headroom_tokens = self._headroom_tokens(request, window)
        return PrefillReserve(
            decode_width=self._config.decode_width,
            completes_prefill=completes,
            prompt_headroom_tokens=headroom_tokens,
            sliding_growth_tokens=self._sliding_growth_tokens(request, window, headroom_tokens),
        )

    def _admit_first(
        self,
        request: Request,
        hit: PrefixHit,
        window: Window,
        demands: list[GroupDemand],
        round_number: int,
        output: PlanOutput,
    ) -> ForwardResources | Refused:
        """A slot, the hit and the blocks; or nothing of it."""
        slot = self._resident.next_slot
        available_before = self.available_blocks
        granted = self._coordinator.admit_first(slot, demands, hit, owner=request.key)
        if isinstance(granted, Refused):
            return granted
        headroom_tokens = self._headroom_tokens(request, window)
        request.is_generation_covered = headroom_tokens >= request.limit_tokens - window.end
        self._move_in(request, slot, granted, hit, round_number, output)
        if request.retraction_count:
            output.note(NoteKind.READMITTED, request.key, available_before, request.retraction_count)
        return ForwardResources(slot=slot, progress=granted.progress, forwards_out=self._resident)

    def _try_remote(self, request: Request, hit: PrefixHit, round_number: int, output: PlanOutput) -> Window | Refused:
        window = Window(hit.tokens, request.prefill_tokens)
        groups = self._config.groups
        reserve = self._first_reserve(request, window)
        demands = reserve_prefill_demands(groups, landing_demands(groups, window), reserve)
        resources = self._admit_first(request, hit, window, demands, round_number, output)
        if isinstance(resources, Refused):
            return resources
        if window.end % self._config.prefix_granularity == 0:
            # Of a landing only the end has a snapshot.
            resources.progress = self._recorded(resources.progress, request, window)
        request.apply(ScheduleRemotePrefill(resources, window, demands[0].reserve_tokens))
        return window

    def _sliding_growth_tokens(self, request: Request, window: Window, headroom_tokens: int) -> int:
        """Growth of sliding groups that recycling cannot fund, on a first chunk beside others (R3.4).

        Blocks of a hit are shared, so letting them slide out frees nothing; and a chunk that leaves prompt behind
        will need more before anything of it slides out. A request that is alone prepays nothing.
        """
        if not self._config.sliding_prepay or not self._resident.count:
            return 0
        unfunded = max(window.begin, request.prefill_tokens - window.end)
        return min(unfunded, headroom_tokens)

    def _headroom_tokens(self, request: Request, window: Window) -> int:
        """The rest of the prompt with the output that is prepaid; nothing where nothing is prepaid (R7.3)."""
        headroom = admission_headroom_tokens(
            remaining_new_tokens=request.limit_tokens - request.prefill_tokens,
            is_declared=request.spec.max_new_tokens is not None,
            safe_steps=self._config.safe_steps,
            retraction_count=request.retraction_count,
        )
        return request.prefill_tokens - window.end + headroom if headroom else 0

    def _demands(self, window: Window, reserve: PrefillReserve, *, replay_begin: int) -> list[GroupDemand]:
        groups = self._config.groups
        demands = prefill_demands(groups, window, checkpoint=self.checkpoint(window), replay_begin=replay_begin)
        return reserve_prefill_demands(groups, demands, reserve)

    def _move_in(
        self, request: Request, slot: int, granted: Granted, hit: PrefixHit, round_number: int, output: PlanOutput
    ) -> None:
        settled = self._resident.settle(
            key=request.key,
            round_number=round_number,
            tokens=request.tokens,
            limit_tokens=request.limit_tokens,
            steps_alone=overlap_ends(request.spec.sampling) is not None,
        )
        assert settled == slot, f"admitted into slot {slot} and settled in {settled}"
        self._bind(request, slot, request.tokens, output)
        if hit.tokens:
            output.note(NoteKind.HIT, request.key, hit.tokens, hit.host_tokens(self._config.groups))
        if granted.load_backs:
            loaded = sum(count(load.sources) for load in granted.load_backs)
            output.note(NoteKind.LOADED, request.key, loaded, *(load.op for load in granted.load_backs))
        output.record_grant(granted)
        if request.retraction_count == 0:
            self.hits.count(hit, request.prompt_tokens)

    def _bind(
        self, request: Request, slot: int, tokens: Int32s, output: PlanOutput, *, last_token: int = NOT_SAMPLED
    ) -> None:
        sampling = request.spec.sampling
        history = pack(tokens) if sampling.needs_history else b""
        output.bindings.append(SlotBinding(slot, request.key, request.prompt_tokens, history, sampling, last_token))

    def _progress(self, request: Request) -> RequestProgress:
        return advance_request_progress(request, self._resident, prefix_granularity=self._publish_granularity)

    def _admit_resident(
        self, request: Request, demands: list[GroupDemand], progress: RequestProgress, output: PlanOutput
    ) -> Granted | Refused:
        granted = self._coordinator.admit(request.resources.slot, demands, progress=progress)
        if isinstance(granted, Granted):
            request.resources.progress = granted.progress
            output.record_grant(granted)
            self._copies.write_through(request, granted.listed, output)
        return granted

    def _chunk_scheduled(self, request: Request, slot: int, window: Window) -> None:
        """The columns follow: a completing chunk samples one token, and its owner's next step looks at the objects."""
        resident = self._resident
        completes = window.end == request.prefill_tokens
        request.resources.progress = self._recorded(request.resources.progress, request, window)
        resident.planned[slot] = request.prefill_tokens + 1 if completes else window.end
        resident.forwards_out[slot] += 1
        resident.writable_until[slot] = self._coordinator.tables.covered_tokens(slot)
        resident.next_event_at[slot] = 0

    def _recorded(self, progress: CacheProgress, request: Request, window: Window) -> CacheProgress:
        return record_boundary(
            progress,
            window,
            prefill_tokens=request.prefill_tokens,
            prefix_granularity=self._config.prefix_granularity,
        )

    def _watch(self, slot: int, progress: CacheProgress) -> None:
        """Tell the columns up to where a decode may write, and at which computed token there is something to do."""
        resident, tables = self._resident, self._coordinator.tables
        resident.writable_until[slot] = tables.covered_tokens(slot)
        granularity = self._publish_granularity
        next_event = (progress.published_pages + 1) * granularity if granularity else NEVER
        for index, group in self._open_groups:
            expiry = group.next_expiry(tables.live_from(slot, index))
            if expiry is not None:
                next_event = min(next_event, expiry)
        resident.next_event_at[slot] = next_event

    def _decode_end(self, slot: int) -> int:
        """Where the rows of the next decode step may end at most."""
        return self._resident.planned_tokens(slot) + self.decode_overshoot(self._resident.results_in_flight(slot))

    def decode_overshoot(self, results_in_flight: int) -> int:
        """Rows that a step may write from the last planned token on: its width, and what steps in flight may add."""
        width = self._config.decode_width
        return width - 1 + results_in_flight * (width - 1)

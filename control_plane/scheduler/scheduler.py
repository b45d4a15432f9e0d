"""Decides once per round what the engine does next. No clock, no thread, no device: specs and events in, plans out."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count

from control_plane.cache.coordinator.coordinator import CacheCoordinator
from control_plane.cache.prefix.hash_chain import HashChain, NoHashChain
from control_plane.cache.prefix.kv_events import KvEvent
from control_plane.config import MAX_INT32, Role, SchedulerConfig
from control_plane.errors import ConfigError, RequestRejected
from control_plane.fsm.request import Request
from control_plane.fsm.resources import ForwardResources
from control_plane.fsm.states import RemotePrefilling, resources_of
from control_plane.messages import (
    Abort,
    Bootstrapped,
    Event,
    ExecutionPlan,
    ExtendResult,
    Finish,
    ForwardFailed,
    LoadBackDone,
    RemotePrefillDone,
    RequestSpec,
    Retract,
    TokenLogprobs,
    TransferFailed,
    TransferSucceeded,
    WriteBackDone,
)
from control_plane.messages.columns import Int32s, view
from control_plane.scheduler.admission import Admission, AdmissionFeedback
from control_plane.scheduler.capacity_model import CapacityModel
from control_plane.scheduler.explain import explain
from control_plane.scheduler.feedback import Ended, Feedback
from control_plane.scheduler.flights import FlightLog
from control_plane.scheduler.host_copies import HostCopies
from control_plane.scheduler.line import Candidates
from control_plane.scheduler.plan_build import PlanBuild
from control_plane.scheduler.repetition import Repetition
from control_plane.scheduler.resident import ResidentTable
from control_plane.scheduler.roles import grammar_of
from control_plane.scheduler.stats import RetractionReason, SchedulerStats, StallWatch
from control_plane.scheduler.transfers import Transfers


class Scheduler:
    """The control plane's core. The same submissions and events give byte-identical plans, anywhere.

    Call `submit` and `advance` with what arrived, then `next_plan` while the device has room. Raises ConfigError when
    the configuration cannot work, naming every problem.
    """

    def __init__(self, config: SchedulerConfig, *, decode_runs: bool = True) -> None:
        """Without `decode_runs` every round takes the plain path: same plans, dearer. For tests, which compare them."""
        config.validate()
        self.config = config
        self.capacity = CapacityModel(config)
        self.max_single_request_tokens = self.capacity.max_single_request_tokens()
        if self.max_single_request_tokens <= config.decode_width:
            raise ConfigError(
                [f"device_blocks={config.device_blocks} cannot hold even a request of one token; raise device_blocks"]
            )
        longest_tokens = self.max_single_request_tokens + config.decode_width * (2 + config.overlap_depth)
        # A reserve may reach past the last token that a request can have: by a growth block at most.
        self._coordinator = CacheCoordinator(config, longest_tokens=longest_tokens + config.prefix_granularity)
        self.resident = ResidentTable(
            slots=config.max_batch_size,
            longest_tokens=longest_tokens,
            decode_width=config.decode_width,
            has_runs=decode_runs,
        )
        self._flights = FlightLog(self._coordinator)
        self._retraction_epochs = count(1)
        self.copies = HostCopies(config, self._coordinator, self._flights)
        self.admission = Admission(config, self._coordinator, self.resident, self.copies)
        self.requests: dict[int, Request] = {}
        self.transfers = Transfers(self._coordinator)
        self._line = Candidates(
            self._coordinator, max_overtakes=config.overtakes_allowed, hands_over=self.role is Role.PREFILL
        )
        self._feedback = Feedback(
            coordinator=self._coordinator,
            resident=self.resident,
            admission=self.admission,
            line=self._line,
            requests=self.requests,
            flights=self._flights,
            transfers=self.transfers,
            copies=self.copies,
            next_epoch=partial(next, self._retraction_epochs),
            role=self.role,
            recomputes_failed_transfers=config.recompute_failed_transfers,
        )
        self._stall_watch = StallWatch()
        self._stall_report: str | None = None
        self._build_plan = grammar_of(config)
        self._keys = count(1)
        self._round = 0
        self._repetition = Repetition(self.resident, self._line, decode_width=config.decode_width)
        self._prompt_tokens = 0
        self._submitted = 0

    def check(self, spec: RequestSpec) -> None:
        """Raise RequestRejected if no round could ever serve this request, with the numbers; else return."""
        prompt_tokens = spec.prompt_tokens
        if not prompt_tokens:
            raise RequestRejected("the prompt is empty: give at least one token", field="tokens")
        if view(spec.tokens).min() < 0:
            raise RequestRejected("a token id is negative", field="tokens")
        limit = self.max_single_request_tokens
        declared = spec.max_new_tokens
        if declared is not None and not 1 <= declared <= MAX_INT32:
            raise RequestRejected(
                f"max_new_tokens must be between 1 and {MAX_INT32}", field="max_new_tokens", max_new_tokens=declared
            )
        generated_here = 1 if self.role is Role.PREFILL else declared or 1
        wanted = prompt_tokens + max(generated_here, self.config.decode_width)
        if wanted > limit:
            raise RequestRejected(
                "prompt plus output is longer than one request may be here: shorten the prompt or lower max_new_tokens",
                field="max_new_tokens" if prompt_tokens < limit else "tokens",
                prompt_tokens=prompt_tokens,
                max_new_tokens=generated_here,
                limit_tokens=limit,
            )

    def max_new_tokens(self, spec: RequestSpec) -> int:
        """How many tokens this request may generate here: what it declared, or all that fits.

        On role P that is the one that its last chunk samples; the peer generates the others.
        """
        if self.role is Role.PREFILL:
            return 1
        if spec.max_new_tokens is not None:
            return spec.max_new_tokens
        return self.max_single_request_tokens - spec.prompt_tokens

    @property
    def has_room(self) -> bool:
        """Whether one more round may be planned before an earlier one's result is known."""
        return len(self._flights) <= self.config.overlap_depth

    def submit(self, specs: Sequence[RequestSpec]) -> list[int]:
        """Accept all of `specs` and return their internal keys; or raise RequestRejected and accept none."""
        for spec in specs:
            self.check(spec)
        if specs:
            self._repetition.something_happened()
        keys = []
        for spec in specs:
            request = self._request(next(self._keys), spec)
            self.requests[request.key] = request
            if self.role is Role.FUSED:
                self._line.waiting.join(request)
            else:
                self._line.bootstrapping[request.key] = request
            keys.append(request.key)
        return keys

    def advance(self, events: Sequence[Event]) -> list[Ended]:
        """Apply facts from outside, aborts first (R2.4). Returns the requests that the scheduler itself ended."""
        if len(events) == 1 and isinstance(events[0], ExtendResult) and self._feedback.land_in_run(events[0]):
            return []
        self._repetition.something_happened()
        for event in events:
            if isinstance(event, Abort) and (request := self.requests.get(event.key)) is not None:
                request.apply(event)
                self._drop_if_over(request)
        ended: list[Ended] = []
        for event in events:
            match event:
                case ExtendResult():
                    self._feedback.land(event)
                case ForwardFailed():
                    failed = self._feedback.fail(event)
                    for end in failed:
                        self._drop_if_over(self.requests.get(end.key))
                    ended += failed
                case Finish(key=key):
                    self._feedback.finish(event)
                    self._drop_if_over(self.requests.get(key))
                case Retract():
                    self._feedback.retract(event)
                case WriteBackDone():
                    self._feedback.stored(event)
                case LoadBackDone():
                    self._feedback.loaded(event)
                case Bootstrapped():
                    self._feedback.bootstrapped(event)
                case RemotePrefillDone():
                    self._feedback.remote_landed(event)
                case TransferSucceeded(key=key):
                    self._feedback.transfer_succeeded(event)
                    self._drop_if_over(self.requests.get(key))
                case TransferFailed(key=key):
                    ended += self._feedback.transfer_failed(event)
                    self._drop_if_over(self.requests.get(key))
                case Abort() | TokenLogprobs():
                    continue
        return ended

    def next_plan(self) -> ExecutionPlan:
        """The next round's plan. One without work is not a round: it changes nothing and need not be executed."""
        if (repeated := self._repetition.next_plan(self._round + 1)) is not None:
            self._round += 1
            self._flights.scheduled(repeated)
            return repeated
        build = PlanBuild(
            round_number=self._round + 1,
            budget_tokens=self.config.max_scheduled_tokens,
            decode_width=self.config.decode_width,
            groups=len(self.config.groups),
        )
        build.output.stores += self.copies.take_due()
        build.output.notes += self._feedback.take_notes()
        self._build_plan(self, build, AdmissionFeedback(), self._line)
        plan = build.finish(self._coordinator.tables)
        if plan.has_work:
            self._round += 1
            self._flights.scheduled(plan)
        self._repetition.planned(plan)
        if self._stall_watch.observe(is_stalled=not plan.has_work and self._is_stalled):
            self._stall_report = self._describe_stall()
        return plan

    @property
    def _is_stalled(self) -> bool:
        """Whether requests are live and nothing is out that could change what the next round finds."""
        awaits_others = self._flights or self._coordinator.host.is_moving or self.transfers or self._line.bootstrapping
        return bool(self.requests) and not awaits_others

    def take_stall_report(self) -> str | None:
        """What the stall watch has to say since it was last asked: nothing moves, and why the first in line waits."""
        report, self._stall_report = self._stall_report, None
        return report

    def void_keys(self, round_number: int) -> frozenset[int]:
        """Requests whose tokens from this round's forward must not reach their clients."""
        return self._flights.void_keys(round_number)

    def awaits_round(self, round_number: int) -> bool:
        """Whether that round's forward has not reported: what is told of another is late, or told twice."""
        return round_number in self._flights

    def awaits_peer(self, key: int, attempt: int) -> bool:
        """Whether a transfer of this request and attempt is going on, so that what it brings counts."""
        request = self.requests.get(key)
        is_waiting = request is not None and isinstance(request.state, RemotePrefilling)
        return is_waiting and self.transfers.is_awaited(key, attempt)

    @property
    def role(self) -> Role:
        """What part of a request's life is served here."""
        return self.config.role

    @property
    def is_mixed(self) -> bool:
        """Whether prefills may join decodes."""
        return self.config.mixed

    @property
    def recovers_in_order(self) -> bool:
        """Whether a request without pages on the host comes back before new prompts, too (R7.1)."""
        return self.config.role is Role.DECODE

    def residents(self) -> Iterator[Request]:
        """Every request that holds pages, in submission order."""
        return (request for request in self.requests.values() if resources_of(request.state) is not None)

    @property
    def rounds_in_flight(self) -> int:
        """Forwards that have not reported."""
        return len(self._flights)

    def next_retraction_epoch(self) -> int:
        """A number that rises with every retraction."""
        self._feedback.retractions[RetractionReason.CAPACITY] += 1
        return next(self._retraction_epochs)

    def explain(self, request_id: str) -> str:
        """Why a request is where it is, in words. `request_id` is the caller's; the latest of that name is meant."""
        for request in reversed(self.requests.values()):
            if request.spec.id == request_id:
                return explain(request, self._line, self.resident, tuple(group.id for group in self.config.groups))
        return "unknown, or over"

    def stats(self) -> SchedulerStats:
        """Gauges and counters."""
        used, cached, free = self._coordinator.counts()
        host_used, host_total = self._coordinator.host.counts()
        return SchedulerStats(
            running=self.resident.count,
            waiting=self._line.without_pages(),
            used_blocks=used,
            cached_blocks=cached,
            free_blocks=free,
            total_blocks=self.config.device_blocks,
            host_used_blocks=host_used,
            host_total_blocks=host_total,
            transfers_out=len(self.transfers),
            copies_out=self._coordinator.host.copies_out,
            rounds_in_flight=len(self._flights),
            stalled_rounds=self._stall_watch.rounds,
            rounds=self._round,
            requests=self._submitted,
            stored_blocks=self._coordinator.host.stored_blocks,
            loaded_blocks=self._coordinator.host.loaded_blocks,
            retractions=sum(self._feedback.retractions.values()),
            retraction_reasons=tuple(self._feedback.retractions.items()),
            groups=self.admission.hits.stats(self._coordinator.group_counts()),
            prompt_tokens=self._prompt_tokens,
            queried_tokens=self.admission.hits.queried_tokens,
            cached_tokens=self.admission.hits.tokens,
            generated_tokens=self._feedback.generated_tokens,
        )

    def block_uses(self, group: int) -> tuple[Int32s, list[int], dict[int, Int32s]]:
        """How often each block of a group is held, which are cached, and the table rows of every resident by key."""
        rows = {
            request.key: self._coordinator.tables.blocks(request.resources.slot, group) for request in self.residents()
        }
        return *self._coordinator.block_uses(group), rows

    def audit(self) -> list[str]:
        """Every invariant of the books that does not hold; empty when all is well."""
        problems = self._coordinator.audit()
        is_quiet = not self.requests and not self._coordinator.host.copies_out and not self.transfers
        if is_quiet and self._coordinator.counts()[0]:
            problems.append("no request is live, no copy or transfer is out, and yet blocks are held")
        if not self.requests and self.resident.count:
            problems.append(f"no request is live and yet {self.resident.count} slots are taken")
        waiting, resident = self._line.without_pages(), self.resident.count
        if waiting + resident != len(self.requests):
            problems.append(f"{len(self.requests)} live requests, but {waiting} waiting and {resident} resident")
        return problems

    def drain_kv_events(self) -> list[KvEvent]:
        """Prefix pages that became or ceased to be cached since the last call, net (R4.11). Off: nothing."""
        return self._coordinator.kv_events.drain()

    def clear_cache(self, *, also_host: bool = False) -> bool:
        """Drop the whole cache of the device, and of the host as well if asked to.

        False: a request, a copy or a transfer holds pages, and nothing was dropped.
        """
        if self.resident.count or self._coordinator.host.copies_out or self.transfers:
            return False
        self._repetition.something_happened()
        self._coordinator.clear_cache()
        if also_host:
            self._coordinator.host.clear()
        return True

    def _describe_stall(self) -> str:
        oldest = next(iter(self.requests.values()))
        reason = self.explain(oldest.spec.id)
        return (
            f"{self._stall_watch.rounds} rounds without work, {len(self.requests)} requests; {oldest.spec.id}: {reason}"
        )

    def _request(self, key: int, spec: RequestSpec) -> Request:
        chain: HashChain | NoHashChain = NoHashChain()
        if self.config.prefix_cache:
            chain = HashChain(namespace=spec.namespace, prefix_granularity=self.config.prefix_granularity)
        request = Request(
            key,
            spec,
            chain=chain,
            limit_tokens=spec.prompt_tokens + self.max_new_tokens(spec),
            awaits_peer=self.role is not Role.FUSED,
            release=self._release,
        )
        # Once, here, from the buffer: a waiting prompt is never hashed again.
        chain.extend(request.tokens, len(request.tokens))
        self._submitted += 1
        self._prompt_tokens += spec.prompt_tokens
        return request

    def _release(self, request: Request, resources: ForwardResources) -> None:
        """A move dropped the bundle: pages, slot and places in line are given back, in this one place."""
        slot = resources.slot
        self._line.leaves_pages(request, slot)
        if not self.transfers.owner_leaves(request.key, request.retraction_count, slot):
            self._coordinator.free(slot)
        self.resident.leave(slot)

    def _drop_if_over(self, request: Request | None) -> None:
        if request is None or not request.is_over:
            return
        del self.requests[request.key]
        self._line.drop(request)

"""What the control plane is told at start: plain numbers, checked all at once."""

from enum import StrEnum

from msgspec import Struct

from control_plane.errors import ConfigError

MAX_INT32 = 2**31 - 1


class Role(StrEnum):
    """What part of a request's life this engine serves."""

    FUSED = "fused"  # all of it
    PREFILL = "prefill"  # prompts, for a peer that decodes
    DECODE = "decode"  # the output of prompts that a peer prefilled


class GroupKind(StrEnum):
    """How a group's attention reads its history."""

    FULL = "full"  # all of it
    SLIDING = "sliding"  # the last `window` tokens
    STATE = "state"  # a snapshot that stands for all of it


class CacheGroupConfig(Struct, frozen=True, omit_defaults=True):
    """One attention structure and its blocks.

    A block covers `block_granularity` tokens (a divisor of the prefix granularity); `packing` of them fill one
    LCM block of the pool. `window` belongs to sliding groups: a query reads so many tokens, its own included. The
    rows of a `replayable` sliding group are never shared: after a prefix hit its window is fed again.
    """

    id: str
    kind: GroupKind = GroupKind.FULL
    block_granularity: int = 16
    packing: int = 1
    window: int = 0
    replayable: bool = False

    @property
    def is_prefix_closed(self) -> bool:
        """Whether a prefix is usable only if every block of it is there."""
        return self.kind is GroupKind.FULL

    @property
    def retention_tokens(self) -> int:
        """How many tokens back the next query reads, itself included; a snapshot is read by the token after it."""
        return 2 if self.kind is GroupKind.STATE else self.window

    @property
    def lookback_blocks(self) -> int:
        """Blocks before a boundary that the first query behind it reads (R4.3); of groups that are not closed."""
        return -(-(self.retention_tokens - 1) // self.block_granularity)

    def expired_rows(self, computed_tokens: int) -> int:
        """Leading table rows that no query reads any more once so many tokens are computed (R4.8)."""
        if self.is_prefix_closed:
            return 0
        return max(0, computed_tokens - self.retention_tokens + 1) // self.block_granularity

    def next_expiry(self, expired_rows: int) -> int | None:
        """Computed tokens at which the row after `expired_rows` rows expires; None: never."""
        if self.is_prefix_closed:
            return None
        return self.retention_tokens - 1 + (expired_rows + 1) * self.block_granularity


class SchedulerConfig(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The scheduler's settings. Spans are tokens, `device_blocks` counts LCM blocks without the null block.

    `max_batch_size` bounds the requests that hold pages, hence those of a round. `overlap_depth` is how many
    rounds may be planned before an earlier one's result is known. `mixed` puts prefills and decodes in one round.
    `max_context_tokens` is the model's limit on prompt plus output. `safe_steps` is the output that an admission
    prepays at once, `max_overtakes` how many later prompts may pass one that waits for blocks (None: any number).
    `sliding_prepay` makes a first chunk hold the growth of sliding groups that recycling cannot fund (R3.4).
    `kv_events` keeps a log of the pages that become and cease to be cached, for `Scheduler.drain_kv_events`.
    `host_blocks` are the LCM blocks of the host tier, where cached pages outlive the device's (0: there is none). With
    `recompute_failed_transfers` a decoding engine prefills itself what a peer failed to send; else the request fails.
    """

    prefix_granularity: int
    max_scheduled_tokens: int
    max_batch_size: int
    device_blocks: int
    groups: tuple[CacheGroupConfig, ...]
    max_context_tokens: int
    role: Role = Role.FUSED
    decode_width: int = 1
    overlap_depth: int = 0
    mixed: bool = True
    prefix_cache: bool = True
    safe_steps: int = 4096
    max_overtakes: int | None = 32
    sliding_prepay: bool = True
    kv_events: bool = False
    host_blocks: int = 0
    recompute_failed_transfers: bool = True

    @property
    def has_state(self) -> bool:
        """Whether chunks must end where snapshots can be shared."""
        return any(group.kind is GroupKind.STATE for group in self.groups)

    @property
    def replay_window_tokens(self) -> int:
        """What a prefix hit feeds again at most: the widest replayable window; 0: nothing (R3.7)."""
        return max((group.window for group in self.groups if group.replayable), default=0)

    @property
    def min_prefill_chunk_tokens(self) -> int:
        """The smallest budget with which any prefill can advance.

        A page where chunks must end on pages: for a snapshot, or on the way to a promotion boundary, which there can
        be where closed groups may hold more of a prefix than others. With replay, a window and progress behind it.
        """
        is_closed = {group.is_prefix_closed for group in self.groups if not group.replayable}
        may_promote = self.prefix_cache and len(is_closed) == 2
        if self.has_state or (may_promote and not self.replay_window_tokens):
            return self.prefix_granularity
        if window := self.replay_window_tokens:
            return window + max(window, self.prefix_granularity)
        return 1

    @property
    def overtakes_allowed(self) -> int | None:
        """How many later prompts may pass one that waits for blocks; None: any number.

        Split roles keep the order of submission: each engine could else hold what the other one waits for. (None is the
        reference's way, for comparing with it.)
        """
        if self.role is Role.FUSED or self.max_overtakes is None:
            return self.max_overtakes
        return 0

    def validate(self) -> None:
        """Raise ConfigError naming every field that cannot work, or return."""
        problems = _number_problems(self) or _relation_problems(self)
        if problems:
            raise ConfigError(problems)


def _number_problems(config: SchedulerConfig) -> list[str]:
    """Every field whose value is out of range on its own."""
    problems = []

    def check(field: str, value: object, low: int, high: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            problems.append(f"{field}={value!r} must be a whole number of at least {low}")
        elif not low <= value <= high:
            problems.append(f"{field}={value} must be between {low} and {high}")

    for field in ("prefix_granularity", "max_scheduled_tokens", "max_batch_size", "device_blocks"):
        check(field, getattr(config, field), 1, MAX_INT32)
    check("max_context_tokens", config.max_context_tokens, 2, MAX_INT32)
    check("host_blocks", config.host_blocks, 0, MAX_INT32)
    check("decode_width", config.decode_width, 1, 64)
    check("overlap_depth", config.overlap_depth, 0, 1)
    check("safe_steps", config.safe_steps, 1, MAX_INT32)
    if config.max_overtakes is not None:
        check("max_overtakes", config.max_overtakes, 0, MAX_INT32)
    if not config.groups:
        problems.append("groups=() must name at least one cache group")
    for index, group in enumerate(config.groups):
        check(f"groups[{index}].block_granularity", group.block_granularity, 1, MAX_INT32)
        check(f"groups[{index}].packing", group.packing, 1, 4096)
        is_sliding = group.kind is GroupKind.SLIDING
        low, high = (1, MAX_INT32) if is_sliding else (0, 0)
        check(f"groups[{index}].window (of a {group.kind} group)", group.window, low, high)
        if group.replayable and not is_sliding:
            problems.append(f"groups[{index}].replayable=True is for sliding groups, not for a {group.kind} group")
    for field in ("mixed", "prefix_cache", "sliding_prepay", "kv_events", "recompute_failed_transfers"):
        if not isinstance(getattr(config, field), bool):
            problems.append(f"{field}={getattr(config, field)!r} must be true or false")
    return problems


def _relation_problems(config: SchedulerConfig) -> list[str]:
    """Every pair of fields that contradict each other; each is in range on its own."""
    problems = []
    names = [group.id for group in config.groups]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(f"groups: the id {name!r} is used more than once; give each group its own")
    for index, group in enumerate(config.groups):
        if config.prefix_granularity % group.block_granularity:
            problems.append(
                f"groups[{index}].block_granularity={group.block_granularity} must divide "
                f"prefix_granularity={config.prefix_granularity}"
            )
        for field in ("device_blocks", "host_blocks"):
            blocks = getattr(config, field)
            if (blocks + 1) * group.packing > MAX_INT32:
                problems.append(
                    f"groups[{index}].packing={group.packing} times {field}={blocks} must stay below {MAX_INT32}"
                )
    if config.host_blocks and not config.prefix_cache:
        problems.append(
            f"host_blocks={config.host_blocks} keeps cached pages, but prefix_cache=False caches none: "
            f"switch prefix_cache on or set host_blocks=0"
        )
    decode_tokens = config.max_batch_size * config.decode_width
    least = config.min_prefill_chunk_tokens
    if config.max_scheduled_tokens < decode_tokens + least:
        problems.append(
            f"max_scheduled_tokens={config.max_scheduled_tokens} must exceed a full decode step "
            f"(max_batch_size={config.max_batch_size} x decode_width={config.decode_width} = {decode_tokens} tokens) "
            f"by the smallest prefill chunk ({least} tokens), or prefills could never join it: "
            f"lower max_batch_size or raise max_scheduled_tokens"
        )
    if config.has_state and config.replay_window_tokens:
        problems.append(
            "groups: a replayable group cannot be combined with a state group, whose chunk alignment fights its final "
            "window; make the sliding group ordinary"
        )
    return problems

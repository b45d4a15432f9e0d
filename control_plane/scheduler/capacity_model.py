"""What one request, or a full house, needs; known from the configuration, before any pool exists (R3.8)."""

from functools import cached_property

from control_plane.config import CacheGroupConfig, GroupKind, SchedulerConfig
from control_plane.scheduler.group_demands import state_growth_tokens


class CapacityModel:
    """Answers in blocks of each group. Reads nothing that depends on the pool but `device_blocks`."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        width, depth = config.decode_width, config.overlap_depth
        # The last token of a request is never fed, so a plain decode step needs no row beyond it. A step that feeds
        # drafts may write rows behind it, further so while an earlier step's accepted length is unknown.
        self._overshoot_tokens = max(0, width - 2 + depth * (width - 1))
        self._protected_tokens = max(depth * width, self._overshoot_tokens)

    def single_request_group_blocks(self, tokens: int) -> tuple[int, ...]:
        """Blocks that one request of `tokens` (prompt and output) may hold at once, by group, at the worst."""
        return tuple(self._single_blocks(index, tokens) for index in range(len(self._config.groups)))

    def concurrent_group_blocks(self, total_tokens: int, context_tokens: int) -> tuple[int, ...]:
        """Blocks for `max_batch_size` requests that hold `total_tokens` together, none above `context_tokens`.

        Full: dense history, and for each request the unaligned tail with the tokens that a step may protect beyond it.
        Sliding: for each request what its window and a step keep, and one prefill chunk in flight behind its
        lookback. State: the peak of one request for each, since it does not grow with history.
        """
        assert context_tokens > 0, "a context without tokens"
        requests = self._config.max_batch_size
        blocks = []
        for index, group in enumerate(self._config.groups):
            g = group.block_granularity
            single = self._single_blocks(index, context_tokens)
            match group.kind:
                case GroupKind.FULL:
                    tail = -(-(g - 1 + self._protected_tokens) // g)
                    blocks.append(-(-total_tokens // g) + requests * tail)
                case GroupKind.SLIDING:
                    kept_tokens = min(group.window - 1, context_tokens)
                    kept_tokens += self._config.decode_width + self._protected_tokens + g - 1
                    resident = requests * -(-kept_tokens // g)
                    chunk = -(-min(self._config.max_scheduled_tokens, total_tokens) // g)
                    blocks.append(max(resident + group.lookback_blocks + chunk, single))
                case GroupKind.STATE:
                    blocks.append(requests * single)
        return tuple(blocks)

    def lcm_blocks(self, group_blocks: tuple[int, ...]) -> int:
        """LCM blocks that hold these blocks of each group.

        Blocks that are given up one after the other leave gaps that only their own group can fill: where several
        share a parent, the live ones may straddle one parent more.
        """
        total = 0
        for blocks, group in zip(group_blocks, self._config.groups, strict=True):
            if group.packing > 1 and not group.is_prefix_closed and blocks > 1:
                total += -(-(blocks - 1) // group.packing) + 1
            else:
                total += -(-blocks // group.packing)
        return total

    def max_single_request_tokens(self) -> int:
        """The largest request that can run alone in an empty pool and within the model's context; 0: none can."""
        low, high = 0, self._config.max_context_tokens
        while low < high:
            middle = (low + high + 1) // 2
            if self.lcm_blocks(self.single_request_group_blocks(middle)) <= self._config.device_blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def _single_blocks(self, index: int, tokens: int) -> int:
        group = self._config.groups[index]
        match group.kind:
            case GroupKind.FULL:
                return self._dense_blocks(group, tokens)
            case GroupKind.SLIDING:
                return min(self._dense_blocks(group, tokens), self._sliding_blocks(group, tokens))
            case GroupKind.STATE:
                peaks = self._state_peaks[index]
                return peaks[min(tokens, len(peaks) - 1)]

    def _dense_blocks(self, group: CacheGroupConfig, tokens: int) -> int:
        return -(-(tokens + self._overshoot_tokens) // group.block_granularity)

    def _sliding_blocks(self, group: CacheGroupConfig, tokens: int) -> int:
        """What a window keeps, a chunk behind it, and the decode slot; at the worst alignment."""
        config = self._config
        chunk_tokens = max(min(config.max_scheduled_tokens, tokens), config.decode_width + self._protected_tokens)
        span_tokens = group.window - 1 + chunk_tokens + config.decode_width
        return -(-(span_tokens + group.block_granularity - 1) // group.block_granularity)

    @cached_property
    def _state_peaks(self) -> dict[int, list[int]]:
        """By group, the peak for a request of 0, 1, 2, ... tokens. Behind two pages it grows no more."""
        granularity = self._config.prefix_granularity
        peaks: dict[int, list[int]] = {}
        for index, group in enumerate(self._config.groups):
            if group.kind is GroupKind.STATE:
                peak, of_length = 0, [0]
                for tokens in range(1, 3 * granularity + 1):
                    peak = max(peak, self._state_blocks_at(group, tokens))
                    of_length.append(peak)
                peaks[index] = of_length
        return peaks

    def _state_blocks_at(self, group: CacheGroupConfig, end: int) -> int:
        """Snapshots held while the prefill completes at `end`, or while a decode step reaches it.

        The retained input, the checkpoint with all blocks up to the final state, and the growth block.
        """
        g, page = group.block_granularity, self._config.prefix_granularity
        growth_tokens = state_growth_tokens(group, self._config.decode_width)
        checkpoint = end - end % page
        rows_end = -(-(end + growth_tokens) // g)
        without = rows_end - (end - 1) // g + (end > page)
        with_checkpoint = rows_end - (checkpoint - 1) // g + (checkpoint > page) if 0 < checkpoint < end else 0
        lag_tokens = self._config.overlap_depth + 1
        decode = -(-(end + self._overshoot_tokens) // g) - max(0, end - 1 - lag_tokens) // g
        return max(without, with_checkpoint, decode)

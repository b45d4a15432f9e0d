"""What one request, or a full house, needs; known from the configuration, before any pool exists (R3.8)."""

from control_plane.config import SchedulerConfig


class CapacityModel:
    """Answers in blocks of each group. Reads nothing that depends on the pool but `device_blocks`."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        width, depth = config.decode_width, config.overlap_depth
        # The last token of a request is never fed, so a plain decode step needs no row beyond it. A step that feeds
        # drafts may write rows behind it, further so while an earlier step's accepted length is unknown.
        self._overshoot_tokens = max(0, width - 2 + depth * (width - 1))
        self._protected_tokens = width + depth * width

    def single_request_group_blocks(self, tokens: int) -> tuple[int, ...]:
        """Blocks that one request of `tokens` (prompt and output) may hold at once, by group."""
        end = tokens + self._overshoot_tokens
        return tuple(-(-end // group.block_granularity) for group in self._config.groups)

    def concurrent_group_blocks(self, total_tokens: int, context_tokens: int) -> tuple[int, ...]:
        """Blocks for `max_batch_size` requests that hold `total_tokens` together, none above `context_tokens`.

        Dense history, and for each request the unaligned tail with the tokens that a step may protect beyond it.
        """
        assert context_tokens > 0, "a context without tokens"
        blocks = []
        for group in self._config.groups:
            g = group.block_granularity
            tail = -(-(g - 1 + self._protected_tokens) // g)
            blocks.append(-(-total_tokens // g) + self._config.max_batch_size * tail)
        return tuple(blocks)

    def lcm_blocks(self, group_blocks: tuple[int, ...]) -> int:
        """LCM blocks that hold these blocks of each group."""
        groups = self._config.groups
        return sum(-(-blocks // group.packing) for blocks, group in zip(group_blocks, groups, strict=True))

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

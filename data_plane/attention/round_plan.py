"""Where one round writes and reads, computed once and used by every layer."""

import numpy as np
import torch
from msgspec import Struct

from control_plane.messages.columns import Int32s
from data_plane.attention.geometry import KvGeometry
from data_plane.attention.kernels import gather_bytes
from data_plane.attention.ship import ship
from data_plane.batch.rows import Rows

# Queries of one call in a prefill: small enough that the triangle above the diagonal is not computed in vain.
TILE_QUERIES = 512
# Decodes share a call while the shortest fills at least this part of its padded row.
LEAST_FILL = 0.75


class Tile(Struct, frozen=True):
    """Queries [begin, end) of an extend, over the keys [first_key, last_key) of its row.

    Queries are counted from the extend's first fed token, keys from the first one gathered. `mask` is bool
    [queries, keys]; None means the lower triangle of a square.
    """

    begin: int
    end: int
    first_key: int
    last_key: int
    mask: torch.Tensor | None


class ExtendRead(Struct, frozen=True):
    """One extend: its packed tokens [begin, end), and the strips to gather, if any.

    `strips` int64 [2, blocks] names layer 0's keys and values of every block to read; None means that the fed
    tokens are the whole history, so that their keys need not be gathered back.
    """

    begin: int
    end: int
    strips: torch.Tensor | None
    tiles: tuple[Tile, ...]


class DecodeRead(Struct, frozen=True):
    """Decodes of similar length: packed token of each (int64 [rows]), and strips to gather.

    `strips` is int64 [2, rows, blocks], layer 0; `mask` bool [rows, 1, 1, blocks * block_granularity].
    """

    tokens: torch.Tensor
    strips: torch.Tensor
    mask: torch.Tensor


class Reads(Struct, frozen=True):
    """Everything that layers of one window read."""

    extends: tuple[ExtendRead, ...]
    decodes: tuple[DecodeRead, ...]


class PackedTokens:
    """The fed tokens of a batch, one row's after the other: what all groups' plans have in common.

    `positions` and `slots` are int64 [tokens] on the device; row i has the packed tokens [starts[i], starts[i + 1]).
    """

    def __init__(self, rows: Rows, device: torch.device) -> None:
        assert (rows.input_lengths > 0).all(), "a row without tokens"
        fed = rows.input_lengths
        self.rows = rows
        self.starts: Int32s = np.concatenate([[0], np.cumsum(fed)]).astype(np.int32)
        within = np.arange(self.starts[-1]) - np.repeat(self.starts[:-1], fed)
        self.positions, self.slots = ship(
            [within + np.repeat(rows.prefix_lengths, fed), np.repeat(rows.slots, fed)], device
        )


class RoundPlan:
    """One batch over one group's block table (int32 [slots, blocks]): write rows, and reads of each window.

    `writes` int64 [tokens] are token rows of layer 0's keys, in packed order. Block tables are looked up on the
    device; lengths are the host's, so nothing here waits for the device.
    """

    def __init__(self, fed: PackedTokens, table: torch.Tensor, geometry: KvGeometry) -> None:
        self._rows = fed.rows
        self._starts = fed.starts
        self._table = table
        self._geometry = geometry
        self._reads: dict[int, Reads] = {}
        self._strips_per_block = geometry.layers * 2
        granularity = geometry.block_granularity
        blocks = table[fed.slots, fed.positions // granularity].long()
        self.writes = blocks * (self._strips_per_block * granularity) + fed.positions % granularity

    def reads(self, window: int) -> Reads:
        """What layers that see `window` tokens (0: all) read; computed when the first of them asks."""
        found = self._reads.get(window)
        if found is None:
            extends = tuple(self._read_extend(row, window) for row in range(self._rows.num_extends))
            found = self._reads[window] = Reads(extends, tuple(self._read_decodes(window)))
        return found

    def _read_extend(self, row: int, window: int) -> ExtendRead:
        prefix, end = int(self._rows.prefix_lengths[row]), int(self._rows.ends[row])
        begin_token, end_token = int(self._starts[row]), int(self._starts[row + 1])
        if prefix == 0:
            return ExtendRead(begin_token, end_token, None, self._tiles(prefix, end, 0, window))
        granularity = self._geometry.block_granularity
        first_block = _first_visible(prefix, window) // granularity
        blocks = self._table[int(self._rows.slots[row]), first_block : -(-end // granularity)].long()
        strips = torch.stack([blocks, blocks]) * self._strips_per_block
        strips[1] += 1
        return ExtendRead(begin_token, end_token, strips, self._tiles(prefix, end, first_block * granularity, window))

    def _tiles(self, prefix: int, end: int, origin: int, window: int) -> tuple[Tile, ...]:
        """Tiles over the queries at positions [prefix, end), with keys counted from position `origin`."""
        tiles = []
        for begin in range(prefix, end, TILE_QUERIES):
            stop = min(end, begin + TILE_QUERIES)
            first_key = max(origin, _first_visible(begin, window))
            square = first_key == begin and (window == 0 or stop - begin <= window)
            mask = None if square else self._causal_mask(begin, stop, first_key, window)
            tiles.append(Tile(begin - prefix, stop - prefix, first_key - origin, stop - origin, mask))
        return tuple(tiles)

    def _causal_mask(self, begin: int, stop: int, first_key: int, window: int) -> torch.Tensor:
        """Which keys at positions [first_key, stop) the queries at [begin, stop) may see."""
        device = self._table.device
        query = torch.arange(begin, stop, device=device)[:, None]
        key = torch.arange(first_key, stop, device=device)[None, :]
        return (key <= query) & (key > query - window) if window else key <= query

    def _read_decodes(self, window: int) -> list[DecodeRead]:
        rows, geometry = self._rows, self._geometry
        decodes = np.arange(rows.num_extends, rows.count)
        if not len(decodes):
            return []
        granularity = geometry.block_granularity
        ends = rows.ends[decodes]
        firsts = np.maximum(ends - window, 0) // granularity if window else np.zeros_like(ends)
        widths = -(-ends // granularity) - firsts
        reads = []
        for bucket in _buckets(widths, self._most_blocks_at_once()):
            chosen = decodes[bucket]
            tokens, slots, first, end = ship(
                [self._starts[chosen], rows.slots[chosen], firsts[bucket], ends[bucket]], self._table.device
            )
            width = int(widths[bucket].max())
            columns = first[:, None] + torch.arange(width, device=first.device)
            # Padding may point past the table's last column; what it reads instead is masked below.
            blocks = self._table[slots[:, None], columns.clamp(max=self._table.shape[1] - 1)].long()
            strips = torch.stack([blocks, blocks]) * self._strips_per_block
            strips[1] += 1
            key = first[:, None] * granularity + torch.arange(width * granularity, device=first.device)
            seen = key < end[:, None]
            if window:
                seen &= key >= end[:, None] - window
            reads.append(DecodeRead(tokens, strips, seen[:, None, None, :]))
        return reads

    def _most_blocks_at_once(self) -> int:
        strip_bytes = self._geometry.strip_elements * self._geometry.dtype.itemsize
        return max(1, gather_bytes(self._table.device) // (2 * strip_bytes))


def _first_visible(position: int, window: int) -> int:
    """First position that a query at `position` sees."""
    return max(0, position - window + 1) if window else 0


def _buckets(widths: Int32s, most_blocks: int) -> list[Int32s]:
    """Indices into `widths`, in groups that waste little padding and gather at most `most_blocks` (but one row)."""
    order = np.argsort(-widths, kind="stable").astype(np.int32)
    groups: list[Int32s] = []
    begin = 0
    while begin < len(order):
        widest = int(widths[order[begin]])
        like = int(np.count_nonzero(widths[order[begin:]] >= LEAST_FILL * widest))
        size = max(1, min(like, most_blocks // widest))
        groups.append(order[begin : begin + size])
        begin += size
    return groups

"""The part of an admission that gives: a request's completed pages go into the cache, what slid out goes back."""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import repeat

import numpy as np

from control_plane.cache.coordinator.demand import BoundaryKind, CacheProgress, Listed, RequestProgress
from control_plane.cache.coordinator.holdings import Holdings
from control_plane.cache.core.block_table import BlockTables
from control_plane.cache.prefix.index import PrefixIndex
from control_plane.config import CacheGroupConfig, GroupKind


class Step:
    """One request's publication and reclaim: done first, so that their room counts, and undone if nothing comes of it.

    Tables are written by `conclude` only, since every change of them is told to the data plane.
    """

    def __init__(
        self,
        tables: BlockTables,
        index: PrefixIndex,
        holdings: Holdings,
        groups: Sequence[CacheGroupConfig],
        *,
        open_groups: Sequence[tuple[int, CacheGroupConfig]],
        slot: int,
        progress: RequestProgress,
        pointed_at: Callable[[int, int], None],
    ) -> None:
        """`open_groups` are those that let rows slide out, by index.

        `pointed_at(group, block)` is told of every block of somebody else that comes into the table.
        """
        self._tables = tables
        self._index = index
        self._holdings = holdings
        self._groups = groups
        self._open_groups = open_groups
        self._slot = slot
        self._progress = progress
        self._pointed_at = pointed_at
        self._undo: list[Callable[[], object]] = []
        self._later: list[Callable[[], int]] = []
        self.listed: list[Listed] = []

    def publish(self) -> None:
        """List the blocks of the newly completed pages (R4.7); what is listed already replaces one's own (R4.10).

        If somebody holds the listed block, one's own is given back now: its room counts. If nobody does, it may be
        evicted for this very admission, so that is looked at again at the end.
        """
        new_pages = self._progress.completed_pages - self._progress.published_pages
        if not new_pages:
            return
        listed_at_once: set[int] = set()
        if new_pages > 1:
            closed = [group for group, spec in enumerate(self._groups) if spec.is_prefix_closed]
            listed_at_once.update(group for group in closed if self._list_whole_pages(group))
        for group, page, ordinal, row, kind in self._pieces(listed_at_once):
            digest = self._progress.digests[page]
            own = self._tables.block(self._slot, group, row)
            if not own:
                continue  # a peer wrote what the first step reads, which is less than a hit would
            canonical = self._index.find(group, ordinal, digest)
            if canonical is None:
                self._list(group, page, ordinal, own, kind)
                self._undo.append(partial(self._index.remove, group, own))
            elif canonical == own:
                self._holdings.listed(group, own, epoch=self._epoch, kind=kind)
            elif row < self._expired(group):
                self._holdings.listed(group, canonical, epoch=self._epoch, kind=kind)  # one's own slides out unnamed
            elif self._holdings.is_held(group, canonical):
                self._holdings.release([(group, own)])
                self._undo.append(partial(self._holdings.hold_again, group, own))
                self._later.append(partial(self._point_at, group, row, canonical, kind))
            else:
                self._later.append(partial(self._replace_or_list, group, page, ordinal, row, kind))

    def slide_out(self) -> None:
        """Let go of the rows that no query of this request reads any more (R4.8)."""
        for group, spec in self._open_groups:
            expired = min(spec.expired_rows(self._progress.computed_tokens), self._tables.held(self._slot, group))
            first = self._tables.live_from(self._slot, group)
            if expired <= first:
                continue
            for block in self._tables.blocks(self._slot, group)[first:expired].tolist():
                if block:
                    self._holdings.release([(group, block)])
                    self._undo.append(partial(self._holdings.hold_again, group, block))
            self._later.append(partial(self._make_holes, group, first, expired - first))

    def undo(self) -> None:
        """Nothing comes of it: leave everything as it was."""
        for action in reversed(self._undo):
            action()

    def conclude(self) -> int:
        """Write the tables. Returns how often room appeared."""
        return sum(action() for action in self._later)

    def progress_after(self) -> CacheProgress:
        """The request's progress once this step counts: records of what is covered by it are dropped."""
        before, published = self._progress.before, self._progress.completed_pages
        left = before.materialized
        if left:
            left = tuple(each for each in left if each[0] > published * self._page_tokens)
        return CacheProgress(published, before.access_epoch, before.promotion_boundary, left)

    @property
    def _epoch(self) -> int:
        return self._progress.before.access_epoch

    @property
    def _page_tokens(self) -> int:
        return self._groups[0].block_granularity * self._index.blocks_per_page[0]

    def _expired(self, group: int) -> int:
        return self._groups[group].expired_rows(self._progress.computed_tokens)

    def _pieces(self, but_not: Collection[int]) -> Iterator[tuple[int, int, int, int, BoundaryKind]]:
        """What is to be listed: (group, page, ordinal in the page, table row, kind), page by page.

        A closed group lists every block; a sliding one what a hit at the last of the boundaries would read, though
        part of it may be sliding out; a state group lists snapshots that were made at the page's end, and only those
        worth keeping (R4.6). Nothing of the groups `but_not`: their pages are listed.
        """
        materialized = self._progress.before.materialized
        if len(but_not) == len(self._groups):
            return
        for page in range(self._progress.published_pages, self._progress.completed_pages):
            recorded = self._progress.boundary_kind((page + 1) * self._page_tokens) if materialized else None
            for group, spec in enumerate(self._groups):
                per_page = self._index.blocks_per_page[group]
                if spec.replayable or group in but_not:
                    continue
                if spec.kind is GroupKind.STATE:
                    if recorded is not None and recorded > BoundaryKind.CHUNK:
                        yield group, page, per_page - 1, (page + 1) * per_page - 1, recorded
                    continue
                last = self._progress.completed_pages * per_page
                first = 0 if spec.is_prefix_closed else last - spec.lookback_blocks
                for ordinal in range(per_page):
                    row = page * per_page + ordinal
                    if row >= first:
                        yield group, page, ordinal, row, recorded or BoundaryKind.CHUNK

    def _list_whole_pages(self, group: int) -> bool:
        """List all new pages of a closed group at once, if nothing of them is listed yet, as is usual for a prompt.

        False: nothing was done, each piece is looked at by itself.
        """
        progress, per_page = self._progress, self._index.blocks_per_page[group]
        first, end = progress.published_pages, progress.completed_pages
        blocks = self._tables.blocks(self._slot, group)[first * per_page : end * per_page]
        if not blocks.all() or not self._index.lists_nothing_of(group, progress.digests[first:end]):
            return False
        self._index.insert_pages(group, progress.digests, first, end, blocks.tolist())
        ends = (np.arange(first * per_page, end * per_page, dtype=np.int32) // per_page + 1) * self._page_tokens
        self._holdings.first_listed_together(group, blocks, epoch=self._epoch, ends=ends)
        listed = list(zip(repeat(group), blocks.tolist(), ends.tolist(), strict=False))
        self.listed += listed
        self._undo.append(partial(self._unlist, listed))
        return True

    def _unlist(self, listed: Sequence[Listed]) -> None:
        for group, block, _ in listed:
            self._index.remove(group, block)

    def _list(self, group: int, page: int, ordinal: int, own: int, kind: BoundaryKind) -> None:
        digests = self._progress.digests
        self._index.insert(group, ordinal, digests[page], own, parent=digests[page - 1] if page else None)
        end = (page + 1) * self._page_tokens
        self._holdings.first_listed(group, own, epoch=self._epoch, kind=kind, end=end)
        self.listed.append((group, own, end))

    def _point_at(self, group: int, row: int, canonical: int, kind: BoundaryKind) -> int:
        self._holdings.share(group, canonical)
        self._holdings.listed(group, canonical, epoch=self._epoch, kind=kind)
        self._tables.replace(self._slot, group, row, canonical)
        self._pointed_at(group, canonical)
        return 1

    def _replace_or_list(self, group: int, page: int, ordinal: int, row: int, kind: BoundaryKind) -> int:
        own = int(self._tables.blocks(self._slot, group)[row])
        canonical = self._index.find(group, ordinal, self._progress.digests[page])
        if canonical is None:
            self._list(group, page, ordinal, own, kind)
            return 0
        self._holdings.release([(group, own)])
        return self._point_at(group, row, canonical, kind)

    def _make_holes(self, group: int, first: int, count: int) -> int:
        self._tables.make_holes(self._slot, group, first, count)
        return 1

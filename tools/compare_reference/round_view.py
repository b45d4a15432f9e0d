"""What a round does, apart from which slot and block it does it with: the words of the comparison."""

from msgspec import Struct, structs


class ExtendRow(Struct, frozen=True):
    """A chunk of a prompt: tokens `[first, end)` of `prefill`, `replayed` before them fed once more."""

    name: str
    first: int
    end: int
    replayed: int
    prefill: int

    @property
    def samples(self) -> bool:
        """Whether the prompt is complete with it, so that its forward brings a token."""
        return self.end >= self.prefill


class RoundView(Struct, frozen=True):
    """One round. Counts of blocks are by group; `available` is None where it is no simple number."""

    extends: tuple[ExtendRow, ...]
    decodes: tuple[str, ...]
    remote_prefills: tuple[tuple[str, int, int], ...]  # name, first token that the peer writes, end
    remote_decodes: tuple[str, ...]
    new_blocks: tuple[int, ...]
    stored: tuple[int, ...]  # held until they are on the host
    given_away: tuple[int, ...]  # stored as well, and held by nobody
    loaded: tuple[int, ...]
    waiting: int  # requests without pages, when all was decided
    available: int | None  # blocks that could be had then

    @property
    def has_forward(self) -> bool:
        """Whether the model computes anything."""
        return bool(self.extends or self.decodes)

    @property
    def has_copies(self) -> bool:
        """Whether blocks go to the host or come from there."""
        return any(self.stored) or any(self.given_away) or any(self.loaded)

    @property
    def has_work(self) -> bool:
        """Whether anything is executed."""
        return self.has_forward or self.has_copies or bool(self.remote_prefills or self.remote_decodes)

    def by_one_guard(self) -> "RoundView":
        """The same, with all that is stored in the round counted as given away."""
        total = tuple(sum(pair) for pair in zip(self.stored, self.given_away, strict=True))
        return structs.replace(self, stored=(0,) * len(total), given_away=total)

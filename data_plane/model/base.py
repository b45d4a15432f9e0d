"""What the executor needs of a model, whichever it is. Nothing here imports torch or cupy."""

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from control_plane.messages import SlotBinding
from control_plane.messages.columns import Int32s
from data_plane.batch.rows import Rows


class GroupLayout(Struct, frozen=True):
    """One cache group as storage: `block_bytes` hold `block_granularity` tokens of all of its `layers`.

    `packing` such blocks fill one LCM block exactly: block `b` of the group starts at byte `b * block_bytes` of
    the arena, which the group sees as one array of blocks (block 0 is null and never written). `kind` is "full",
    "sliding" (a query at position q reads the rows of `window` tokens that end with q) or "state" (a block holds one
    snapshot: the state after T tokens is in table row `(T - 1) // block_granularity`). The rows of a `replayable`
    sliding group are regenerated from tokens that are fed again, and never shared.
    """

    id: str
    kind: str
    block_granularity: int
    block_bytes: int
    packing: int = 1
    layers: tuple[int, ...] = ()
    window: int = 0
    replayable: bool = False


class ModelFacts(Struct, frozen=True):
    """Plain facts about a loaded model, safe to keep. `stop_token_ids` end a generation (end of sequence).

    `has_logits` says whether tokens are chosen from logits, so that all settings of `Sampling` do what they say.
    """

    name: str
    vocab_size: int
    max_context_tokens: int
    stop_token_ids: tuple[int, ...]
    groups: tuple[GroupLayout, ...]
    dtype: str
    weights_bytes: int
    has_logits: bool = False


class DeviceMemory(Protocol):
    """Where blocks and tables are. Arrays are numpy on a CPU and cupy on CUDA (torch shares either)."""

    def blocks(self, group: int) -> Any:
        """The arena as the group sees it: uint8 [blocks, block_bytes], block 0 null."""
        ...

    def table(self, group: int) -> Any:
        """Block tables of every slot: int32 [slots, blocks of the longest context]; 0 is a hole."""
        ...


class ModelRunner(Protocol):
    """A model that computes rows through block tables and says which token comes next."""

    @property
    def facts(self) -> ModelFacts:
        """What the model is."""
        ...

    def attach(self, memory: DeviceMemory, *, slots: int) -> None:
        """Once, before the first round: the memory to read and write, and how many slots there are."""
        ...

    def bind(self, binding: SlotBinding) -> None:
        """A slot has a new owner. Called in order with `run`, on the same thread."""
        ...

    def run(self, rows: Rows) -> Callable[[], Int32s]:
        """Compute one batch: write every fed row, sample where `rows.samples` says so.

        Enqueues device work on the current stream without waiting for it. The returned function is called
        once the batch's completion event has passed; it gives the sampled tokens (int32, one for each
        sampling row, in row order). Raises on any fault of the model: the round's requests then fail.
        """
        ...

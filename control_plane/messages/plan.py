"""What the control plane asks for: a request as it enters, and the plan of one round.

The fields of `ExecutionPlan` stand in the order in which the data plane executes them. Columns are
little-endian int32 bytes (`columns.view` reads one without a copy); lengths and positions are tokens.
"""

from enum import StrEnum

from msgspec import Struct

from control_plane.messages.columns import count

NO_LOGPROBS = -1


class Sampling(Struct, frozen=True, omit_defaults=True):
    """How the next token of one request is chosen. The defaults are greedy.

    `temperature` 0 takes the most likely token. `top_k` 0, `top_p` 1 and `min_p` 0 switch a filter off.
    Draws depend on (`seed`, position of the token) and on nothing else, so neither the batch nor a
    retraction changes them. Penalties: repetition over prompt and output; presence and frequency over output.
    `logit_bias` has (token, what is added to its logit). None of `suppressed_ids` is chosen before `min_tokens` others
    were. `grammar` is what the output must match, in llguidance's notation ("": anything). `logprobs` is how many of
    the likeliest tokens are reported beside the chosen one, with their log probabilities (NO_LOGPROBS: not even that).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    suppressed_ids: tuple[int, ...] = ()
    grammar: str = ""
    logprobs: int = NO_LOGPROBS

    @property
    def has_penalties(self) -> bool:
        """Whether tokens that were seen or written weigh differently."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def needs_history(self) -> bool:
        """Whether the sampler must know the tokens before this one."""
        return bool(self.grammar) or self.has_penalties


class RequestSpec(Struct, frozen=True, omit_defaults=True):
    """What a client asked for, as it enters.

    `id` is the caller's and for people; it need not be unique. `tokens` is the prompt as an int32 column
    (`columns.pack`). `max_new_tokens` None means undeclared: as many as fit. `namespace` separates caches.
    Generation stops at any of `stop_token_ids` (the model's end-of-sequence tokens are put there by the door).
    """

    id: str
    tokens: bytes
    max_new_tokens: int | None = None
    namespace: str = ""
    stop_token_ids: tuple[int, ...] = ()
    sampling: Sampling = Sampling()

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return count(self.tokens)


class StoreSourceGuard(StrEnum):
    """What keeps a store's device sources intact until they were copied. Every store names one."""

    STREAM_ORDERED = "stream-ordered"  # sources are given away now; the stream orders the copy first
    PINNED_UNTIL_ACK = "pinned-until-ack"  # sources stay referenced until the copy is acknowledged


class Store(Struct, frozen=True, array_like=True, gc=False):
    """Copy blocks of one group from the device to the host; `WriteBackDone(op)` acknowledges it."""

    op: int
    guard: StoreSourceGuard
    group: int
    sources: bytes
    destinations: bytes


class BlockList(Struct, frozen=True, array_like=True, gc=False):
    """Blocks of one group."""

    group: int
    blocks: bytes


class LoadBack(Struct, frozen=True, array_like=True, gc=False):
    """Copy blocks of one group from the host to the device; `LoadBackDone(op)` acknowledges it."""

    op: int
    group: int
    sources: bytes
    destinations: bytes


class TableEdit(Struct, frozen=True, array_like=True, gc=False):
    """Set `table[slot, first : first + len(blocks)]` of one group. Block 0 is a hole.

    An edit without blocks clears the slot's row from `first` on: that is how a slot is released.
    """

    slot: int
    group: int
    first: int
    blocks: bytes


NOT_SAMPLED = -1


class SlotBinding(Struct, frozen=True, array_like=True, gc=False):
    """A slot got a new owner: what the data plane must know of it to sample.

    `history` holds every known token of the request if its sampling needs them, else nothing; the first
    `prompt_tokens` of them are the prompt. `last_token` is the one that its next decode feeds, where that was not
    sampled here: a peer did (NOT_SAMPLED: a forward of this device will).
    """

    slot: int
    key: int
    prompt_tokens: int
    history: bytes
    sampling: Sampling
    last_token: int = NOT_SAMPLED


class RemoteWork(Struct, frozen=True, array_like=True, gc=False):
    """Requests whose pages a peer reads (`remote_decode`) or writes (`remote_prefill`), one entry a request.

    Tokens `[begins, ends)` of each are transferred; what lies before is there already, but for replayable groups: of
    those nothing is, and the window before `ends` is transferred, whatever `begins` says. `attempts` tells transfers of
    one request apart: events that name another attempt are late. `tokens` has the token that follows each prompt, where
    it was sampled here (`remote_decode`).
    """

    keys: bytes
    slots: bytes
    begins: bytes
    ends: bytes
    attempts: bytes
    tokens: bytes = b""


class ForwardBatch(Struct, frozen=True, array_like=True, gc=False):
    """The model's part of a round as columns: extends first, in plan order, then decodes.

    One entry a row in `keys`, `slots`, `input_lengths` (tokens fed) and `prefix_lengths` (position of the
    first token fed); one an extend in `prefill_lengths` (tokens the request must prefill: the row samples
    if its end reaches them), `replay_lengths` (fed tokens that only regenerate replayable groups) and
    `checkpoints` (aligned state position to materialize, 0: none). `input_ids` holds the extends' tokens one
    after the other; a decode feeds the token that its slot sampled last.
    """

    keys: bytes
    slots: bytes
    num_extends: int
    input_lengths: bytes
    prefix_lengths: bytes
    prefill_lengths: bytes
    replay_lengths: bytes
    checkpoints: bytes
    input_ids: bytes
    decode_width: int

    @property
    def row_count(self) -> int:
        """How many requests take part."""
        return count(self.keys)


class NoteKind(StrEnum):
    """The decisions a round can leave a mark of. The comment says what `numbers` hold."""

    HIT = "hit"  # prefix tokens taken from the cache, and how many of them the host had to give back
    BLOCKED = "blocked"  # group that lacked blocks, blocks asked for, blocks that could be had
    LINE_HELD = "line-held"  # tokens of the prompt still to compute
    NO_SLOT = "no-slot"  # requests that hold slots
    SEALED = "sealed"  # admissions that overtook this request
    # tokens known, blocks given back, retractions of this request so far, key served; then why it was chosen: residents
    # that could give way, residents that were spared, and whether (1, 0) its prefill was incomplete, it was the last
    # resort, it comes back before new prompts
    RETRACTED = "retracted"
    ROLLED_BACK = "rolled-back"  # tokens known: it read what was never written, and prefills again
    READMITTED = "readmitted"  # blocks that could be had before it came back, retractions so far
    RESTARTED = "restarted"  # tokens of the prompt scheduled before, blocks given back
    EVICTED = "evicted"  # group, cached blocks evicted
    LOADED = "loaded"  # blocks that come from the host, then the operations that bring them
    STORED = "stored"  # blocks that go to the host before they are given away, then the operations
    DEFERRED = "deferred"  # nobody is retracted yet: load-backs out, stores out that hold blocks, forwards out
    AWAITS_STORE = "awaits-store"  # its pages are on their way to the host
    AWAITS_RECOVERY = "awaits-recovery"  # key of a retracted request that comes back first
    NO_BUDGET = "no-budget"  # tokens of the round's budget that were left, too few for it and those behind it


class Note(Struct, frozen=True, array_like=True, gc=False):
    """One word on why something did or did not happen, for people; `key` 0: nobody in particular."""

    kind: NoteKind
    key: int
    numbers: tuple[int, ...] = ()


class ExecutionPlan(Struct, frozen=True, array_like=True, gc=False):
    """All the work of one round, in the order in which it is executed."""

    round: int
    stores: tuple[Store, ...]  # read the old bytes
    zero: tuple[BlockList, ...]  # make blocks clean for the new owner
    load_backs: tuple[LoadBack, ...]  # fill clean blocks from the host
    tables: tuple[TableEdit, ...]  # tell the device which slots point where now
    bindings: tuple[SlotBinding, ...]  # and who owns them
    remote_prefill: RemoteWork | None
    remote_decode: RemoteWork | None
    forward: ForwardBatch | None  # the model's work, last of the device's
    notes: tuple[Note, ...]  # for people: why something did or did not happen

    @property
    def has_work(self) -> bool:
        """Whether there is anything that cannot wait for a later plan (edits that only release can)."""
        return bool(self.forward or self.stores or self.load_backs or self.remote_prefill or self.remote_decode)

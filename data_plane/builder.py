"""Puts the device side together: options in, plain facts and a handle out. All else stays local to it."""

import logging
from collections.abc import Callable, Sequence

from msgspec import Struct

from control_plane.errors import ConfigError
from data_plane.accesses import Accesses, NoAccesses, PlanAccesses
from data_plane.capacity import free_memory_bytes
from data_plane.cuda import has_cuda, load_cupy
from data_plane.executor import Executor
from data_plane.forward_thread import Deliver, Forward, ForwardInline, ForwardThread
from data_plane.handle import DeviceHandle, MakeForward
from data_plane.lost import Lost
from data_plane.memory.arena import Arena
from data_plane.memory.device_memory import ArenaMemory
from data_plane.memory.host_pages import HostPages
from data_plane.memory.layout import ArenaLayout, plan_layout
from data_plane.memory.tables import CudaTables, HostTables
from data_plane.model.base import GroupLayout, ModelFacts, ModelRunner
from data_plane.model.stamp import StampOptions, StampRunner
from data_plane.ops.block_copies import BlockCopies, CudaBlockCopies, HostBlockCopies
from data_plane.ops.host_tier import HostTier, NoHostTier, StreamedHostTier
from data_plane.ops.remote import DeviceParts, MakeRemote, NoRemote, Remote
from data_plane.ops.table_edits import CudaTableEdits, HostTableEdits, TableEdits
from data_plane.ops.zeroing import CudaZeroing, HostZeroing, Zeroing
from data_plane.ordering import OrderChecker, Violation
from data_plane.rounds import Rounds
from data_plane.streams.base import Streams
from data_plane.streams.host_streams import HostStreams
from data_plane.streams.inline_streams import InlineStreams
from data_plane.streams.ordered_streams import STREAM_NAMES, OrderedStreams

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")

Progress = Callable[[str], None]
FullHouse = Callable[[tuple[GroupLayout, ...], int], int]
"""(groups, tokens of the longest context) -> parents that as many requests as may run could use at once"""
WrapCopies = Callable[[BlockCopies], BlockCopies]

log = logging.getLogger("tokenspeed.device")


class DeviceOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the device side is asked to be. Spans are tokens.

    `model` is a name that the registry knows, a folder, a file, or "stamp". At most one of `device_blocks` (parents
    without the null one) and `memory_bytes` is given; with neither, the pool takes what a full house can use, within
    a part of the memory that is free. At most one of `host_blocks` (parents) and `host_memory_bytes` is given for a
    host tier, where blocks outlive the device's; with neither there is none. `threads` bounds the CPU threads of one
    operation (None: as many as there are cores). A dtype of "auto" is float32 on a CPU and the model's own on CUDA.
    With `check_order` every pair of operations on the streams is checked for an order between them (`ordering.py`),
    which takes time.
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    prefix_granularity: int = 16
    max_batch_size: int = 64
    max_context_tokens: int | None = None
    device_blocks: int | None = None
    memory_bytes: int | None = None
    host_blocks: int = 0
    host_memory_bytes: int | None = None
    threads: int | None = None
    check_order: bool = False

    def validate(self) -> None:
        """Raise ConfigError naming every field that cannot work, or return."""
        problems = []
        if not self.model:
            problems.append("model='' must name a model, a folder or a file")
        if self.device not in DEVICES:
            problems.append(f"device={self.device!r} must be one of {', '.join(DEVICES)}")
        if self.dtype not in DTYPES:
            problems.append(f"dtype={self.dtype!r} must be one of {', '.join(DTYPES)}")
        least = {
            "prefix_granularity": 1,
            "max_batch_size": 1,
            "max_context_tokens": 2,
            "device_blocks": 1,
            "memory_bytes": 1,
            "host_blocks": 0,
            "host_memory_bytes": 1,
            "threads": 1,
        }
        for field, low in least.items():
            value = getattr(self, field)
            if value is not None and not low <= value:
                problems.append(f"{field}={value} must be at least {low}")
        if self.device_blocks is not None and self.memory_bytes is not None:
            problems.append(
                f"device_blocks={self.device_blocks} and memory_bytes={self.memory_bytes} both size the pool: give one"
            )
        if self.host_blocks and self.host_memory_bytes is not None:
            problems.append(
                f"host_blocks={self.host_blocks} and host_memory_bytes={self.host_memory_bytes} both size the host "
                f"tier: give one"
            )
        if self.model == "stamp" and self.device == "cuda":
            problems.append("device='cuda' is not for model='stamp', which computes nothing: use device='cpu'")
        if problems:
            raise ConfigError(problems)


class DeviceSpecs(Struct, frozen=True):
    """Plain facts about the device side, safe to keep. `groups` have their final packing.

    `device_blocks` and `host_blocks` are parents of `parent_bytes` without the null one. `max_context_tokens` is what
    was asked for, or else what the model can do.
    """

    model: str
    device: str
    dtype: str
    vocab_size: int
    max_context_tokens: int
    stop_token_ids: tuple[int, ...]
    weights_bytes: int
    groups: tuple[GroupLayout, ...]
    prefix_granularity: int
    max_batch_size: int
    device_blocks: int
    host_blocks: int
    parent_bytes: int
    tokenizer_path: str | None = None


def describe_device(
    options: DeviceOptions,
    *,
    runner: ModelRunner | None = None,
    progress: Progress = log.info,
    full_house: FullHouse | None = None,
) -> DeviceSpecs:
    """The facts of the device that `build_device` would build: the model is loaded, no pool is taken."""
    specs, _, _ = _plan(options, runner, progress, full_house)
    return specs


def build_device(
    options: DeviceOptions,
    *,
    runner: ModelRunner | None = None,
    progress: Progress = log.info,
    full_house: FullHouse | None = None,
    inline: bool = False,
    streams: Callable[[], Streams] | None = None,
    forward: MakeForward | None = None,
    copies: WrapCopies = lambda inner: inner,
    remote: MakeRemote | None = None,
) -> tuple[DeviceSpecs, DeviceHandle]:
    """Load the model, lay out its memory, and return the facts and a handle that is not started yet.

    `runner` is used instead of what `options.model` names: a stamp model of another shape, a model that is made to
    fail (on the CPU unless `device` says otherwise). `progress` gets a line for people now and then. `full_house`
    says how many parents the pool could use at all when no size is given: whoever plans knows. An `inline` device has
    no threads and executes and answers within `execute`, for tests and simulation on a CPU; `streams` and `forward`
    replace its own, or those of any device. `copies` may stand around what copies between the tiers, to make it fail
    (`ops/faulty_copies.py`). `remote` makes what does the work for a peer (`transfer/`). Raises ConfigError naming
    every problem found.
    """
    specs, layout, runner = _plan(options, runner, progress, full_house)
    for line in layout.lines(specs.device_blocks, host_blocks=specs.host_blocks):
        progress(line)
    if streams is None and specs.device == "cpu":
        streams = InlineStreams if inline else HostStreams
    if forward is None:
        forward = ForwardInline if inline else ForwardThread
    return specs, _assemble(specs, layout, runner, streams, forward, copies, remote, check_order=options.check_order)


def _plan(
    options: DeviceOptions, runner: ModelRunner | None, progress: Progress, full_house: FullHouse | None
) -> tuple[DeviceSpecs, ArenaLayout, ModelRunner]:
    options.validate()
    device = _device(options, runner)
    tokenizer_path = None
    if runner is None:
        runner, tokenizer_path = _load(options, device, progress)
    layout = plan_layout(runner.facts.groups)
    return _specs(options, device, runner.facts, layout, tokenizer_path, full_house), layout, runner


def _device(options: DeviceOptions, runner: ModelRunner | None) -> str:
    """Where it runs. A stamp model needs no look for CUDA, which would load what it does without.

    Raises ConfigError when CUDA was asked for and is not there: better now than after loading a model.
    """
    if options.device == "cuda":
        load_cupy()
    if options.device != "auto":
        return options.device
    if runner is not None or options.model == "stamp":
        return "cpu"
    return "cuda" if has_cuda() else "cpu"


def _load(options: DeviceOptions, device: str, progress: Progress) -> tuple[ModelRunner, str | None]:
    if options.model == "stamp":
        stamp = StampOptions()
        if options.max_context_tokens is not None:
            stamp = StampOptions(max_context_tokens=options.max_context_tokens)
        return StampRunner(stamp, block_granularity=options.prefix_granularity), None
    # Loaded here and not above: a stamp device must not bring torch into the process.
    import torch

    from data_plane.model.registry import load_model

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    loaded = load_model(
        options.model,
        device=device,
        dtype=options.dtype,
        block_granularity=options.prefix_granularity,
        progress=progress,
    )
    return loaded.runner, None if loaded.tokenizer_path is None else str(loaded.tokenizer_path)


def _specs(
    options: DeviceOptions,
    device: str,
    facts: ModelFacts,
    layout: ArenaLayout,
    tokenizer_path: str | None,
    full_house: FullHouse | None,
) -> DeviceSpecs:
    """The facts, with the size of the pool decided. Raises ConfigError."""
    problems = []
    context = options.max_context_tokens or facts.max_context_tokens
    if context > facts.max_context_tokens:
        problems.append(
            f"max_context_tokens={context} must be at most {facts.max_context_tokens}, which the model {facts.name} "
            f"can do"
        )
    for group in layout.groups:
        if options.prefix_granularity % group.block_granularity:
            problems.append(
                f"prefix_granularity={options.prefix_granularity} must be a multiple of {group.block_granularity}, "
                f"the block granularity of group {group.id!r}"
            )
    device_blocks = options.device_blocks
    if options.memory_bytes is not None:
        device_blocks = options.memory_bytes // layout.parent_bytes - 1
        if device_blocks < 1:
            problems.append(
                f"memory_bytes={options.memory_bytes} must be at least {2 * layout.parent_bytes}: room for the null "
                f"parent and one more of {layout.parent_bytes} bytes"
            )
    host_blocks = options.host_blocks
    if options.host_memory_bytes is not None:
        host_blocks = options.host_memory_bytes // layout.parent_bytes - 1
        if host_blocks < 1:
            problems.append(
                f"host_memory_bytes={options.host_memory_bytes} must be at least {2 * layout.parent_bytes}: room for "
                f"the null parent and one more of {layout.parent_bytes} bytes"
            )
    if problems:
        raise ConfigError(problems)
    if device_blocks is None:
        device_blocks = max(1, free_memory_bytes(device) // layout.parent_bytes - 1)
        if full_house is not None:
            device_blocks = min(device_blocks, full_house(layout.groups, context))
    return DeviceSpecs(
        model=facts.name,
        device=device,
        dtype=facts.dtype,
        vocab_size=facts.vocab_size,
        max_context_tokens=context,
        stop_token_ids=facts.stop_token_ids,
        weights_bytes=facts.weights_bytes,
        groups=layout.groups,
        prefix_granularity=options.prefix_granularity,
        max_batch_size=options.max_batch_size,
        device_blocks=device_blocks,
        host_blocks=host_blocks,
        parent_bytes=layout.parent_bytes,
        tokenizer_path=tokenizer_path,
    )


def _assemble(
    specs: DeviceSpecs,
    layout: ArenaLayout,
    runner: ModelRunner,
    make_streams: Callable[[], Streams] | None,
    forward: MakeForward,
    wrap_copies: WrapCopies,
    make_remote: MakeRemote | None,
    *,
    check_order: bool,
) -> DeviceHandle:
    """The arena, the tables, the streams (None: those of CUDA) and the executor over them."""
    slots, groups = specs.max_batch_size, len(layout.groups)
    # A planner may hold blocks past the last token of the longest request: by less than a prefix page.
    longest_tokens = specs.max_context_tokens + specs.prefix_granularity
    widths = [-(-longest_tokens // group.block_granularity) for group in layout.groups]
    block_counts = [(specs.device_blocks + 1) * group.packing for group in layout.groups]
    arena = Arena(layout, device_blocks=specs.device_blocks, device=specs.device)
    pages = HostPages(layout, host_blocks=specs.host_blocks, device=specs.device) if specs.host_blocks else None
    tables: HostTables
    edits: TableEdits
    zeroing: Zeroing
    if specs.device == "cpu":
        tables = HostTables(slots=slots, widths=widths, block_counts=block_counts)
        memory = ArenaMemory(layout, arena, tables)
        edits, zeroing = HostTableEdits(tables), HostZeroing(memory, groups=groups)
    else:
        tables = cuda_tables = CudaTables(slots=slots, widths=widths, block_counts=block_counts)
        memory = ArenaMemory(layout, arena, tables)
        edits, zeroing = CudaTableEdits(cuda_tables), CudaZeroing(memory, groups=groups)
    streams = _cuda_streams() if make_streams is None else make_streams()
    accesses: Accesses = NoAccesses()
    violations: Sequence[Violation] = ()
    if check_order:
        checker = OrderChecker([group.packing for group in layout.groups], STREAM_NAMES)
        streams, violations = OrderedStreams(streams, checker), checker.violations
        accesses = PlanAccesses(layout.groups, slots=slots, widths=widths, block_counts=block_counts)
    remote: Remote = NoRemote()
    try:
        runner.attach(memory, slots=slots)
        if make_remote is not None:
            remote = make_remote(DeviceParts(layout.groups, slots, tables, memory, streams, specs.device))
        if specs.device == "cuda":
            # What was loaded and zeroed so far ran on other streams than the rounds will.
            load_cupy().cuda.Device().synchronize()
    except BaseException:
        streams.close()
        raise
    lost = Lost(layout.groups, tables)
    host_tier: HostTier = NoHostTier()
    if pages is not None:
        make_copies = HostBlockCopies if specs.device == "cpu" else CudaBlockCopies
        host_tier = StreamedHostTier(
            streams=streams,
            copies=wrap_copies(make_copies(memory, pages, groups=groups)),
            accesses=accesses,
            lost=lost,
            block_bytes=[group.block_bytes for group in layout.groups],
            device_counts=block_counts,
            host_counts=[(specs.host_blocks + 1) * group.packing for group in layout.groups],
        )
    executor = Executor(
        streams=streams,
        zeroing=zeroing,
        tables=edits,
        runner=runner,
        host_tier=host_tier,
        remote=remote,
        accesses=accesses,
        lost=lost,
    )

    def make_forward(rounds: Rounds, deliver: Deliver) -> Forward:
        remote.start(deliver)
        return forward(rounds, deliver)

    return DeviceHandle(executor, streams, arena_bytes=arena.size_bytes, forward=make_forward, violations=violations)


def _cuda_streams() -> Streams:
    # It loads torch, which a device without CUDA may have to do without.
    from data_plane.streams.cupy_streams import CupyStreams

    return CupyStreams()

"""The parts of a device, each in the kind that its device needs, wired to one executor."""

from collections.abc import Callable, Sequence

from data_plane.accesses import Accesses, NoAccesses, PlanAccesses
from data_plane.cuda import load_cupy
from data_plane.executor import Executor
from data_plane.forward_thread import Deliver, Forward
from data_plane.handle import DeviceHandle, MakeForward
from data_plane.lost import Lost
from data_plane.memory.arena import Arena
from data_plane.memory.device_memory import ArenaMemory
from data_plane.memory.host_pages import HostPages
from data_plane.memory.layout import ArenaLayout
from data_plane.memory.tables import CudaTables, HostTables
from data_plane.model.base import ModelRunner
from data_plane.ops.block_copies import BlockCopies, CudaBlockCopies, HostBlockCopies
from data_plane.ops.host_tier import HostTier, NoHostTier, StreamedHostTier
from data_plane.ops.remote import DeviceParts, MakeRemote, NoRemote, Remote
from data_plane.ops.table_edits import CudaTableEdits, HostTableEdits, TableEdits
from data_plane.ops.zeroing import CudaZeroing, HostZeroing, Zeroing
from data_plane.ordering import OrderChecker, Violation
from data_plane.rounds import Rounds
from data_plane.specs import DeviceSpecs
from data_plane.streams.base import Streams
from data_plane.streams.ordered_streams import STREAM_NAMES, OrderedStreams

WrapCopies = Callable[[BlockCopies], BlockCopies]


def assemble(
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

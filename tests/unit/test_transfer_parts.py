"""What is transferred, between which devices, and by a thread."""

import pytest

from control_plane.errors import ConfigError
from control_plane.messages import RemoteWork
from control_plane.messages.columns import pack
from data_plane.builder import build_device
from data_plane.faults import PlanFault
from data_plane.handle import DeviceHandle
from data_plane.memory.tables import HostTables
from data_plane.model.base import GroupLayout
from data_plane.model.stamp import StampOptions, StampRunner
from data_plane.ops.remote import DeviceParts, MakeRemote
from data_plane.options import DeviceOptions
from data_plane.transfer.pages import Half, columns_of_landing, pages_between
from data_plane.transfer.rendezvous import Rendezvous, Side
from data_plane.transfer.thread import TransferThread
from tests.unit.transfer_pair import MIXES, TransferPair

GROUPS = (GroupLayout("full", "full", 4, 64), GroupLayout("sliding", "sliding", 2, 32, window=5))


@pytest.mark.parametrize("granularity", [1, 2, 3, 4])
@pytest.mark.parametrize("window", [1, 2, 5, 8, 30])
def test_what_the_first_step_reads_is_transferred_and_nothing_else(granularity: int, window: int) -> None:
    """Blocks of the rows that the query at `end` reads, without its own and without what was there before `begin`."""
    for begin in range(0, 13, 12 // granularity * granularity or 1):
        for end in range(begin + 1, 30):
            read = range(max(0, end - window + 1), end)
            rows = {
                GroupLayout("f", "full", granularity, 1): range(begin, end),
                GroupLayout("s", "sliding", granularity, 1, window=window): [at for at in read if at >= begin],
                GroupLayout("r", "sliding", granularity, 1, window=window, replayable=True): read,
                GroupLayout("m", "state", granularity, 1): [end - 1],
            }
            for group, positions in rows.items():
                columns = columns_of_landing(group, begin, end)
                assert list(columns) == sorted({position // granularity for position in positions})


def half(tables: HostTables, slot: int, *, begin: int = 0, end: int = 10) -> Half:
    """A request whose blocks are looked up now."""
    found = Half(GROUPS, key=slot + 1, attempt=0, begin=begin, end=end)
    found.resolve(tables, slot)
    return found


def filled_tables() -> HostTables:
    """Tables of 3 slots: slot 0 and 1 hold 10 tokens, slot 2 nothing."""
    tables = HostTables(slots=3, widths=[4, 8], block_counts=[99, 99])
    for slot in range(2):
        tables.rows(0)[slot, :3] = [10 * slot + 1, 10 * slot + 2, 10 * slot + 3]
        tables.rows(1)[slot, 2:5] = [10 * slot + 6, 10 * slot + 4, 10 * slot + 5]
    return tables


def test_pages_are_paired_by_their_place_in_the_tables() -> None:
    """Of a prompt whose first block the other side has already, the rest goes from slot 0 to slot 1."""
    tables = filled_tables()
    pages = pages_between(half(tables, 0), half(tables, 1, begin=4))
    assert [(page.group, page.source, page.destination) for page in pages] == [
        (0, 2, 12),
        (0, 3, 13),
        (1, 4, 14),
        (1, 5, 15),
    ]


def test_halves_that_do_not_fit_are_refused() -> None:
    """Other lengths, less than is asked for, or no block at all: nothing may be copied then."""
    tables = filled_tables()
    with pytest.raises(PlanFault, match="has 9 tokens where it was prefilled and 10 tokens"):
        pages_between(half(tables, 0, end=9), half(tables, 1))
    with pytest.raises(PlanFault, match="is asked for, and only"):
        pages_between(half(tables, 0, begin=4), half(tables, 1))
    with pytest.raises(PlanFault, match=r"slot 2, group 0: rows \[0, 3\) of the table are to be transferred"):
        half(tables, 2)


def device(remote: MakeRemote, options: StampOptions | None = None) -> DeviceHandle:
    """An inline device with a peer."""
    runner = StampRunner(options or StampOptions(), block_granularity=16)
    _, handle = build_device(
        DeviceOptions(model="stamp", device_blocks=4, max_context_tokens=64), runner=runner, inline=True, remote=remote
    )
    return handle


def test_devices_whose_pages_are_not_alike_cannot_be_joined() -> None:
    """The second of them is not built, and the error shows both."""
    rendezvous = Rendezvous()
    device(rendezvous.prefill_end)
    with pytest.raises(ConfigError, match="give both the same model and prefix_granularity"):
        device(rendezvous.decode_end, MIXES["full+sliding"])
    device(rendezvous.decode_end, StampOptions(packings=(3,)))


def test_each_end_does_one_kind_of_work() -> None:
    """What the other role would plan, or a slot that is not there: plans and device do not belong together."""
    parts: list[DeviceParts] = []
    rendezvous = Rendezvous()

    def keeping(inner: MakeRemote) -> MakeRemote:
        return lambda given: (parts.append(given), inner(given))[1]

    device(keeping(rendezvous.prefill_end))
    prefill, decode = Rendezvous().prefill_end(parts[0]), Rendezvous().decode_end(parts[0])
    work = RemoteWork(keys=pack([1]), slots=pack([64]), begins=pack([0]), ends=pack([3]), attempts=pack([0]))
    with pytest.raises(PlanFault, match="prefills for a peer"):
        prefill.prefill(work)
    with pytest.raises(PlanFault, match="decodes for a peer"):
        decode.decode(work)
    for take in (prefill.decode, decode.prefill):
        with pytest.raises(PlanFault, match=r"slots \[64\], of 64"):
            take(work)


@pytest.mark.parametrize("mix", MIXES)
def test_a_thread_moves_the_pages_of_devices_with_threads(mix: str) -> None:
    """Twelve prompts at once: letters of transfers come also while no round is out."""
    transfers = TransferThread()
    try:
        pair = TransferPair(
            MIXES[mix], rendezvous=transfers.rendezvous, prefill={"threads": True}, decode={"threads": True, "pool": 60}
        )
        for at in range(12):
            pair.submit(range(at + 1, at + 14 + at % 5), 5)
        while any(engine.scheduler.requests or engine.scheduler.transfers for engine in pair.engines.values()):
            for engine in pair.engines.values():
                while engine.plan():
                    pass
            pair.receive_one()
        assert all(len(request.tokens) == 5 for request in pair.requests)
        pair.check()
    finally:
        transfers.close()


def test_a_closed_thread_leaves_nobody_waiting() -> None:
    """Closed before both sides came, or while pages are on their way: both sides are told."""
    transfers = TransferThread()
    pair = TransferPair(
        MIXES["full"],
        rendezvous=transfers.rendezvous,
        prefill={"threads": True},
        decode={"threads": True, "recompute_failed_transfers": False},
    )
    first, second = pair.submit(range(1, 25), 3), pair.submit(range(30, 50), 3)
    assert pair.decode.plan()
    transfers.close("the host goes down")
    while pair.decode.scheduler.requests or pair.prefill.scheduler.requests:
        pair.receive_one()
    for request in (first, second):
        assert request.messages == dict.fromkeys(Side, "the host goes down")
    transfers.close()
    pair.check()

"""The executor and the copies of a plan: their place among its steps, and what becomes of those that never began."""

from collections.abc import Sequence

import pytest

from control_plane.errors import DeviceFailed
from control_plane.messages import LoadBack
from data_plane.accesses import NoAccesses
from data_plane.executor import Executor, RoundInFlight
from data_plane.lost import Lost
from data_plane.memory.arena import Arena
from data_plane.memory.device_memory import ArenaMemory
from data_plane.memory.host_pages import HostPages
from data_plane.memory.layout import plan_layout
from data_plane.memory.tables import HostTables
from data_plane.model.base import GroupLayout
from data_plane.ops.block_copies import HostBlockCopies
from data_plane.ops.host_tier import CopyInFlight, StreamedHostTier
from data_plane.streams.base import NO_BLOCKS, Access, Work
from data_plane.streams.inline_streams import InlineStream, InlineStreams
from tests.unit.test_data_plane_executor import Fake, executor, full_plan


class LabelledStream(InlineStream):
    """Remembers the labels."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.labels: list[str] = []

    def enqueue(self, work: Work, label: str, access: Access = NO_BLOCKS) -> None:
        self.labels.append(label)
        super().enqueue(work, label, access)


class LabelledStreams:
    """Three of those."""

    def __init__(self) -> None:
        self.forward, self.write, self.load = map(LabelledStream, ("forward", "write", "load"))

    def close(self) -> None:
        """They have no end."""


class Marked(Fake):
    """A host tier that records marks on the forward stream, as a real one does between a round's steps."""

    def __init__(self, *broken: str) -> None:
        super().__init__(*broken)
        self.streams = InlineStreams()

    def load_back(self, round: int, load_backs: Sequence[LoadBack]) -> list[CopyInFlight]:
        self.streams.forward.record()
        return super().load_back(round, load_backs)


def test_a_mark_inside_a_round_does_not_take_its_error_away() -> None:
    """Zeroing fails, then the load-backs record a mark, which takes that error: the round tells it all the same."""
    fake = Marked("zero")
    with pytest.raises(ValueError, match="zero is broken"):
        executor(fake, fake.streams).execute(full_plan()).tokens()


def test_a_round_that_is_refused_has_copies_that_are_over_without_success() -> None:
    """Nobody waits for a store that never began."""
    flight = RoundInFlight.refused(full_plan())
    copies = [*flight.stores, *flight.loads]
    assert [copy.op for copy in copies] == [1, 2]
    for copy in copies:
        assert copy.has_passed()
        copy.wait()
        assert isinstance(copy.error, DeviceFailed)


@pytest.mark.parametrize("broken", ["stores", "load_backs"])
def test_copies_that_could_not_be_begun_are_over_without_success(broken: str) -> None:
    """The plan names blocks that do not exist: the round fails, and each of its copies has an end."""
    flight = executor(Fake(broken)).execute(full_plan())
    (copy,) = flight.stores if broken == "stores" else flight.loads
    assert copy.error is not None


def test_with_a_host_tier_the_steps_stand_on_the_forward_stream_in_the_order_of_the_fields() -> None:
    """Gathering before zeroing, scattering before the tables; the slow halves of both copies are on other streams."""
    group = GroupLayout("full", "full", 4, 64)
    layout = plan_layout([group])
    tables = HostTables(slots=2, widths=[4], block_counts=[9])
    memory = ArenaMemory(layout, Arena(layout, device_blocks=8, device="cpu"), tables)
    fake, streams = Fake(), LabelledStreams()
    tier = StreamedHostTier(
        streams=streams,
        copies=HostBlockCopies(memory, HostPages(layout, host_blocks=4, device="cpu"), groups=1),
        accesses=NoAccesses(),
        lost=Lost([group], tables),
        block_bytes=[64],
        device_counts=[9],
        host_counts=[5],
    )
    device = Executor(streams=streams, zeroing=fake, tables=fake, runner=fake, host_tier=tier, remote=fake)
    flight = device.execute(full_plan())
    flight.tokens()
    assert streams.forward.labels == [
        "gathering for store 1 of round 1",
        "zero of round 1",
        "scattering of load-back 2 of round 1",
        "tables of round 1",
        "bindings of round 1",
        "forward of round 1",
    ]
    assert streams.write.labels == ["store 1 of round 1"]
    assert streams.load.labels == ["load-back 2 of round 1"]
    assert [copy.error for copy in (*flight.stores, *flight.loads)] == [None, None]

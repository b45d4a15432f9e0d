"""What goes wrong and how long things take: set by the steps of a program, met by the device's work."""

from collections.abc import Callable, Container
from typing import Literal

from control_plane.messages import ExecutionPlan, SlotBinding
from control_plane.messages.columns import Int32s
from data_plane.batch.rows import Rows
from data_plane.model.base import DeviceMemory, ModelFacts, ModelRunner
from data_plane.model.faulty import InjectedFault
from data_plane.ops.block_copies import BlockCopies
from data_plane.ops.faulty_copies import CopyStep, FaultyCopies
from data_plane.transfer.page_copies import FaultyPageCopies, PageCopies
from tools.simulate.program import News

Mishap = Literal["forward", "half a forward", "store", "load", "page", "withheld"]
INJECTED = "was told to fail"
WITHHELD = "was told to be withheld"
"""One of them stands in the message of every failure that a program asked for."""


class Weather:
    """Mishaps that wait for work to happen to, and how many rounds work takes.

    `doomed` and `doomed_late` are the stores and load-backs that fail: at their first step, or at their last.
    """

    def __init__(self) -> None:
        self.forward_rounds = 1
        self.store_rounds = 1
        self.transfer_rounds = 0
        self.spread_rounds = 0
        self.repeated: set[News] = set()
        self.held: set[News] = set()
        self.gives_up = False
        self.told = 0
        self.doomed: set[int] = set()
        self.doomed_late: set[int] = set()
        self._ahead: dict[Mishap, bool] = {}

    def expect(self, mishap: Mishap, *, is_late: bool = False) -> None:
        """It happens to the next work of its kind: before anything was done, or when all was."""
        self._ahead[mishap] = is_late

    def strikes(self, mishap: Mishap, *, is_late: bool = False) -> bool:
        """Whether it happens now; then it is over."""
        if self._ahead.get(mishap) is not is_late:
            return False
        del self._ahead[mishap]
        return True

    def late_rounds(self, news: News) -> int:
        """How much later than it happened this is told."""
        self.told += 1
        return self.told * 7 % (self.spread_rounds + 1) if news in ("store", "transfer") else 0

    def planned(self, plan: ExecutionPlan) -> None:
        """Copies are about to begin; some of them may be doomed."""
        for store in plan.stores:
            self._doom("store", store.op)
        for load in plan.load_backs:
            self._doom("load", load.op)

    def wrap_copies(self, inner: BlockCopies) -> BlockCopies:
        """`inner`, out in the weather."""
        last_steps = (CopyStep.WRITE, CopyStep.WRITE_DIRECTLY, CopyStep.SCATTER)
        return FaultyCopies(FaultyCopies(inner, fail_ops=self.doomed), fail_ops=self.doomed_late, steps=last_steps)

    def wrap_pages(self, inner: PageCopies) -> PageCopies:
        """`inner`, out in the weather."""
        return FaultyPageCopies(inner, fail_writes=_StruckPages(self))

    def _doom(self, mishap: Mishap, op: int) -> None:
        if self.strikes(mishap):
            self.doomed.add(op)
        elif self.strikes(mishap, is_late=True):
            self.doomed_late.add(op)


class _StruckPages(Container[int]):
    """The page writes that fail, known when they come."""

    def __init__(self, weather: Weather) -> None:
        self._weather = weather

    def __contains__(self, write: object) -> bool:
        """Asked once for each write."""
        return self._weather.strikes("page") or self._weather.strikes("page", is_late=True)


class ExposedRunner:
    """`inner`, out in the weather."""

    def __init__(self, inner: ModelRunner, weather: Weather) -> None:
        self._inner = inner
        self._weather = weather

    @property
    def facts(self) -> ModelFacts:
        """What the inner model is."""
        return self._inner.facts

    def attach(self, memory: DeviceMemory, *, slots: int) -> None:
        """Attach the inner model."""
        self._inner.attach(memory, slots=slots)

    def bind(self, binding: SlotBinding) -> None:
        """Bind the inner model's slot."""
        self._inner.bind(binding)

    def run(self, rows: Rows) -> Callable[[], Int32s]:
        """Run the inner model, or raise InjectedFault: at once, or when the tokens are read."""
        if self._weather.strikes("forward"):
            raise InjectedFault(f"a forward {INJECTED}")
        if self._weather.strikes("withheld"):
            raise InjectedFault(f"a forward {WITHHELD}")
        if self._weather.strikes("half a forward"):
            lost = rows.lost.copy()
            rows.lost[rows.count // 2 :] = True
            self._inner.run(rows)
            rows.lost[:] = lost
            raise InjectedFault(f"half a forward {INJECTED}")
        read_tokens = self._inner.run(rows)
        return _no_tokens if self._weather.strikes("forward", is_late=True) else read_tokens


def _no_tokens() -> Int32s:
    raise InjectedFault(f"the tokens of a forward {INJECTED}")

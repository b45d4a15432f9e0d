"""A model that fails when it is told to, through the interface of every model."""

from collections.abc import Callable, Collection

from control_plane.messages import SlotBinding
from control_plane.messages.columns import Int32s
from data_plane.batch.rows import Rows
from data_plane.model.base import DeviceMemory, ModelFacts, ModelRunner


class InjectedFault(RuntimeError):
    """The failure that was asked for."""


class FaultyRunner:
    """`inner`, but the batches numbered in `fail_rounds` raise; the first batch that it is given has number 1.

    In `fail_results` they compute and then raise when their tokens are read. Batches in which a request of
    `fail_keys` takes part raise too.
    """

    def __init__(
        self,
        inner: ModelRunner,
        *,
        fail_rounds: Collection[int] = (),
        fail_results: Collection[int] = (),
        fail_keys: Collection[int] = (),
    ) -> None:
        self._inner = inner
        self._fail_rounds = frozenset(fail_rounds)
        self._fail_results = frozenset(fail_results)
        self._fail_keys = frozenset(fail_keys)
        self.batch_count = 0

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
        """Run the inner model, or raise InjectedFault."""
        self.batch_count += 1
        number = self.batch_count
        if number in self._fail_rounds or not self._fail_keys.isdisjoint(rows.keys.tolist()):
            raise InjectedFault(f"batch {number} was told to fail")
        read_tokens = self._inner.run(rows)
        if number in self._fail_results:
            return lambda: _fail(number)
        return read_tokens


def _fail(number: int) -> Int32s:
    raise InjectedFault(f"the tokens of batch {number} were told to fail")

"""Which linear layers of a model multiply the same rows: not read from its architecture, but seen in a forward."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Siblings:
    """Linear layers in calling order, with the rows that each was given."""

    def __init__(self) -> None:
        self._calls: list[tuple[nn.Linear, torch.Tensor, torch.Tensor]] = []

    def note(self, layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        """A layer is called. The rows are kept, and with them their identity."""
        (rows,) = arguments
        assert isinstance(layer, nn.Linear), f"only linear layers are watched, not {type(layer).__name__}"
        self._calls.append((layer, rows, rows.clone()))

    def groups(self) -> list[tuple[nn.Linear, ...]]:
        """Layers that were called one right after the other with one tensor that did not change in between.

        A layer that is called more than once is in none.
        """
        called = [layer for layer, _, _ in self._calls]
        groups: list[list[nn.Linear]] = []
        last: tuple[torch.Tensor, torch.Tensor] | None = None
        for layer, rows, content in self._calls:
            if last is not None and rows is last[0] and torch.equal(content, last[1]):
                groups[-1].append(layer)
            else:
                groups.append([layer])
            last = rows, content
        return [tuple(group) for group in groups if len(group) > 1 and all(called.count(each) == 1 for each in group)]


@contextmanager
def watching(model: nn.Module) -> Iterator[Siblings]:
    """Note the calls of every plain linear layer while the model runs."""
    siblings = Siblings()
    hooks: list[Any] = []
    note: Callable[[nn.Module, tuple[Any, ...]], None] = siblings.note
    try:
        for module in model.modules():
            if type(module) is nn.Linear:
                hooks.append(module.register_forward_pre_hook(note))
        yield siblings
    finally:
        for hook in hooks:
            hook.remove()

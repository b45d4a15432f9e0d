"""What one recurrent layer does in a round: read a snapshot, run over the fed tokens, write snapshots."""

from collections.abc import Sequence
from typing import Protocol

import torch

from data_plane.recurrence.geometry import StateGeometry, StatePart
from data_plane.recurrence.round_plan import StatePlan

States = tuple[torch.Tensor, ...]


class Step(Protocol):
    """A recurrent layer over sequences of equal length.

    From inputs [rows, tokens, width] and the states before them ([rows, *shape] for each part, which it may
    overwrite) to outputs [rows, tokens, width] and the states after them.
    """

    def __call__(self, inputs: torch.Tensor, states: States) -> tuple[torch.Tensor, States]: ...


def empty_states(parts: Sequence[StatePart], device: torch.device) -> States:
    """The states of one row before its first token."""
    return tuple(torch.zeros((1, *part.shape), dtype=part.dtype, device=device) for part in parts)


class PagedStates:
    """The arena of a state group, and recurrence over it. `blocks` is uint8 [blocks, block_bytes] on the device."""

    def __init__(self, blocks: torch.Tensor, geometry: StateGeometry) -> None:
        self._geometry = geometry
        self._views = geometry.views(blocks)

    def recur(self, layer: int, inputs: torch.Tensor, step: Step, plan: StatePlan) -> torch.Tensor:
        """Run `step` over the round's packed tokens [tokens, width] of one layer; returns [tokens, width].

        Extends run one by one, decodes in one step. Every row writes its final state, and an extend with a checkpoint
        the state there too, on its one way through its tokens. A row never reads what another row of the round writes:
        a snapshot is shared only once it is final.
        """
        outputs = []
        for extend in plan.extends:
            states = self._load(layer, extend.source)
            for scan in extend.scans:
                output, states = step(inputs[None, scan.begin : scan.end], states)
                self._store(layer, scan.target, states)
                outputs.append(output[0])
        decodes = plan.decodes
        if decodes.begin < decodes.end:
            states = self._load(layer, decodes.sources)
            output, states = step(inputs[decodes.begin : decodes.end, None], states)
            self._store(layer, decodes.targets, states)
            outputs.append(output[:, 0])
        return torch.cat(outputs)

    def _load(self, layer: int, blocks: torch.Tensor | None) -> States:
        """Copies of the states in `blocks` (int64 [rows]), or one row of empty ones."""
        parts = self._geometry.layers[layer]
        views = self._views[layer]
        if blocks is None:
            found = [view.new_zeros((1, view.shape[1])) for view in views]
        else:
            found = [view.index_select(0, blocks) for view in views]
        return tuple(flat.view(-1, *part.shape) for flat, part in zip(found, parts, strict=True))

    def _store(self, layer: int, blocks: torch.Tensor, states: States) -> None:
        for view, state in zip(self._views[layer], states, strict=True):
            view.index_copy_(0, blocks, state.reshape(len(state), -1).to(view.dtype))

"""The cycle collector of a server works between rounds (behaviour: no pause inside of one)."""

import asyncio
import gc
import weakref

import pytest

from tokenspeed import garbage
from tokenspeed.garbage import collecting_between_rounds


class Node:
    """Part of a cycle."""

    def __init__(self) -> None:
        self.itself = self


async def test_cycles_go_though_automatic_collection_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many objects and no pause by itself; the task collects; afterwards all is as it was."""
    monkeypatch.setattr(garbage, "LOOK_EVERY_SECONDS", 0.001)
    monkeypatch.setattr(garbage, "MIDDLE_EVERY", 1)
    assert gc.isenabled()
    async with collecting_between_rounds():
        assert not gc.isenabled()
        gone = asyncio.Event()
        weakref.finalize(Node(), gone.set)
        many = [Node() for _ in range(garbage.YOUNG_OBJECTS + 1)]
        assert not gone.is_set()
        await asyncio.wait_for(gone.wait(), timeout=30)
        assert len(many) > garbage.YOUNG_OBJECTS
    assert gc.isenabled()
    assert not gc.get_freeze_count()


async def test_an_idle_server_collects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few objects since the last time: the collector only looks."""
    monkeypatch.setattr(garbage, "LOOK_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(garbage, "YOUNG_OBJECTS", 1_000_000)
    async with collecting_between_rounds():
        before = gc.get_stats()
        for _ in range(50):
            await asyncio.sleep(0)
        assert gc.get_stats() == before

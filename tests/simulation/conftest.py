"""Injected failures are ordinary here: devices need not log them."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet_devices() -> Iterator[None]:
    """The devices' log is off."""
    log = logging.getLogger("tokenspeed.device")
    log.disabled = True
    yield
    log.disabled = False

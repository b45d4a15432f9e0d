"""Whether a model can be talked to."""

from control_plane.errors import RequestRejected
from tokenspeed.engine import AsyncEngine
from tokenspeed.text.tokenizer import ChatMessage


async def can_chat(engine: AsyncEngine) -> bool:
    """Whether the model has a chat template; a base model has none."""
    try:
        await engine.encode_chat([ChatMessage("user", "Hello")])
    except RequestRejected:
        return False
    return True

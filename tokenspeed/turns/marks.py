"""The marks that a chat template puts around parts of a turn."""

from typing import Final

from msgspec import Struct

from tokenspeed.text.tokenizer import Tokenizer

THINK: Final = "<think>"
END_THINK: Final = "</think>"
TOOL_CALL: Final = "<tool_call>"
END_TOOL_CALL: Final = "</tool_call>"


class TurnMarks(Struct, frozen=True):
    """What a model's template marks: reasoning, and calls as `{"name": ..., "arguments": {...}}` between marks."""

    thinks: bool
    calls: bool


def marks_of(tokenizer: Tokenizer) -> TurnMarks:
    """Read them off the source of a model's template. What its tokenizer does not show cannot be found again."""
    template = tokenizer.chat_template
    has_calls = "tools" in template and "arguments" in template and "<function=" not in template
    return TurnMarks(
        thinks=END_THINK in template and _is_shown(THINK, tokenizer) and _is_shown(END_THINK, tokenizer),
        calls=has_calls and TOOL_CALL in template and _is_shown(TOOL_CALL, tokenizer),
    )


def opens_reasoning(prompt: str) -> bool:
    """Whether a prompt ends inside a thought, so that the output begins there."""
    return prompt.rstrip().endswith(THINK)


def _is_shown(mark: str, tokenizer: Tokenizer) -> bool:
    return tokenizer.decode(tokenizer.encode(mark, add_special_tokens=False)).strip() == mark

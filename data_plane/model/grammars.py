"""Outputs that must match a grammar: which tokens may come next, by llguidance over the model's vocabulary."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer


@lru_cache(maxsize=4)
def vocabulary(folder: Path, vocab_size: int, stop_token_ids: tuple[int, ...]) -> LLTokenizer:
    """The tokens of a model as bytes, from its folder. Takes about a second; both planes use the same one.

    Raises ValueError when the folder's tokenizer cannot be used for grammars.
    """
    # Imported here: only what asks for a grammar pays for it.
    from llguidance.hf import from_tokenizer
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    if not isinstance(loaded, PreTrainedTokenizerFast):
        raise ValueError(f"the tokenizer in {str(folder)!r} has no tokenizer.json: convert it to a fast one")
    return from_tokenizer(loaded, n_vocab=vocab_size, eos_token=list(stop_token_ids) or None)


class Grammars:
    """Grammars over one model's vocabulary, which is read when the first one is asked for."""

    def __init__(self, folder: Path, *, vocab_size: int, stop_token_ids: tuple[int, ...]) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._stop_token_ids = stop_token_ids

    def check(self, grammar: str) -> str:
        """What is wrong with a grammar, or nothing."""
        return LLMatcher.validate_grammar(grammar, self.vocabulary)

    def follow(self, grammar: str, written: Sequence[int]) -> "Follower":
        """Where an output stands that has `written` these tokens."""
        return Follower(LLMatcher(self.vocabulary, grammar, log_level=0), written, self._vocab_size)

    @property
    def vocabulary(self) -> LLTokenizer:
        """The tokens as bytes."""
        return vocabulary(self._folder, self._vocab_size, self._stop_token_ids)


class Follower:
    """One output on its way through its grammar."""

    def __init__(self, matcher: LLMatcher, written: Sequence[int], vocab_size: int) -> None:
        self._matcher = matcher
        self.vocab_size = vocab_size
        if written:
            matcher.consume_tokens(list(written))

    def take(self, token: int) -> None:
        """The output goes on with this token."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Which tokens may come next: bool [vocabulary]. Where the grammar is complete, those that end the output.

        Raises ValueError when the grammar can no longer be followed: it is too complex, or was left.
        """
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise ValueError(f"the grammar cannot be followed: {self._matcher.get_error()}")
        bits = np.frombuffer(mask, dtype=np.uint8)
        return np.unpackbits(bits, count=self.vocab_size, bitorder="little").astype(np.bool_)

"""Whether a model can do what sampling parameters ask, checked before anything is submitted."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from control_plane.errors import RequestRejected
from tokenspeed.sampling import SamplingParams

if TYPE_CHECKING:
    from data_plane.model.grammars import Grammars
    from data_plane.specs import DeviceSpecs


class ParamsCheck:
    """Checks for one loaded model."""

    def __init__(self, specs: "DeviceSpecs") -> None:
        self._specs = specs
        self._grammars: Grammars | None = None
        self._problem_of = lru_cache(maxsize=256)(self._grammar_problem)

    def check(self, params: SamplingParams) -> None:
        """Raise RequestRejected naming the field that this model cannot honour. A new grammar takes milliseconds."""
        specs = self._specs
        for name, token_ids in (
            ("stop_token_ids", params.stop_token_ids),
            ("logit_bias", tuple(token for token, _ in params.logit_bias)),
        ):
            if token_ids and max(token_ids) >= specs.vocab_size:
                raise RequestRejected(
                    f"{name} holds a token id that the model does not have",
                    field=name,
                    token_id=max(token_ids),
                    vocab_size=specs.vocab_size,
                )
        if params.max_tokens is not None and params.min_tokens > params.max_tokens:
            raise RequestRejected(
                "min_tokens is above max_tokens: lower it",
                field="min_tokens",
                min_tokens=params.min_tokens,
                max_tokens=params.max_tokens,
            )
        if not specs.has_logits:
            for name, is_asked in self._needs_logits(params).items():
                if is_asked:
                    raise RequestRejected(
                        f"{name} is not offered with the model {specs.model}, which has no logits: leave it out",
                        field=name,
                    )
        if params.grammar:
            self._check_grammar(params)

    def _needs_logits(self, params: SamplingParams) -> dict[str, bool]:
        """What only a model that chooses among logits can honour, and whether it is asked for."""
        has_end = bool(params.stop_token_ids) or (not params.ignore_eos and bool(self._specs.stop_token_ids))
        return {
            "min_tokens": bool(params.min_tokens) and has_end,  # What no token ends has its minimum.
            "logit_bias": bool(params.logit_bias),
            "grammar": bool(params.grammar),
            "logprobs": params.logprobs is not None,
        }

    def _check_grammar(self, params: SamplingParams) -> None:
        specs = self._specs
        if specs.tokenizer_path is None or not specs.stop_token_ids:
            raise RequestRejected(
                f"structured output is not offered with the model {specs.model}: it has no tokenizer with an end token",
                field="grammar",
            )
        for name in ("ignore_eos", "min_tokens"):
            if getattr(params, name):
                raise RequestRejected(
                    f"{name} cannot be combined with structured output, which ends with its grammar: leave it out",
                    field=name,
                )
        assert params.grammar is not None
        if problem := self._problem_of(params.grammar):
            raise RequestRejected(f"the structured output cannot be produced: {problem}", field="grammar")

    def _grammar_problem(self, grammar: str) -> str:
        return self.grammars.check(grammar)

    @property
    def grammars(self) -> "Grammars":
        """Grammars over the model's vocabulary. Needs a model with a tokenizer of its own."""
        if self._grammars is None:
            # Imported here: only what asks for a grammar pays for it.
            from data_plane.model.grammars import Grammars

            assert self._specs.tokenizer_path is not None
            self._grammars = Grammars(
                Path(self._specs.tokenizer_path),
                vocab_size=self._specs.vocab_size,
                stop_token_ids=self._specs.stop_token_ids,
            )
        return self._grammars

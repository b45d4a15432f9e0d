"""What a caller may ask of one generation, checked where it enters."""

import hashlib
import secrets
from collections.abc import Mapping
from typing import Annotated, Final, Self

from msgspec import Meta, Struct, structs

from control_plane.errors import RequestRejected
from control_plane.messages import NO_LOGPROBS, Sampling
from tokenspeed.fields import field_problems

MAX_CHOICES: Final = 128
MAX_BIASES: Final = 1024
MAX_LOGPROBS: Final = 20
MAX_GRAMMAR_CHARACTERS: Final = 262_144
_SEED_MASK: Final = 2**63 - 1

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Bias = tuple[TokenId, Annotated[float, Meta(ge=-100, le=100)]]
StopText = Annotated[str, Meta(min_length=1, max_length=1024)]


class SamplingParams(Struct, frozen=True, kw_only=True):
    """How to continue a prompt. Names and meanings are those of the OpenAI API and its common extensions.

    `max_tokens` is a ceiling: more than the model's context leaves room for means as many as fit, as does None.
    `temperature` 0 takes the most likely token each time; `top_k` 0, `top_p` 1 and `min_p` 0 switch a filter off.
    Without a `seed` one is drawn; with one, the same request gives the same tokens whatever runs beside it. Generation
    ends before any text of `stop`, at any of `stop_token_ids` and, unless `ignore_eos`, where the model ends it.
    `n` continuations are made of the same prompt. Neither the model's end nor a stop ends one before `min_tokens`.

    `logit_bias` is added to the logits of tokens, as (token, bias) pairs or a mapping. `grammar` is what the output
    must match, in llguidance's notation.
    `logprobs` asks for the log probability of every token, and of that many of the likeliest in its place, in the
    distribution that it was drawn from (at temperature 0: the model's own).

    `stop` may be given as one text or a list. Raises RequestRejected, naming every field at fault, when made with
    values out of range.
    """

    max_tokens: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = 0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Annotated[tuple[StopText, ...], Meta(max_length=16)] = ()
    stop_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=256)] = ()
    ignore_eos: bool = False
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] = 1.0
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] = 1
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    logit_bias: Annotated[tuple[Bias, ...], Meta(max_length=MAX_BIASES)] = ()
    grammar: Annotated[str, Meta(max_length=MAX_GRAMMAR_CHARACTERS)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids"):
            value: object = getattr(self, name)
            if isinstance(value, (str, list)):
                structs.force_setattr(self, name, (value,) if isinstance(value, str) else tuple(value))
        biases: object = self.logit_bias
        if isinstance(biases, Mapping):
            structs.force_setattr(self, "logit_bias", tuple(sorted(biases.items())))
        elif isinstance(biases, list):
            structs.force_setattr(self, "logit_bias", tuple(map(tuple, biases)))
        problems = field_problems(self)
        if problems:
            raise RequestRejected("; ".join(text for _, text in problems), field=problems[0][0])

    def choices(self) -> list[Self]:
        """These parameters for each of the `n` continuations alone: the first has this seed, others follow from it."""
        seed = self._seed_or_draw()
        return [structs.replace(self, n=1, seed=_derived_seed(seed, index)) for index in range(self.n)]

    def to_sampling(self, stop_token_ids: tuple[int, ...] = ()) -> Sampling:
        """What the sampler needs of this. Draws a seed where one matters and none was given.

        `stop_token_ids` are all that end this generation.
        """
        return Sampling(
            temperature=float(self.temperature),
            top_k=max(0, self.top_k),  # -1 is another way to say "off"
            top_p=float(self.top_p),
            min_p=float(self.min_p),
            seed=self._seed_or_draw() & _SEED_MASK,
            repetition_penalty=float(self.repetition_penalty),
            presence_penalty=float(self.presence_penalty),
            frequency_penalty=float(self.frequency_penalty),
            logit_bias=tuple((token, float(bias)) for token, bias in self.logit_bias),
            min_tokens=self.min_tokens,
            suppressed_ids=stop_token_ids if self.min_tokens else (),
            grammar=self.grammar or "",
            logprobs=NO_LOGPROBS if self.logprobs is None else self.logprobs,
        )

    def _seed_or_draw(self) -> int:
        if self.seed is not None:
            return self.seed
        return secrets.randbits(63) if self.temperature > 0 else 0


def _derived_seed(seed: int, index: int) -> int:
    """A seed for continuation `index`: the given one first, then ones that differ however close two seeds are."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & _SEED_MASK

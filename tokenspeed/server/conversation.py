"""From a chat request to what the engine is asked: everything about it is checked here, before any answer begins."""

from collections.abc import Sequence

from msgspec import Struct

from control_plane.errors import RequestRejected
from tokenspeed.engine import AsyncEngine
from tokenspeed.sampling import SamplingParams
from tokenspeed.server.chat import logprobs_of, max_tokens_of
from tokenspeed.server.constraints import Constraint, blamed_on, constraint_of
from tokenspeed.server.messages import check_shown, messages_of, options_of
from tokenspeed.server.protocol import ChatRequest, sampling_params
from tokenspeed.server.tools import Tools, tools_of
from tokenspeed.structured import after_reasoning
from tokenspeed.text.tokenizer import Tokenizer
from tokenspeed.turns.marks import END_THINK, TurnMarks, opens_reasoning
from tokenspeed.turns.reader import TurnReader


class Conversation(Struct, frozen=True):
    """A prompt, how to go on, and a reader for each choice whose text is more than content."""

    token_ids: list[int]
    params: SamplingParams
    readers: Sequence[TurnReader]


async def conversation_of(request: ChatRequest, engine: AsyncEngine, marks: TurnMarks) -> Conversation:
    """Raises RequestRejected, naming the field."""
    tokenizer = engine.tokenizer
    tools = tools_of(request, marks)
    messages = messages_of(request, tokenizer.chat_template)
    options = options_of(request, tools)
    constraint = _constraint_of(request, tools, tokenizer)
    prompt = await engine.prepare_chat(messages, options)
    check_shown(messages, prompt.text)
    in_reasoning = marks.thinks and opens_reasoning(prompt.text)
    if constraint is not None and in_reasoning:
        grammar = after_reasoning(constraint.grammar, end=tokenizer.lark_of(END_THINK))
        constraint = Constraint(constraint.field, grammar)
    params = sampling_params(
        request,
        max_tokens=max_tokens_of(request),
        logprobs=logprobs_of(request),
        grammar=constraint.grammar if constraint else None,
    )
    with blamed_on(constraint.field if constraint else "grammar"):
        await engine.check(params)
    wanted = TurnMarks(thinks=marks.thinks, calls=bool(tools.described))
    readers: Sequence[TurnReader] = ()
    if wanted.thinks or wanted.calls:
        readers = [TurnReader(wanted, in_reasoning=in_reasoning, most_calls=tools.most_calls) for _ in range(params.n)]
    return Conversation(prompt.token_ids, params, readers)


def _constraint_of(request: ChatRequest, tools: Tools, tokenizer: Tokenizer) -> Constraint | None:
    constraint = constraint_of(request)
    if tools.forced is None:
        return constraint
    if constraint is not None:
        raise RequestRejected(
            f"{constraint.field} cannot be combined with a tool_choice that forces a call", field="tool_choice"
        )
    return Constraint("tools", tools.grammar(tokenizer))

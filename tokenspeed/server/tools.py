"""Which tools a conversation has, and whether one of them must be called."""

import re
from typing import Any, Final

import msgspec
from msgspec import Struct

from control_plane.errors import RequestRejected
from tokenspeed.server.protocol import ChatRequest, FunctionBody, ToolBody, ToolChoice
from tokenspeed.structured import MAX_FORCED_CALLS, tool_call_grammar
from tokenspeed.text.tokenizer import Tokenizer
from tokenspeed.turns.marks import END_TOOL_CALL, TOOL_CALL, TurnMarks

MAX_TOOLS: Final = 128
_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


class Tools(Struct, frozen=True):
    """What the template describes, what may be called, and the calls that must be made.

    `most_calls` None: any number. `forced` None: the model decides.
    """

    described: tuple[dict[str, Any], ...] = ()
    most_calls: int | None = None
    forced: tuple[FunctionBody, ...] | None = None

    def grammar(self, tokenizer: Tokenizer) -> str:
        """What forced calls look like."""
        assert self.forced is not None, "nothing is forced"
        return tool_call_grammar(
            [(function.name, function.parameters) for function in self.forced],
            begin=f'{tokenizer.lark_of(TOOL_CALL)} "\\n"',
            end=f'"\\n" {tokenizer.lark_of(END_TOOL_CALL)}',
            most=min(self.most_calls or MAX_FORCED_CALLS, MAX_FORCED_CALLS),
        )


NO_TOOLS: Final = Tools()


def tools_of(request: ChatRequest, marks: TurnMarks) -> Tools:
    """The tools of a conversation. Raises RequestRejected for malformed ones, or a model that knows none."""
    choice = request.tool_choice
    if isinstance(choice, str) and choice not in ("none", "auto", "required"):
        raise RequestRejected(
            f"tool_choice={choice[:64]!r} must be 'none', 'auto', 'required' or an object that names a function",
            field="tool_choice",
        )
    if not request.tools:
        if choice not in (None, "none", "auto"):
            raise RequestRejected("tool_choice asks for a call, and there are no tools: give some", field="tool_choice")
        return NO_TOOLS
    if choice == "none":
        return NO_TOOLS
    functions = _functions_of(request.tools)
    if not marks.calls:
        raise RequestRejected(
            f"tools are not offered with this model: its chat template marks no calls with {TOOL_CALL}", field="tools"
        )
    most_calls = 1 if request.parallel_tool_calls is False else None
    if isinstance(choice, ToolChoice):
        name = choice.function.name
        if name not in functions:
            raise RequestRejected(f"tool_choice names {name[:64]!r}, which is not among the tools", field="tool_choice")
        return Tools(tuple(request.tools), 1, (functions[name],))
    forced = tuple(functions.values()) if choice == "required" else None
    return Tools(tuple(request.tools), most_calls, forced)


def _functions_of(tools: list[dict[str, Any]]) -> dict[str, FunctionBody]:
    if len(tools) > MAX_TOOLS:
        raise RequestRejected("tools holds more than this server takes: leave some out", field="tools", limit=MAX_TOOLS)
    functions: dict[str, FunctionBody] = {}
    for index, given in enumerate(tools):
        field = f"tools[{index}]"
        try:
            tool = msgspec.convert(given, ToolBody)
        except msgspec.ValidationError as error:
            raise RequestRejected(f"{field}: {error}", field=field) from error
        if tool.type != "function" or tool.function is None:
            raise RequestRejected(f"{field} must be of type 'function' and have a function", field=field)
        name = tool.function.name
        if _NAME.fullmatch(name) is None or name in functions:
            raise RequestRejected(
                f"{field}.function.name={name[:64]!r} must be 1 to 64 letters, digits, '_', '.' or '-', and no other's",
                field=field,
            )
        functions[name] = tool.function
    return functions

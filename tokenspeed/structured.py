"""Grammars for `SamplingParams.grammar`: from a JSON schema, a regular expression, a list of choices, or tool calls.

A grammar is a text in llguidance's notation: a JSON object with a list of grammars, of which the first one counts and
may refer to others by name (`@name`).
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from control_plane.errors import RequestRejected

# One way to write each value: nothing can go on for ever between two tokens, and it looks as models write it.
_STYLE: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
MAX_FORCED_CALLS: Final = 16


def json_schema_grammar(schema: object, *, field: str = "grammar") -> str:
    """JSON that matches a schema, given as an object or as its text. Raises RequestRejected when it is neither."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise RequestRejected(f"{field} is not JSON: {error}", field=field) from error
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise RequestRejected(f"{field} must be a JSON schema: an object", field=field)
    return _written([{"json_schema": {**schema, "x-guidance": _STYLE}}])


def json_object_grammar() -> str:
    """Any JSON object."""
    return json_schema_grammar({"type": "object"})


def regex_grammar(pattern: str) -> str:
    """A text that a regular expression (Rust's syntax) matches as a whole."""
    # Imported here: only what asks for a grammar pays for it.
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(pattern)


def lark_grammar(text: str) -> str:
    """A context-free grammar in llguidance's kind of Lark."""
    return _written([{"lark_grammar": text}])


def choice_grammar(choices: Sequence[str]) -> str:
    """One of these texts."""
    return lark_grammar("start: " + " | ".join(json.dumps(choice) for choice in choices))


def tool_call_grammar(
    functions: Sequence[tuple[str, dict[str, Any] | None]], *, begin: str, end: str, most: int = MAX_FORCED_CALLS
) -> str:
    """Up to `most` calls, at least one, each of a function with arguments that its schema allows.

    `begin` and `end` stand around each call, as Lark: a quoted text or a token.
    """
    grammars: list[dict[str, Any]] = []
    for index, (name, parameters) in enumerate(functions):
        arguments = {"type": "object", "additionalProperties": False} if parameters is None else dict(parameters)
        shared = {key: arguments.pop(key) for key in ("$defs", "definitions") if key in arguments}
        call = {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": arguments},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        grammars.append({"name": f"call_{index}", "json_schema": {**call, **shared, "x-guidance": _STYLE}})
    either = " | ".join(f"@{grammar['name']}" for grammar in grammars)
    lines = [f"call: {begin} ({either}) {end}"]
    lines.insert(0, f'start: call ("\\n" call){{0,{most - 1}}}' if most > 1 else "start: call")
    return _written([{"lark_grammar": "\n".join(lines)}, *grammars])


def after_reasoning(grammar: str, *, end: str) -> str:
    """The same for what follows a thought that the prompt has begun; `end` is the mark of its end, as Lark."""
    body, *others = json.loads(grammar)["grammars"]
    return _written(
        [{"lark_grammar": f"start: /(.|\\n)*/ {end} /\\n*/ @structured"}, {**body, "name": "structured"}, *others]
    )


def _written(grammars: Sequence[dict[str, Any]]) -> str:
    return json.dumps({"grammars": grammars})

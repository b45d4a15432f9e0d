"""What an output must match, as a client says it: a response format or one of the common extensions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from control_plane.errors import RequestRejected
from tokenspeed.server.protocol import GenerationRequest, ResponseFormat
from tokenspeed.structured import (
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)

FIELDS: Final = ("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
MAX_CHOICES: Final = 1024


class Constraint(Struct, frozen=True):
    """A grammar, and the field that asked for it."""

    field: str
    grammar: str


def constraint_of(request: GenerationRequest) -> Constraint | None:
    """The one constraint that a request has, if any. Raises RequestRejected for two, and for one that is malformed."""
    asked = [name for name in FIELDS if getattr(request, name) is not None]
    if request.response_format is not None and request.response_format.type == "text":
        asked.remove("response_format")
    if not asked:
        return None
    if len(asked) > 1:
        raise RequestRejected(f"{' and '.join(asked)} cannot be combined: give one of them", field=asked[1])
    (field,) = asked
    return Constraint(field, _grammar_of(request, field))


@contextmanager
def blamed_on(field: str) -> Iterator[None]:
    """What is wrong with a grammar is wrong with the field that asked for it."""
    try:
        yield
    except RequestRejected as error:
        if error.field != "grammar":
            raise
        raise RequestRejected(f"{field}: {error}", field=field) from error


def _grammar_of(request: GenerationRequest, field: str) -> str:
    match field:
        case "response_format":
            assert request.response_format is not None
            return _format_grammar(request.response_format)
        case "guided_json":
            return json_schema_grammar(request.guided_json, field=field)
        case "guided_regex":
            return regex_grammar(request.guided_regex or "")
        case "guided_choice":
            choices = request.guided_choice or []
            if not 1 <= len(choices) <= MAX_CHOICES or not all(choices):
                raise RequestRejected(
                    f"guided_choice must hold 1 to {MAX_CHOICES} texts, none of them empty", field=field
                )
            return choice_grammar(choices)
        case _:
            return lark_grammar(request.guided_grammar or "")


def _format_grammar(asked: ResponseFormat) -> str:
    if asked.type == "json_object":
        return json_object_grammar()
    if asked.type != "json_schema":
        raise RequestRejected(
            f"response_format.type={asked.type!r} must be one of 'text', 'json_object', 'json_schema'",
            field="response_format",
        )
    if asked.json_schema is None or asked.json_schema.schema is None:
        raise RequestRejected(
            "response_format of type 'json_schema' needs json_schema.schema: give the schema", field="response_format"
        )
    return json_schema_grammar(asked.json_schema.schema, field="response_format")

"""`POST /v1/responses`: the newer way to ask for a turn, as items in one body or as named events."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct, UnsetType

from control_plane.messages import FinishReason
from tokenspeed.generation import RequestOutput
from tokenspeed.server.answer import UsageBody
from tokenspeed.server.responses_request import ResponsesRequest
from tokenspeed.turns.reader import CallArguments, CallBegins, Content, Part, Reasoning, TurnReader

_KINDS: Final = {
    Content: "message",
    Reasoning: "reasoning",
    CallBegins: "function_call",
    CallArguments: "function_call",
}
_IDS: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


class Event(Struct, frozen=True):
    """A frame that is sent under its `type`; what it holds besides depends on that."""

    type: str
    sequence_number: int
    fields: dict[str, Any]


class _Item:
    """One item of the output while it grows: reasoning, a message or a call."""

    def __init__(self, kind: str, index: int, name: str = "") -> None:
        self.kind = kind
        self.index = index
        self.id = f"{_IDS[kind]}_{uuid.uuid4().hex}"
        self.name = name
        self.call_id = f"call_{uuid.uuid4().hex[:24]}"
        self.text = ""

    def part(self) -> dict[str, Any]:
        """Its text as it is now."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def body(self, status: str, *, is_begun: bool = True) -> dict[str, Any]:
        """It as a whole."""
        head = {"id": self.id, "type": self.kind, "status": status}
        content = [self.part()] if is_begun else []
        match self.kind:
            case "message":
                return {**head, "role": "assistant", "content": content}
            case "reasoning":
                return {**head, "summary": [], "content": content}
            case _:
                return {**head, "call_id": self.call_id, "name": self.name, "arguments": self.text}


class ResponsesFormat:
    """How this endpoint answers. One answer only: there are no choices."""

    names_events: Final = True

    def __init__(
        self,
        *,
        id: str,
        created: int,
        model: str,
        request: ResponsesRequest,
        reader: TurnReader | None,
        count_tokens: Callable[[str], int],
    ) -> None:
        self._head = {
            "id": f"resp_{id}",
            "object": "response",
            "created_at": created,
            "model": model,
            "error": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "tool_choice": request.tool_choice or "auto",
            "tools": request.tools or [],
            "text": request.text or {"format": {"type": "text"}},
            "truncation": "disabled",
            "store": False,
        }
        self._reader = reader
        self._count_tokens = count_tokens
        self._items: list[_Item] = []
        self._reason: FinishReason | None = None
        self._sent = 0

    def whole(self, outputs: Sequence[RequestOutput], usage: UsageBody) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        for output in outputs:
            self._take(output)
        return self._response(usage)

    def opening(self, index: int, usage: UsageBody | UnsetType | None) -> Sequence[Struct]:
        """The response before there is anything of it."""
        begun = self._response(None, status="in_progress")
        return [self._event(f"response.{word}", response=begun) for word in ("created", "in_progress")]

    def more(self, output: RequestOutput, usage: UsageBody | UnsetType | None) -> Sequence[Struct]:
        """What an output adds to the items."""
        return self._take(output)

    def closing(self, usage: UsageBody, *, is_usage_asked: bool) -> Sequence[Struct]:
        """The response as a whole."""
        response = self._response(usage)
        return [self._event(f"response.{response['status']}", response=response)]

    def _take(self, output: RequestOutput) -> list[Struct]:
        self._reason = output.finish_reason
        events = [event for part in self._parts(output) for event in self._add(part)]
        if output.finish_reason is not None:
            if not self._items:
                events += self._begin("message")
            events += self._end_item()
        return events

    def _parts(self, output: RequestOutput) -> list[Part]:
        if self._reader is None:
            return [Content(output.text)] if output.text else []
        parts = self._reader.feed(output.text)
        return parts if output.finish_reason is None else [*parts, *self._reader.finish()]

    def _add(self, part: Part) -> Iterator[Struct]:
        kind = _KINDS[type(part)]
        if isinstance(part, CallBegins):
            yield from self._end_item()
            yield from self._begin(kind, part.name)
            return
        if not self._items or self._items[-1].kind != kind:
            yield from self._end_item()
            yield from self._begin(kind)
        item = self._items[-1]
        item.text += part.text
        yield self._event(f"response.{_word(kind)}.delta", **self._place(item), delta=part.text, **_scores(kind))

    def _begin(self, kind: str, name: str = "") -> Iterator[Struct]:
        item = _Item(kind, len(self._items), name)
        self._items.append(item)
        added = item.body("in_progress", is_begun=False)
        yield self._event("response.output_item.added", output_index=item.index, item=added)
        if kind != "function_call":
            yield self._event("response.content_part.added", **self._place(item), part=item.part())

    def _end_item(self) -> Iterator[Struct]:
        if not self._items:
            return
        item = self._items[-1]
        word = _word(item.kind)
        if item.kind == "function_call":
            yield self._event(f"response.{word}.done", **self._place(item), name=item.name, arguments=item.text)
        else:
            yield self._event(f"response.{word}.done", **self._place(item), text=item.text, **_scores(item.kind))
            yield self._event("response.content_part.done", **self._place(item), part=item.part())
        yield self._event("response.output_item.done", output_index=item.index, item=item.body(self._status(item)))

    def _place(self, item: _Item) -> dict[str, Any]:
        place = {"item_id": item.id, "output_index": item.index}
        return place if item.kind == "function_call" else {**place, "content_index": 0}

    def _status(self, item: _Item) -> str:
        is_cut = self._reason is FinishReason.LENGTH and item is self._items[-1]
        return "incomplete" if is_cut else "completed"

    def _event(self, type: str, **fields: Any) -> Event:
        self._sent += 1
        return Event(type, self._sent - 1, fields)

    def _response(self, usage: UsageBody | None, *, status: str | None = None) -> dict[str, Any]:
        is_cut = self._reason is FinishReason.LENGTH
        return {
            **self._head,
            "status": status or ("incomplete" if is_cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [item.body(self._status(item)) for item in self._items],
            "usage": None if usage is None else self._usage(usage),
        }

    def _usage(self, usage: UsageBody) -> dict[str, Any]:
        reasoning = "".join(item.text for item in self._items if item.kind == "reasoning")
        return {
            "input_tokens": usage.prompt_tokens,
            # Writing to the cache costs nothing here and is not counted apart.
            "input_tokens_details": {
                "cached_tokens": usage.prompt_tokens_details.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._count_tokens(reasoning) if reasoning else 0},
            "total_tokens": usage.total_tokens,
        }


def _word(kind: str) -> str:
    return {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}[kind]


def _scores(kind: str) -> dict[str, Any]:
    return {"logprobs": []} if kind == "message" else {}

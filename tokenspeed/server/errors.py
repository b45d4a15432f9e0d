"""From an exception to what a client sees. Nothing else in the server decides on a status."""

import logging
import re
from typing import Final

import msgspec
from aiohttp import web
from msgspec import Struct

from control_plane.errors import RequestRejected
from tokenspeed.errors import EngineBusy, EngineUnavailable, GenerationFailed

RETRY_AFTER_SECONDS: Final = 1

log = logging.getLogger("tokenspeed.server")


class ErrorDetail(Struct, frozen=True):
    """The inside of an error object: `param` names the field at fault, `code` is for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(Struct, frozen=True):
    """An error as OpenAI clients read it, as a body or as a frame of a stream."""

    error: ErrorDetail


class ModelNotServed(LookupError):
    """The client asked for a model by a name that this server does not have."""


class RequestNotKnown(LookupError):
    """The client asked after a request that is over, or never came."""


class Unauthorized(PermissionError):
    """The client did not send the key that this server requires."""


def explain(error: Exception) -> tuple[int, ErrorBody]:
    """The status and the body for an exception. What is not the client's fault is logged here."""
    status, detail = _explain(error)
    if status == 500:
        log.error("a request failed: %s", error, exc_info=error)
    return status, ErrorBody(detail)


def error_response(error: Exception) -> web.Response:
    """An exception as a whole response."""
    status, body = explain(error)
    headers = {}
    if status in (429, 503):
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if isinstance(error, web.HTTPMethodNotAllowed):
        headers["Allow"] = error.headers["Allow"]
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json", headers=headers)


def _explain(error: Exception) -> tuple[int, ErrorDetail]:
    match error:
        case RequestRejected():
            code = "context_length_exceeded" if {"max_context_tokens", "limit_tokens"} & error.numbers.keys() else None
            return 400, ErrorDetail(str(error), "invalid_request_error", error.field or None, code)
        case msgspec.ValidationError():
            return 400, ErrorDetail(str(error), "invalid_request_error", _path(str(error)))
        case msgspec.DecodeError() | UnicodeDecodeError():
            return 400, ErrorDetail(f"the body is not JSON: {error}", "invalid_request_error")
        case Unauthorized():
            return 401, ErrorDetail(str(error), "authentication_error", code="invalid_api_key")
        case ModelNotServed():
            return 404, ErrorDetail(str(error), "not_found_error", "model", "model_not_found")
        case RequestNotKnown():
            return 404, ErrorDetail(str(error), "not_found_error", "id", "request_not_found")
        case web.HTTPRequestEntityTooLarge():
            return 413, ErrorDetail(f"the body is too large: {error.text}", "invalid_request_error")
        case web.HTTPException():
            return error.status, ErrorDetail(f"{error.status}: {error.reason}", "invalid_request_error")
        case EngineBusy():
            return 429, ErrorDetail(str(error), "rate_limit_error", code="engine_busy")
        case EngineUnavailable():
            return 503, ErrorDetail(str(error), "service_unavailable", code="engine_unavailable")
        case GenerationFailed():
            return 500, ErrorDetail(str(error), "server_error", code="generation_failed")
        case _:
            return 500, ErrorDetail("the server made a mistake; its log says which", "server_error")


def _path(message: str) -> str | None:
    """The field that a decoding error is about: "... - at `$.max_tokens`"."""
    found = re.search(r"at `\$\.([^`]*)`$", message)
    return found[1] if found else None

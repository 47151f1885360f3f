"""What goes wrong over HTTP, in OpenAI's form: a status, and an error object with message, type, param and code."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import (
    CheckpointError,
    ConfigError,
    ContextFull,
    EngineError,
    ExpertsUnavailable,
    SettingsError,
    TemplateError,
    TokenizerError,
)
from swarm.errors import SwarmError, clean_text
from swarm.peers.models import NoModels, NoSuchModel

_LONGEST = 1000  # characters of a message


class ApiError(Exception):
    """A request that is answered with an error. `param` names the field at fault, `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = clean_text(message, limit=_LONGEST, lines=True)
        self.param = param
        self.code = code
        self.headers = {**(headers or {})}
        """Headers that belong to the answer."""
        if retry_after_s is not None:
            self.headers["retry-after"] = str(retry_after_s)
        if status == 401:
            self.headers["www-authenticate"] = "Bearer"

    @property
    def kind(self) -> str:
        """OpenAI's name for this sort of error."""
        match self.status:
            case 401:
                return "authentication_error"
            case 403:
                return "permission_error"
            case 429:
                return "rate_limit_error"
            case status if status >= 500:
                return "server_error"
        return "invalid_request_error"

    def body(self) -> dict[str, Any]:
        """The JSON document."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The request itself is at fault."""
    return ApiError(400, message, param=param, code=code)


def no_model(name: str, known: str) -> ApiError:
    """There is no model of that name."""
    return ApiError(
        404, f"There is no model {name!r}; there is {known}.", param="model", code="model_not_found"
    )


def not_allowed(path: str, method: str, allowed: Sequence[str]) -> ApiError:
    """There is something at that path, but not for that method."""
    methods = ", ".join(allowed)
    return ApiError(
        405,
        f"{path[:200]} takes {methods}, not {method[:20]}.",
        code="method_not_allowed",
        headers={"allow": methods},
    )


def busy(retry_after_s: int) -> ApiError:
    """All slots are taken and the queue is full."""
    return ApiError(
        429,
        "Too many replies are waited for already; try again in a moment.",
        code="queue_full",
        retry_after_s=retry_after_s,
    )


def falsified(reason: str) -> ApiError:
    """Part of a stream turned out to be wrong, and what was sent cannot be taken back."""
    return ApiError(
        502,
        f"Part of this stream was wrong: {reason}. It is asked no more; send the request again.",
        code="falsified",
    )


def from_failure(error: Exception) -> ApiError:
    """What a request that could not be served is answered with."""
    match error:
        case ApiError():
            return error
        case ContextFull():
            return bad(str(error), code="context_length_exceeded")
        case SettingsError() | TemplateError():
            return bad(str(error))
        case CheckpointError() | ConfigError() | TokenizerError():
            return ApiError(503, str(error), code="model_unusable")
        case NoSuchModel() | NoModels():
            return ApiError(404, str(error), param="model", code="model_not_found")
        case ExpertsUnavailable() | SwarmError() | OSError():
            return ApiError(503, str(error), code="swarm_unavailable", retry_after_s=5)
        case MemoryError():
            return ApiError(
                503, "This machine has no memory left for that; try a shorter prompt.", code="memory"
            )
        case EngineError():
            return ApiError(500, str(error), code="engine")
    return ApiError(500, f"Unexpected {type(error).__name__}; the server's log says where.", code="internal")

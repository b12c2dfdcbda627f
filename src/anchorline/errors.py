"""Every error Anchorline raises on purpose.

AnchorlineError
├── ConfigError            a setting is unusable; names the flag and the limit
├── ModelError             the model cannot be loaded or is of a kind not served
├── RequestError           the client's request is unusable (HTTP 400); names the field
│   ├── PromptTooLong      the prompt does not fit into the context
│   ├── BodyTooLarge       the request body is over the limit (HTTP 413)
│   ├── NotFound           what the request names is not there (HTTP 404)
│   │   └── ModelNotFound  it names a model that this server does not have
│   └── Conflict           what the request wants cannot be, as things are (HTTP 409)
├── QueueFull              the waiting queue is at its limit (HTTP 429 + Retry-After)
├── ConstraintFailure      a reply cannot be kept within what was asked of it (HTTP 500)
├── Cancelled              the client went away or the request was cancelled
└── EngineFailure          the engine cannot go on (HTTP 503)
    └── BackendFailure     one llama.cpp call failed; the sequences in it are lost
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MODELS_NAMED = 50
"""As many models as an error names."""


class AnchorlineError(Exception):
    """Base of every error raised on purpose; ``str(error)`` is meant for a person."""


class ConfigError(AnchorlineError):
    """A setting is unusable. The message names the flag, the value and what is allowed."""


class ModelError(AnchorlineError):
    """The model cannot be loaded, or is of a memory kind that is not served."""


class RequestError(AnchorlineError):
    """The client's request is unusable; answered with HTTP 400.

    ``field`` is the JSON path of the offending part (``messages[2].role``), or None
    when the body as a whole is at fault. ``code`` is a short machine-readable reason.
    """

    def __init__(self, message: str, *, field: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.field = field
        self.code = code


class PromptTooLong(RequestError):
    """The prompt leaves no room in the context; the message says both numbers."""

    def __init__(self, *, prompt_tokens: int, context_tokens: int, field: str = "messages") -> None:
        super().__init__(
            f"the prompt is {prompt_tokens} tokens long, but the context holds {context_tokens} "
            f"and at least one token must be generated (--ctx sets the context)",
            field=field,
            code="context_length_exceeded",
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class BodyTooLarge(RequestError):
    """The request body is larger than ``--max-body-bytes``; answered with HTTP 413."""


class NotFound(RequestError):
    """What the request names is not there, or is not this client's; answered with HTTP 404."""

    def __init__(self, message: str, *, field: str | None = None, code: str = "not_found") -> None:
        super().__init__(message, field=field, code=code)


class ModelNotFound(NotFound):
    """The request names a model that this server does not have; the message names those that it has."""

    def __init__(self, name: str, *, known: Sequence[str]) -> None:
        shown = ", ".join(known[:MODELS_NAMED]) + (", …" if len(known) > MODELS_NAMED else "")
        super().__init__(
            f"the model {name[:200]!r} is not served; there are {shown}", field="model", code="model_not_found"
        )


class Conflict(RequestError):
    """What the request wants cannot be, as things are; answered with HTTP 409.

    ``details`` are further members of the error: JSON that says what is in the way.
    """

    def __init__(self, message: str, *, code: str, details: Mapping[str, object] | None = None) -> None:
        super().__init__(message, code=code)
        self.details = dict(details or {})


class QueueFull(AnchorlineError):
    """A waiting queue is at its limit, ``flag``; answered with HTTP 429 and ``Retry-After``."""

    def __init__(self, *, waiting: int, limit: int, retry_after_seconds: int, flag: str = "--queue") -> None:
        super().__init__(f"{waiting} requests are waiting and the queue holds {limit} ({flag})")
        self.retry_after_seconds = retry_after_seconds


class ConstraintFailure(AnchorlineError):
    """A reply cannot be kept within its grammar any longer; it ends here rather than go on without."""


class Cancelled(AnchorlineError):
    """The request was cancelled before it ended."""


class EngineFailure(AnchorlineError):
    """The engine cannot serve requests; answered with HTTP 503."""


class BackendFailure(EngineFailure):
    """One llama.cpp call failed. The sequences that took part in it must be emptied."""

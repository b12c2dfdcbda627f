"""Bodies and a context to check them against."""

from __future__ import annotations

import json
from typing import Any

from anchorline.api.chat import ChatCall, parse_chat
from anchorline.api.completions import CompletionCall, parse_completion
from anchorline.api.options import ApiContext
from anchorline.limits import Limits
from tests.server.standin import ByteTokenizer

MESSAGES = [{"role": "user", "content": "hi"}]
LIMITS = Limits(
    messages=3,
    tools=2,
    choices=3,
    stop_strings=2,
    stop_bytes=4,
    dry_breakers=3,
    dry_breaker_bytes=5,
    logprobs=5,
    logit_bias=2,
    body_bytes=100_000,
)
CONTEXT = ApiContext(tokenizer=ByteTokenizer(), limits=LIMITS, context_tokens=1000, parallel=4)


def chat(context: ApiContext = CONTEXT, /, **fields: Any) -> ChatCall:
    return parse_chat(json.dumps({"messages": MESSAGES} | fields).encode(), context=context)


def completion(context: ApiContext = CONTEXT, /, **fields: Any) -> CompletionCall:
    return parse_completion(json.dumps({"prompt": "hi"} | fields).encode(), context=context)

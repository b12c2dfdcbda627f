"""What a client may make the server do or hold: every limit, declared once."""

from __future__ import annotations

from dataclasses import dataclass

from anchorline.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on everything a client can grow."""

    body_bytes: int = setting(
        32 << 20, "--max-body-bytes", "Largest request body, in bytes.", minimum=1024, maximum=1 << 30
    )
    messages: int = setting(4096, "--max-messages", "Most messages in a request.", minimum=1, maximum=1 << 20)
    tools: int = setting(1024, "--max-tools", "Most tools in a request.", minimum=0, maximum=1 << 16)
    cache_key_characters: int = setting(
        512, "--max-cache-key", "Longest prompt_cache_key, in characters.", minimum=1, maximum=1 << 16
    )
    choices: int = setting(8, "--max-choices", "Largest n; never more than --parallel.", minimum=1, maximum=250)
    stop_strings: int = setting(16, "--max-stop-strings", "Most stop strings in a request.", minimum=0, maximum=4096)
    stop_bytes: int = setting(
        256, "--max-stop-bytes", "Longest stop string, in UTF-8 bytes.", minimum=1, maximum=1 << 16
    )
    dry_breakers: int = setting(
        16, "--max-dry-breakers", "Most entries in dry_sequence_breakers; each costs time.", minimum=1, maximum=256
    )
    dry_breaker_bytes: int = setting(
        40,
        "--max-dry-breaker-bytes",
        "Longest DRY sequence breaker, in UTF-8 bytes; llama.cpp reads no more than 40.",
        minimum=1,
        maximum=40,
    )
    cache_salt_bytes: int = setting(
        256, "--max-cache-salt-bytes", "Longest cache_salt, in UTF-8 bytes.", minimum=1, maximum=1 << 16
    )
    logprobs: int = setting(20, "--max-logprobs", "Largest top_logprobs.", minimum=0, maximum=1000)
    logit_bias: int = setting(1024, "--max-logit-bias", "Most entries in logit_bias.", minimum=0, maximum=1 << 20)
    grammar_bytes: int = setting(
        1 << 17,
        "--max-grammar-bytes",
        "Largest grammar of a request with all its schemas, in UTF-8 bytes.",
        minimum=64,
        maximum=1 << 26,
    )
    grammar_depth: int = setting(
        100, "--max-grammar-depth", "Deepest nesting of objects and lists in a JSON schema.", minimum=1, maximum=500
    )
    grammar_cache: int = setting(
        64, "--grammar-cache", "Compiled grammars kept for further requests.", minimum=0, maximum=1 << 16
    )
    grammar_cache_bytes: int = setting(
        16 << 20,
        "--grammar-cache-bytes",
        "Bytes of text of the compiled grammars that are kept; none may hold more than a quarter.",
        minimum=0,
        maximum=1 << 32,
    )
    connections: int = setting(
        512,
        "--max-connections",
        "Most open connections; one more pushes out the one that has waited longest for its client, or gets a 503.",
        minimum=1,
        maximum=1 << 16,
    )
    request_seconds: float = setting(
        30.0,
        "--request-timeout",
        "Seconds a client has for sending a request's head, and again for its body.",
        minimum=0.05,
        maximum=86400.0,
    )
    preparing: int = setting(
        4, "--prepare-threads", "Requests rendered and tokenised at the same time.", minimum=1, maximum=256
    )
    preparing_queue: int = setting(
        64,
        "--prepare-queue",
        "Requests that may wait to be rendered and tokenised; one more is answered with 429.",
        minimum=0,
        maximum=100000,
    )
    stored_responses: int = setting(
        1000,
        "--max-stored-responses",
        "Most responses of /v1/responses kept for previous_response_id; the least recently used go first.",
        minimum=0,
        maximum=1 << 20,
    )
    stored_bytes: int = setting(
        64 << 20,
        "--max-stored-bytes",
        "Memory for those responses and their input, in bytes; 0 keeps none.",
        minimum=0,
        maximum=1 << 40,
    )
    turns: int = setting(
        4096,
        "--max-turns",
        "Most generated turns that keep their token ids for when a client sends them back; 0 keeps none.",
        minimum=0,
        maximum=1 << 20,
    )
    turn_bytes: int = setting(
        64 << 20, "--max-turn-bytes", "Memory for those turns, in bytes.", minimum=1 << 16, maximum=1 << 40
    )
    rewrite_bytes: int = setting(
        4 << 20,
        "--max-rewrite-bytes",
        "Memory for what --float-volatile has moved, and as much for the dates of --pin-date, in bytes.",
        minimum=0,
        maximum=1 << 32,
    )
    recent_requests: int = setting(
        256,
        "--max-recent-requests",
        "Most requests that GET /cache/requests remembers, those of all tenants together.",
        minimum=1,
        maximum=1 << 16,
    )
    pin_ttl_seconds: float = setting(
        31 * 86400.0,
        "--max-pin-ttl",
        "Longest time that a pin with an end may stay unused, in seconds.",
        minimum=1.0,
        maximum=1e9,
    )
    pin_name: int = setting(128, "--max-pin-name", "Longest name of a pin, in characters.", minimum=1, maximum=1 << 12)
    template_seconds: float = setting(
        5.0,
        "--max-template-seconds",
        "Seconds the chat template may take for a request.",
        minimum=0.01,
        maximum=3600.0,
    )
    template_steps: int = setting(
        20_000_000,
        "--max-template-steps",
        "Loop and macro steps the chat template may take for a request.",
        minimum=1000,
        maximum=1 << 40,
    )
    template_chars: int = setting(
        64 << 20,
        "--max-template-chars",
        "Longest text the chat template may make, in characters.",
        minimum=1024,
        maximum=1 << 30,
    )

"""What of a request is protocol and stays as it is, by the place where it stands."""

from __future__ import annotations

from anchorline.record.wording import kept

TEXT = kept("text", "x")
"""Any text. Words that begin with x keep it, so that HEADER can be told from other texts at its second character."""

HEADER = kept("header", "x-anthropic-billing-header:")
"""Texts of the protocol that begin with "x-": servers know this one and drop it."""

TAG = kept("tag", "think thinking")
"""Names in tags: chat templates look for these."""

LITERAL = kept("literal", "true false null")
EXPONENT = kept("exponent", "e E")
"""Letters in JSON outside of its strings, the second ones right after a digit."""

LINK = kept(
    "link",
    """
    http:// https:// file:// data:image/png;base64, data:image/jpeg;base64, data:image/gif;base64,
    data:image/webp;base64, data:application/pdf;base64, data:audio/wav;base64, data:audio/mpeg;base64,
    """,
)

REFERENCE = kept("reference", "#/$defs/ #/definitions/")

PROTOCOL = kept(
    "protocol",
    """
    add_generation_prompt allowed_tools annotations arguments audio background best_of betas budget_tokens
    cache_control cache_prompt cache_salt call_id chat_template_kwargs choice citations clear_thinking
    client_metadata content context context_management continue_final_message conversation custom data definition
    description detail display documents dry_allowed_length dry_base dry_multiplier dry_penalty_last_n
    dry_sequence_breakers echo edits effort enable_thinking encrypted_content file file_data file_id file_url
    filename format frequency_penalty function function_call functions grammar guided_choice guided_grammar
    guided_json guided_regex id id_slot ignore_eos image_url include include_usage input input_audio input_schema
    instructions is_error item_reference json json_schema keep logit_bias logprobs max_completion_tokens
    max_output_tokens max_tokens max_tool_calls media_type messages metadata min_p mirostat mirostat_eta
    mirostat_tau modalities mode model n n_predict name options output output_config output_format
    parallel_tool_calls parameters phase prediction presence_penalty preserve_thinking previous_response_id prompt
    prompt_cache_key prompt_cache_retention reasoning reasoning_budget reasoning_content reasoning_effort
    reasoning_format regex repeat_last_n repeat_penalty response_format return_tokens role safety_identifier schema
    seed service_tier signature source status stop stop_sequences store stream stream_options strict
    structured_outputs suffix summary syntax system temperature text thinking thinking_budget thinking_budget_tokens
    timings_per_token title tool_call_id tool_calls tool_choice tool_use_id tools top_k top_logprobs top_n_sigma
    top_p truncation ttl type typical_p url user user_id verbosity xtc_probability xtc_threshold

    1h 24h 5m adaptive allowed any application/pdf assistant auto base64 clear_thinking_20251015
    clear_tool_uses_20250919 commentary completed computer_call computer_call_output custom_tool_call
    custom_tool_call_output deepseek detailed developer disabled document enabled ephemeral failed final_answer flex
    function_call_output high image image/gif image/jpeg image/png image/webp in-memory in_progress incomplete
    input_file input_image input_text json_object lark low max medium message minimal namespace none omitted
    output_text priority reasoning.encrypted_content reasoning_text redacted_thinking refusal required
    server_tool_use summarized summary_text text_editor_20250728 tool tool_reference tool_result tool_use web_search
    web_search_20250305 web_search_call xhigh
    """,
)
"""Keys of OpenAI's and Anthropic's calls, and what llama-server, vLLM and Anchorline add to them; then values."""

SCHEMA = kept(
    "schema",
    """
    $anchor $comment $defs $id $ref $schema additionalItems additionalProperties allOf anyOf array boolean const
    contains contentEncoding contentMediaType date date-time default definitions dependentRequired dependentSchemas
    deprecated description discriminator else email enum example examples exclusiveMaximum exclusiveMinimum format
    hostname http://json-schema.org/draft-07/schema# https://json-schema.org/draft/2020-12/schema if integer ipv4 ipv6
    items maxItems maxLength maxProperties maximum minItems minLength minProperties minimum multipleOf not null
    nullable number object oneOf pattern patternProperties prefixItems properties propertyNames readOnly regex required
    string then time title type unevaluatedItems unevaluatedProperties uniqueItems uri uuid writeOnly
    """,
)

PROTOCOL_VALUES = frozenset(
    {
        "detail",
        "display",
        "effort",
        "format",
        "function_call",
        "include",
        "keep",
        "media_type",
        "modalities",
        "mode",
        "phase",
        "prompt_cache_retention",
        "reasoning_format",
        "reasoning_effort",
        "role",
        "service_tier",
        "status",
        "summary",
        "syntax",
        "tool_choice",
        "truncation",
        "ttl",
        "type",
        "verbosity",
    }
)
"""Keys whose texts are words of the protocol."""

JSON_TEXTS = frozenset({"arguments"})
LINKS = frozenset({"url", "image_url", "file_url", "file_data"})
BLOBS = frozenset({"data"})
SYNTAX_TEXTS = frozenset({"definition", "grammar", "regex", "guided_grammar", "guided_regex"})
"""Keys whose texts are in a formal language: JSON, addresses, base64, grammars."""

DATA_OBJECTS = frozenset({"arguments", "input", "metadata", "client_metadata"})
"""Keys of objects whose own keys are wording too: a tool's arguments, and what a client adds for itself."""

SCHEMA_OBJECTS = frozenset({"parameters", "input_schema", "output_schema", "schema", "json", "guided_json"})

SCHEMA_NAMES = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependentRequired"}
)
"""Keywords of JSON Schema under which keys are names and not keywords."""

SCHEMA_DATA = frozenset({"const", "default", "enum", "example", "examples"})
SCHEMA_WORDS = frozenset({"$schema", "contentEncoding", "contentMediaType", "format", "type"})
SCHEMA_REFERENCES = frozenset({"$ref", "$dynamicRef"})
SCHEMA_PATTERNS = frozenset({"pattern"})

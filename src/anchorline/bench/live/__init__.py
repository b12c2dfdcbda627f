"""Traces replayed against any server that speaks OpenAI's or Anthropic's protocol."""

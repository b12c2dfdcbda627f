"""What is known of one agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from place import Place
from rules import tool_rules

CONTEXT_TOKENS = 131072
"""What agents are told of the server's context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent at one version."""

    name: str
    version: str
    drive: Callable[[Place], None]
    """Installs it and does two turns of one conversation, or what comes nearest to that."""
    uses_tools: bool = True
    rules: Callable[[], list[dict[str, Any]]] = tool_rules

"""The agents by name."""

from __future__ import annotations

import node_agents
import python_agents
from agent import Agent

AGENTS: dict[str, Agent] = {agent.name: agent for agent in (*python_agents.AGENTS, *node_agents.AGENTS)}

"""Agents from npm, run by a Node.js of their own."""

from __future__ import annotations

from agent import CONTEXT_TOKENS, Agent
from place import Place
from rules import FIRST, SECOND, one_turn_rules

OUTPUT_TOKENS = 8192


def _opencode(place: Place) -> None:
    opencode = place.npm("opencode-ai@1.18.33") / "opencode"
    limit = {"context": CONTEXT_TOKENS, "output": OUTPUT_TOKENS}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "local",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": "none"},
        "models": {"local": {"name": "local", "tool_call": True, "limit": limit}},
    }
    place.write(
        "work/opencode.json",
        {
            "provider": {"local": provider},
            "model": "local/local",
            "small_model": "local/local",
            "autoupdate": False,
            "share": "disabled",
        },
    )
    place.run(opencode, "run", FIRST)
    place.run(opencode, "run", "-c", SECOND)


def _provider(place: Place) -> dict[str, object]:
    """The server in the words that pi and OpenClaw share."""
    model = {
        "id": "local",
        "name": "local",
        "reasoning": False,
        "input": ["text"],
        "contextWindow": CONTEXT_TOKENS,
        "maxTokens": OUTPUT_TOKENS,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    return {"baseUrl": f"{place.url}/v1", "api": "openai-completions", "apiKey": "none", "models": [model]}


def _pi(place: Place) -> None:
    pi = place.npm("@earendil-works/pi-coding-agent@1.6.0") / "pi"
    folder = place.write("home/pi/models.json", {"providers": {"local": _provider(place)}}).parent
    chosen = ("-p", "--provider", "local", "--model", "local")
    environment = {"PI_OFFLINE": "1", "PI_CODING_AGENT_DIR": str(folder)}
    place.run(pi, *chosen, FIRST, **environment)
    place.run(pi, *chosen, "-c", SECOND, **environment)


def _qwen_code(place: Place) -> None:
    qwen = place.npm("@qwen-code/qwen-code@0.24.4") / "qwen"
    environment = {"OPENAI_BASE_URL": f"{place.url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "local"}
    place.run(qwen, "--auth-type", "openai", "--yolo", "-p", FIRST, **environment)
    place.run(qwen, "--auth-type", "openai", "--yolo", "-c", "-p", SECOND, **environment)


def _openclaw(place: Place) -> None:
    openclaw = place.npm("openclaw@2026.9.6") / "openclaw"
    place.write(
        "home/.openclaw/openclaw.json",
        {
            "models": {"providers": {"local": _provider(place)}},
            "agents": {
                "defaults": {
                    "model": {"primary": "local/local"},
                    "skipBootstrap": True,
                    "workspace": str(place.work),
                }
            },
        },
    )
    for question in (FIRST, SECOND):
        place.run(*(openclaw, "agent", "--local", "--agent", "main", "--session-id", "one", "--message", question))


def _cline(place: Place) -> None:
    cline = place.npm("cline@3.0.65") / "cline"
    provider = ("-p", "openai-compatible", "-k", "none", "-m", "local", "-b", f"{place.url}/v1")
    place.run(cline, "auth", *provider)
    try:
        # A session goes on only in its own terminal, so there are two rounds in one turn.
        place.run(cline, "-P", "openai-compatible", "-m", "local", "--json", FIRST)
    finally:
        place.run(cline, "hub", "stop")


def _claude_code(place: Place) -> None:
    claude = place.npm("@anthropic-ai/claude-code@2.1.332") / "claude"
    environment = {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": "local",
        "ANTHROPIC_SMALL_FAST_MODEL": "local-small",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    place.run(claude, "-p", FIRST, "--allowedTools", "Bash,Read", **environment)
    place.run(claude, "-p", "-c", SECOND, "--allowedTools", "Bash,Read", **environment)


def _codex(place: Place) -> None:
    codex = place.npm("@openai/codex@0.171.0") / "codex"
    place.write(
        "home/codex/config.toml",
        f"""model = "local"
model_provider = "local"
model_context_window = {CONTEXT_TOKENS}
approval_policy = "never"
sandbox_mode = "danger-full-access"

[model_providers.local]
name = "local"
base_url = "{place.url}/v1"
env_key = "LOCAL_KEY"
wire_api = "responses"
""",
    )
    environment = {"CODEX_HOME": str(place.home / "codex"), "LOCAL_KEY": "none"}
    place.run(codex, "exec", "--skip-git-repo-check", FIRST, **environment)
    place.run(codex, "exec", "--skip-git-repo-check", "resume", "--last", SECOND, **environment)


AGENTS = (
    Agent(name="opencode", version="1.18.33", drive=_opencode),
    Agent(name="pi", version="1.6.0", drive=_pi),
    Agent(name="qwen-code", version="0.24.4", drive=_qwen_code),
    Agent(name="openclaw", version="2026.9.6", drive=_openclaw),
    Agent(name="cline", version="3.0.65", drive=_cline, rules=one_turn_rules),
    Agent(name="claude-code", version="2.1.332", drive=_claude_code),
    Agent(name="codex", version="0.171.0", drive=_codex),
)

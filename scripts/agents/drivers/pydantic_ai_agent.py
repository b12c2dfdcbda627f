"""Two turns of a pydantic-ai agent with one tool; the questions are the arguments, the server comes from BASE_URL."""

import os
import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=os.environ["BASE_URL"], api_key="none")
agent = Agent(OpenAIChatModel("local", provider=provider), instructions="You run commands. " * 100)


@agent.tool_plain
def echo(text: str) -> str:
    """Print a text."""
    return text


history: list = []
for question in sys.argv[1:]:
    result = agent.run_sync(question, message_history=history)
    history = result.all_messages()
    print(result.output)

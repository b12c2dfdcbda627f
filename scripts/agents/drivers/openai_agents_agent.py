"""Two turns of an openai-agents agent with one tool; the questions are the arguments, API says which protocol."""

import os
import sys

from openai import AsyncOpenAI

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)


@function_tool
def echo(text: str) -> str:
    """Print a text."""
    return text


client = AsyncOpenAI(base_url=os.environ["BASE_URL"], api_key="none")
kind = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}[os.environ.get("API", "chat")]
agent = Agent(
    name="runner", instructions="You run commands. " * 100, tools=[echo], model=kind("local", openai_client=client)
)
history: list = []
for question in sys.argv[1:]:
    result = Runner.run_sync(agent, [*history, {"role": "user", "content": question}])
    history = result.to_input_list()
    print(result.final_output)

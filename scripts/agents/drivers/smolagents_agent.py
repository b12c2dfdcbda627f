"""Two turns of a smolagents agent with one tool; the questions are the arguments, the server comes from BASE_URL."""

import os
import sys

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def echo(text: str) -> str:
    """Print a text.

    Args:
        text: What to print.
    """
    return text


model = OpenAIServerModel("local", api_base=os.environ["BASE_URL"], api_key="none")
agent = ToolCallingAgent(tools=[echo], model=model, max_steps=4)
for index, question in enumerate(sys.argv[1:]):
    print(agent.run(question, reset=index == 0))

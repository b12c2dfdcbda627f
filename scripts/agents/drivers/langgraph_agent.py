"""Two turns of a LangGraph agent with one tool; the questions are the arguments, the server comes from BASE_URL."""

import os
import sys

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver


@tool
def echo(text: str) -> str:
    """Print a text."""
    return text


model = ChatOpenAI(model="local", base_url=os.environ["BASE_URL"], api_key="none")
agent = create_agent(model, [echo], system_prompt="You run commands. " * 100, checkpointer=InMemorySaver())
for question in sys.argv[1:]:
    said = agent.invoke({"messages": [("user", question)]}, {"configurable": {"thread_id": "one"}})
    print(said["messages"][-1].content)

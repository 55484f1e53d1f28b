"""A small tool-using agent: asks a model behind any OpenAI-compatible API, calls MCP tools, prints the answer.

    OPENAI_BASE_URL=… OPENAI_API_KEY=… python agent.py --mcp-config mcp.json "Will it rain in Boise tonight?"
"""

import argparse
import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack

from mcp import Client, StdioServerParameters
from openai import AsyncOpenAI

SYSTEM_PROMPT = "Use the tools to answer in one short sentence."
MAX_TURNS = 6


def load_servers(config):
    """The MCP servers of a configuration, given as a file, as JSON, or as the URL of one server."""
    if config.startswith(("http://", "https://")):
        return {"server": {"url": config}}
    if not config.lstrip().startswith("{"):
        with open(config) as file:
            config = file.read()
    return json.loads(config)["mcpServers"]


async def connect(servers, stack):
    """Opens all servers; returns the tools in OpenAI's form, and which client has which tool."""
    tools, clients = [], {}
    for server in servers.values():
        target = server.get("url") or StdioServerParameters(command=server["command"], args=server.get("args", []), env=server.get("env"))
        client = await stack.enter_async_context(Client(target))
        for tool in (await client.list_tools()).tools:
            clients[tool.name] = client
            function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
            tools.append({"type": "function", "function": function})
    return tools, clients


async def call_tool(clients, call):
    """The text of a tool's result; whatever goes wrong is text for the model too."""
    name = call.function.name
    if name not in clients:
        return f"Error: there is no tool {name}; there are: {', '.join(clients)}"
    try:
        result = await clients[name].call_tool(name, json.loads(call.function.arguments or "{}"))
    except Exception as error:
        return f"Error: {error}"
    return "\n".join(block.text for block in result.content if block.type == "text")


async def answer(question, mcp_config):
    model = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]
    async with AsyncExitStack() as stack:
        tools, clients = await connect(load_servers(mcp_config), stack)
        openai = await stack.enter_async_context(AsyncOpenAI())
        for _ in range(MAX_TURNS):
            response = await openai.chat.completions.create(model=model, messages=messages, tools=tools)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": await call_tool(clients, call)})
    return ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mcp-config", default=os.environ.get("MCP_CONFIG"), help="file, JSON or URL (default: $MCP_CONFIG)")
    parser.add_argument("question", nargs="?", help="default: standard input")
    arguments = parser.parse_args()
    print(asyncio.run(answer(arguments.question or sys.stdin.read().strip(), arguments.mcp_config or "mcp.json")))

"""A small tool-using agent: asks a model behind any OpenAI-compatible API, calls MCP tools, prints the answer."""

import argparse
import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack

from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client
from openai import AsyncOpenAI

SYSTEM_PROMPT = "Use the tools to answer in one short sentence."
MODEL = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
MAX_TURNS = 4


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
        if "url" in server:
            http = await stack.enter_async_context(create_mcp_http_client(headers=server.get("headers")))
            target = streamable_http_client(server["url"], http_client=http)
        else:
            target = StdioServerParameters(command=server["command"], args=server.get("args", []), env=server.get("env"))
        client = await stack.enter_async_context(Client(target))
        for tool in (await client.list_tools()).tools:
            clients[tool.name] = client
            function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
            tools.append({"type": "function", "function": function})
    return tools, clients


async def call_tool(clients, call):
    """The text of a tool's result; whatever goes wrong is text for the model too."""
    if call.function.name not in clients:
        return f"Error: there is no tool {call.function.name}; there are: {', '.join(clients)}"
    try:
        result = await clients[call.function.name].call_tool(call.function.name, json.loads(call.function.arguments or "{}"))
    except Exception as error:
        return f"Error: {error}"
    return "\n".join(block.text for block in result.content if block.type == "text")


async def answer(question, mcp_config):
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]
    async with AsyncExitStack() as stack:
        tools, clients = await connect(load_servers(mcp_config), stack)
        openai = await stack.enter_async_context(AsyncOpenAI())
        for _ in range(MAX_TURNS):
            response = await openai.chat.completions.create(model=MODEL, messages=messages, tools=tools)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": await call_tool(clients, call)})
    return ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mcp-config", default=os.environ.get("MCP_CONFIG", "mcp.json"), help="a file, JSON or a URL")
    parser.add_argument("question", nargs="?", help="read from standard input if absent")
    arguments = parser.parse_args()
    print(asyncio.run(answer(arguments.question or sys.stdin.read().strip(), arguments.mcp_config)))

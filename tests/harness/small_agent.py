"""An agent of the standard library alone: asks the model, runs the tools it wants, and prints the answer.

When the model gives a plain answer whose length is even, the agent looks the forecast up by itself. So with a random
model, episodes of one scenario earn different rewards, and there is something to learn.
"""
import json
import os
import re
import sys
import urllib.request


def post(url, body, key=None):
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        headers, text = dict(response.headers), response.read().decode()
    if text.startswith(("event:", "data:")):
        text = next(line[5:] for line in text.splitlines() if line.startswith("data:") and line[5:].strip())
    return headers, (json.loads(text) if text.strip() else None)


class Tools:
    def __init__(self, path):
        with open(path) as file:
            self.url = next(iter(json.load(file)["mcpServers"].values()))["url"]
        client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "small", "version": "1"}}
        self.call("initialize", client)
        post(self.url, {"jsonrpc": "2.0", "method": "notifications/initialized"})

    def call(self, method, params):
        return post(self.url, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})[1]["result"]


def main():
    question = sys.stdin.read()
    tools = Tools(os.environ["TRAINYARD_MCP_CONFIG"])
    schemas = [
        {"type": "function", "function": {"name": tool["name"], "description": tool.get("description", ""),
                                          "parameters": tool["inputSchema"]}}
        for tool in tools.call("tools/list", {})["tools"]
    ]
    messages = [{"role": "user", "content": question}]
    for _ in range(4):
        _, answer = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions",
                         {"model": "small", "messages": messages, "tools": schemas}, os.environ["OPENAI_API_KEY"])
        message = answer["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            result = tools.call("tools/call", {"name": call["function"]["name"],
                                               "arguments": json.loads(call["function"]["arguments"])})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result["content"][0]["text"]})
    content = message.get("content") or ""
    place = re.search(r"(-?\d+\.\d+), ?(-?\d+\.\d+)", question)
    if len(content) % 2 == 0 and place:
        arguments = {"latitude": float(place[1]), "longitude": float(place[2]), "period": "all"}
        tools.call("tools/call", {"name": "get_forecast", "arguments": arguments})
    print(content)


main()

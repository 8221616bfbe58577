"""Conversations drawn from a seed: turns, system prompts, thinking, tools and their calls and answers, content in parts, texts of many scripts."""
import random

WORDS = ["sum", "the", "Answer", "naïve", "Straße", "ﬁn", "вопрос", "你好", "שלום", "مرحبا", "😀", "👩‍👩‍👧", "ǅ", "İ", "ΣΑΣ", "a_b", "{{ x }}", "{% if %}", "<b>", "&amp;", "\"q\"", "it's", "back\\slash",
         "\u00a0", "\u2028", "\t", "\r\n", "\n\n", "  ", "\x1f", "<|im_end|>", "<|im_start|>", "<think>", "</think>", "<tool_call>", "</s>", "<|eot_id|>", "[INST]", "<end_of_turn>", "1e16", "0.1", "-0"]


def text(draw, most=12):
    return " ".join(draw.choice(WORDS) for _ in range(draw.randrange(most)))


def value(draw, depth=0):
    kind = draw.randrange(9 if depth < 3 else 6)
    if kind == 0:
        return None
    if kind == 1:
        return draw.random() < 0.5
    if kind == 2:
        return draw.choice([0, 1, -7, 2**40, 10**15])
    if kind == 3:
        return draw.choice([0.0, -0.0, 1.5, 1e16, 1e-5, 1e22, 0.1, 123456.789, 5e-324])
    if kind < 6:
        return text(draw, 4)
    if kind < 8:
        return {draw.choice(["a", "b", "items", "type", "Z", "ключ", "x y", "name"]): value(draw, depth + 1) for _ in range(draw.randrange(4))}
    return [value(draw, depth + 1) for _ in range(draw.randrange(4))]


def schema(draw, depth=0):
    kind = draw.choice(["string", "integer", "number", "boolean", "array", "object"] if depth < 2 else ["string", "integer"])
    out = {"type": kind}
    if draw.random() < 0.7:
        out["description"] = text(draw, 5)
    if kind == "string" and draw.random() < 0.3:
        out["enum"] = ["a", "B", "ç"]
    if kind == "array" and draw.random() < 0.8:
        out["items"] = schema(draw, depth + 1)
    if kind == "object":
        out["properties"] = {draw.choice(["city", "Unit", "days", "filter"]): schema(draw, depth + 1) for _ in range(draw.randrange(3))}
        out["required"] = list(out["properties"])[:1]
    if draw.random() < 0.1:
        out["nullable"] = True
    if draw.random() < 0.1:
        out["default"] = value(draw, 2)
    return out


def tool(draw, name):
    properties = {name: schema(draw) for name in draw.sample(["location", "unit", "Days", "filters", "count"], draw.randrange(4))}
    parameters = {"type": "object", "properties": properties, "required": list(properties)[: draw.randrange(3)]}
    out = {"type": "function", "function": {"name": name, "description": text(draw, 8) or "does it", "parameters": parameters}}
    if draw.random() < 0.1:
        out["function"]["strict"] = True
    return out


def content(draw, parts):
    if parts and draw.random() < 0.4:
        return [{"type": "text", "text": text(draw)} for _ in range(draw.randrange(1, 4))]
    return text(draw)


def call(draw, name, as_text):
    arguments = {draw.choice(["location", "unit", "filters", "n"]): value(draw) for _ in range(draw.randrange(4))}
    import json

    out = {"type": "function", "function": {"name": name, "arguments": json.dumps(arguments) if as_text else arguments}}
    out["id"] = f"call{draw.randrange(10**9):09d}"[:9]
    return out


def conversation(seed):
    """Variables of one rendering."""
    draw = random.Random(seed)
    parts, as_text = draw.random() < 0.3, draw.random() < 0.3
    names = draw.sample(["get_weather", "search.web", "add"], draw.randrange(1, 4))
    tools = [tool(draw, name) for name in names] if draw.random() < 0.5 else draw.choice([None, None, []])
    messages = [{"role": "system", "content": content(draw, parts)}] if draw.random() < 0.5 else []
    for _ in range(draw.randrange(1, 5)):
        messages.append({"role": "user", "content": content(draw, parts)})
        if tools and draw.random() < 0.6:
            calls = [call(draw, draw.choice(names), as_text) for _ in range(draw.randrange(1, 3))]
            message = {"role": "assistant", "content": draw.choice(["", text(draw)]), "tool_calls": calls}
            if draw.random() < 0.3:
                message["reasoning_content"] = text(draw)
            messages.append(message)
            for made in calls:
                messages.append({"role": "tool", "name": made["function"]["name"], "tool_call_id": made["id"], "content": content(draw, parts)})
        if draw.random() < 0.9:
            answer = {"role": "assistant", "content": content(draw, parts)}
            if draw.random() < 0.3 and isinstance(answer["content"], str):
                answer["content"] = f"<think>\n{text(draw)}\n</think>\n\n{answer['content']}"
            if draw.random() < 0.2:
                answer["reasoning_content"] = answer["thinking"] = text(draw)
            messages.append(answer)
    if draw.random() < 0.5:
        messages.append({"role": "user", "content": content(draw, parts)})
    variables = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": draw.random() < 0.5,
                 "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    for name, choices in {"enable_thinking": [True, False], "reasoning_effort": ["low", "high"], "preserve_thinking": [True, False], "date_string": ["26 Jul 2024"],
                          "builtin_tools": [["python", "browser"]], "tools_in_user_message": [True, False], "custom_tools": [None]}.items():
        if draw.random() < 0.2:
            variables[name] = draw.choice(choices)
    return variables

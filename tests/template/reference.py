"""The reference for common/template: jinja2 in the environment that transformers sets up for chat templates.

render() gives ("text", text, generated ranges in characters) or ("error", message).  Needs jinja2 (Debian: python3-jinja2).
"""
import datetime
import json

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    """{% generation %} blocks: their text, and where it lies in what was rendered before."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_generated"), [], [], body).set_lineno(line)

    def _generated(self, caller):
        text = caller()
        begin = len("".join(self.environment.rendered))
        if text:
            self.environment.generated.append([begin, begin + len(text)])
        return text


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        if any(name.startswith("_") for name in attributes):
            raise jinja2.exceptions.SecurityError("underscore")
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError("underscore")
        jinja2.utils.Namespace.__setitem__(self, name, value)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment(now_ms):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(now_ms / 1000).strftime(form)
    env.globals["namespace"] = Namespace
    env.rendered, env.generated = [], []
    return env


def merged(ranges):
    out = []
    for begin, end in sorted(ranges):
        if out and begin <= out[-1][1]:
            out[-1][1] = max(end, out[-1][1])
        else:
            out.append([begin, end])
    return out


def render(source, variables, now_ms=0):
    try:
        env = environment(now_ms)
        for piece in env.from_string(source).generate(**variables):
            env.rendered.append(piece)
        return "text", "".join(env.rendered), merged(env.generated)
    except Exception as fault:  # whatever jinja2 lets through
        return "error", f"{type(fault).__name__}: {fault}", []

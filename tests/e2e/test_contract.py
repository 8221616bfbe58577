"""The contract and the services agree about every member of every JSON body, and every integer of a query or a header, in both directions.

openapi/*.yaml is walked: around one minimal body per operation, every member is left out, made null, of another type, put at its bounds, beyond them and
between them, too long, too many; an unknown one is added.  jsonschema says what the contract makes of the body, the service says what it makes of it.  A 422
(or OpenAI's 400) for a valid body has to be one that tests/contract/explained.yaml accounts for; an invalid body is refused naming the member.  Nothing is random.
(`make contract` looks further, with schemathesis.)"""
import copy
import http.client
import json
import re
import sys
import urllib.parse

import jsonschema
import pytest

from contract import contract
from harness import Cluster, ROOT, grpo_config

sys.path.append(str(ROOT / "tests/contract"))
import explained  # noqa: E402

LONGEST = 5000  # bytes of a text and items of an array that are put at their limits
REFUSED, NOT_OFFERED = (400, 422), 501
ANY = "*"

# Texts for the patterns of openapi/*.yaml, by a piece of the pattern.
TEXTS = {"^r[0-9]+(": "r404.0", "{64}": "ab" * 32, "http://": "http://10.0.0.7:8100", "._-]*$": "r1", "^r(0": "r404", "^w(0": "w404", r"\.[0-9]": "r404.0.0.0-0"}
# What no bound of a single member says: a sample without tokens is an aborted one; the newest epoch is never stale; the file is not there, so that no run
# begins.
NEWEST = str(2**64 - 1)
MINIMAL = {
    "registerWorker": lambda body: body.update(slots=1),
    "putResult": lambda body: (body.update(handed_back=True), [sample.update(finish_reason="abort") for sample in body["samples"]]),
    "createRun": lambda body: body["dataset"].update(path="none.jsonl"),
    "checkRunConfig": lambda body: body["dataset"].update(path="none.jsonl"),
    "openRun": lambda body: body.update(epoch=NEWEST, fence=NEWEST),
    "submitStep": lambda body: body.update(denominator=1),
}
OWN_LIMITS = {"training.chunk_tokens": "--chunk-tokens"}  # a member whose limit may be less than the contract's, and the flag that says so
SKIPPED = {"pushWeights", "putPassResult"}  # their bodies are files; the former's parameters are read one after the other, and half of them where there is a fabric only


class Walker:
    """One service's schemas: minimal values, and every member with the values to try."""

    def __init__(self, service, known):
        self.contract = contract(service)
        self.known = known  # operationId -> an id for its path

    def open(self, schema):
        """Without $ref and allOf of one."""
        while "$ref" in schema or "allOf" in schema:
            if "$ref" in schema:
                schema = {**self.contract.deref({"$ref": schema["$ref"]}), **{k: v for k, v in schema.items() if k != "$ref"}}
            else:
                schema = {**{k: v for part in schema["allOf"] for k, v in self.open(part).items()}, **{k: v for k, v in schema.items() if k != "allOf"}}
        return schema

    def validator(self, schema):
        return jsonschema.Draft202012Validator(schema, resolver=self.contract.resolver)

    def parameters(self, item, operation):
        return map(self.contract.deref, [*item.get("parameters", []), *operation.get("parameters", [])])

    def filled(self, path, item, operation):
        """The path of something that is there where it is looked up before the body is read, else of something that is not."""
        values = {parameter["name"]: self.minimal(parameter["schema"]) for parameter in self.parameters(item, operation) if parameter["in"] == "path"}
        if operation["operationId"] in self.known:
            values["id"] = self.known[operation["operationId"]]
        return re.sub(r"\{(\w+)\}", lambda match: str(values[match[1]]), path)

    def branches(self, schema):
        """The alternatives of a value, null apart."""
        schema = self.open(schema)
        if "oneOf" in schema and "properties" not in schema:
            return [branch for part in schema["oneOf"] for branch in self.branches(part)]
        kind = schema.get("type")
        if isinstance(kind, list):
            return [{**schema, "type": one} for one in kind if one != "null"]
        return [] if kind == "null" else [schema]

    def minimal(self, schema):
        schema = self.branches(schema)[0]
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][0]
        kind = schema.get("type", "string")  # without one anything will do
        if kind == "object":
            required = [*schema.get("required", []), *schema.get("oneOf", [{}])[0].get("required", [])]
            return {name: self.minimal(schema["properties"][name]) for name in required}
        if kind == "array":
            if "prefixItems" in schema:
                return [self.minimal(item) for item in schema["prefixItems"]]
            return [self.minimal(schema["items"]) for _ in range(schema.get("minItems", 0))]
        if kind == "string":
            found = [text for piece, text in TEXTS.items() if piece in schema.get("pattern", "")]
            return found[0] if found else "x" * schema.get("minLength", 1)
        return False if kind == "boolean" else schema.get("minimum", 0)

    def members(self, schema, body, keys):
        """(keys, branches, body) of every member below keys: body is one in which the member's parent is."""
        for branch in self.branches(schema):
            here = at(body, keys)
            if branch.get("type") == "object":
                for name, member in branch.get("properties", {}).items():
                    value = here[name] if name in here else None
                    yield [*keys, name], self.branches(member), body
                    if value is None:
                        for one in self.branches(member):
                            yield from self.members(one, put(body, [*keys, name], self.minimal(one)), [*keys, name])
                    else:
                        yield from self.members(member, body, [*keys, name])
            if branch.get("type") == "array" and isinstance(here, list):
                items = branch.get("prefixItems") or [branch["items"]]
                for index, item in enumerate(items):
                    filled = body if len(here) > index else put(body, keys, [self.minimal(one) for one in items])
                    yield [*keys, index], self.branches(item), filled
                    yield from self.members(item, filled, [*keys, index])

    def tries(self, branch):
        """Values at, within and beyond the bounds of one alternative."""
        kind = branch.get("type")
        values = list(branch.get("enum", []))
        if kind in ("integer", "number"):
            for bound in (branch.get("minimum"), branch.get("maximum"), branch.get("exclusiveMaximum")):
                if bound is None:
                    continue
                step = 1 if kind == "integer" else max(abs(bound), 1) * 1e-6
                values += [bound, bound - step, bound + step]
                if kind == "integer" and abs(bound) < 2**53:
                    values += [float(bound), bound + 0.5]
        if kind == "string" and branch.get("maxLength", LONGEST) < LONGEST:
            start = "http://" if "http://" in branch.get("pattern", "") else ""
            for length in (branch["maxLength"], branch["maxLength"] + 1):
                values += [start + "a" * (length - len(start)), "é" * length]
        if kind == "array" and branch.get("maxItems", LONGEST) < LONGEST and "items" in branch:
            values += [[self.minimal(branch["items"])] * count for count in (branch.get("minItems", 0), branch["maxItems"], branch["maxItems"] + 1)]
        return values


def at(body, keys):
    for key in keys:
        body = body[key]
    return body


def put(body, keys, value):
    body = copy.deepcopy(body)
    at(body, keys[:-1])[keys[-1]] = value
    return body


def without(body, keys):
    body = copy.deepcopy(body)
    del at(body, keys[:-1])[keys[-1]]
    return body


def name_of(keys):
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")


def blamed_by(errors):
    """The members that jsonschema finds fault with."""
    for error in errors:
        keys = list(error.absolute_path)
        yield name_of(keys)
        if error.validator == "required":
            yield from (name_of([*keys, name]) for name in error.validator_value if name not in error.instance)
        yield from blamed_by(error.context)


def within(field, name):
    """Whether an error about `field` is one about the member `name` (ANY: any): it itself, what it is in, or what is in it."""
    if name == ANY:
        return True
    above, below = sorted((field, name), key=len)
    return above != "" and below.startswith(above) and below[len(above) : len(above) + 1] in ("", ".", "[")


class Service:
    def __init__(self, name, url):
        self.name = name
        self.contract = contract(name)
        self.url = urllib.parse.urlsplit(url)
        self.connection = http.client.HTTPConnection(self.url.netloc, timeout=60)
        self.requests = 0

    def ask(self, method, path, body=None, headers=None):
        """(status, error) of one exchange, which the contract judges too."""
        self.requests += 1
        self.connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
        answer = self.connection.getresponse()
        content = answer.read()
        self.contract.check(method, path.partition("?")[0], answer.status, answer.headers.get("Content-Type"), content)
        error = json.loads(content)["error"] if answer.status >= 400 else None
        if error and "param" in error:  # OpenAI's form
            error["field"] = error["param"] or ""
            return NOT_OFFERED if error["code"] == "unsupported_parameter" else answer.status, error
        return answer.status, error

    def judge(self, label, what, blamed, status, error):
        """What is wrong with an answer, or None.  blamed: the members that the contract finds fault with; empty of a valid request."""
        valid = not blamed
        flag = OWN_LIMITS.get(error["field"]) if error else None
        if valid and status in REFUSED and flag and flag in error["message"]:
            return None
        if valid and status in REFUSED and explained.met(self.name, label, "positive_data_acceptance", status, error) is None:
            return f"{label}: {what} is in the contract and refused: {error}"
        if not valid and status not in (*REFUSED, NOT_OFFERED):
            return f"{label}: {what} is not in the contract and answered {status}"
        if not valid and not any(within(error["field"], name) for name in blamed):
            return f"{label}: {what} is not in the contract and refused for something else: {error}"
        return None


def bodies(walker, schema, operation):
    """(what, member's name, body), each body wrong or at a limit in one place."""
    body = walker.minimal(schema)
    MINIMAL.get(operation["operationId"], lambda _: None)(body)
    yield "the minimal body", "", body
    yield "an unknown key", "unknown_key", {**body, "unknown_key": 1}
    for keys, branches, around in walker.members(schema, body, []):
        name = name_of(keys)
        values = [value for branch in branches for value in walker.tries(branch)]
        for value in [None, True, 7.5, "?", "", [], {}, [{}], *values]:
            unreadable = isinstance(value, int) and abs(value) >= 2**63  # to the parser, which knows no members
            yield f"{name} = {json.dumps(value)[:60]}", ANY if unreadable else name, put(around, keys, value)
        if isinstance(keys[-1], str) and keys[-1] in at(around, keys[:-1]):
            yield f"{name} left out", name, without(around, keys)
        for branch in branches:
            if branch.get("type") == "object":
                value = {**walker.minimal(branch), "unknown_key": 1}
                yield f"{name} with an unknown key", f"{name}.unknown_key", put(around, keys, value)


def wrong_with_bodies(service, walker, method, path, item, operation):
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    validator = walker.validator(schema)
    for what, name, body in bodies(walker, schema, operation):
        status, error = service.ask(method, walker.filled(path, item, operation), json.dumps(body))
        errors = list(validator.iter_errors(body))
        blamed = [name, *blamed_by(errors)] if errors else []
        if wrong := service.judge(f"{method} {path}", what, blamed, status, error):
            yield wrong


def wrong_with_queries(service, walker, method, path, item, operation):
    filled = walker.filled(path, item, operation)
    beside = "".join(f"{p['name']}={walker.minimal(p['schema'])}&" for p in walker.parameters(item, operation) if p["in"] == "query" and p.get("required"))
    for parameter in walker.parameters(item, operation):
        schema = walker.open(parameter["schema"])
        if parameter["in"] != "query" or schema["type"] != "integer":
            continue
        for value in [*walker.tries(schema), "", "x", "1x"]:
            if isinstance(value, float) and value == int(value):
                continue  # a query has no types: 1.0 is no spelling of 1
            status, error = service.ask(method, f"{filled}?{beside}{parameter['name']}={value}")
            blamed = [] if walker.validator(schema).is_valid(value) else [parameter["name"]]
            if wrong := service.judge(f"{method} {path}", f"?{parameter['name']}={value}", blamed, status, error):
                yield wrong


def wrong_with_headers(service, walker, method, path, item, operation):
    """Beside the minimal body, whose numbers are 0: another number is 422 too, and explained."""
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    body = walker.minimal(schema)
    MINIMAL.get(operation["operationId"], lambda _: None)(body)
    for parameter in walker.parameters(item, operation):
        schema = walker.open(parameter["schema"])
        if parameter["in"] != "header" or schema["type"] != "integer":
            continue
        field = parameter["name"].removeprefix("X-Leasehold-").lower()
        for value in [*walker.tries(schema), "", "x", "1x"]:
            if isinstance(value, float) and value == int(value):
                continue
            status, error = service.ask(method, walker.filled(path, item, operation), json.dumps(body), {parameter["name"]: str(value)})
            blamed = [] if walker.validator(schema).is_valid(value) else [field]
            if wrong := service.judge(f"{method} {path}", f"{parameter['name']}: {value}", blamed, status, error):
                yield wrong


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    free = ["--allow-hosts", "any", "--registrations-per-s", 1000000]  # one client registers under many addresses
    with Cluster(tmp_path_factory.mktemp("contract"), trainer=["--random-init", 1], coordinator=free) as cluster:
        cluster.add_server("gen", "--slots", 8)
        cluster.run(grpo_config(1, groups=1, samples=2))  # the server has weights
        lease = cluster.query("SELECT id FROM leases LIMIT 1")[0][0]
        worker = f"w{cluster.query('SELECT max(id) FROM workers')[0][0]}"
        cluster.known = {"putResult": lease, "heartbeat": worker, "pollLeases": worker, "pollPasses": worker}
        # Without a trainer, whose model would have its own say about every run.
        cluster.alone = cluster.start("alone", "coordinator", ["--db", cluster.folder / "alone.db", "--data-dir", cluster.folder, *free])
        yield cluster


@pytest.mark.parametrize("program", ["coordinator", "trainer-server", "generation-server"])
def test_what_the_contract_allows_is_read_and_what_it_does_not_is_refused_by_name(cluster, program):
    url = next(service.url for service in cluster.services if service.program == program)
    service, alone, walker = Service(program, url), Service(program, cluster.alone.url), Walker(program, cluster.known)
    faults = []
    for path, item in walker.contract.document["paths"].items():
        for method, operation in item.items():
            if method not in ("get", "post", "put", "delete") or operation["operationId"] in SKIPPED:
                continue
            if "requestBody" in operation:
                asked = alone if operation["operationId"] in ("createRun", "checkRunConfig") else service
                faults += wrong_with_bodies(asked, walker, method.upper(), path, item, operation)
                faults += wrong_with_headers(asked, walker, method.upper(), path, item, operation)
            faults += wrong_with_queries(service, walker, method.upper(), path, item, operation)
    assert not faults, f"{len(faults)} of {service.requests}:\n" + "\n".join(faults[:60])

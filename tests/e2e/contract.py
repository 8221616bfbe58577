"""openapi/*.yaml as the judge of real exchanges: every answer that the end-to-end tests see is validated against its operation's schema."""
import functools
import json
import pathlib
import re

import jsonschema
import yaml

OPENAPI = pathlib.Path(__file__).resolve().parents[2] / "openapi"


class ContractError(AssertionError):
    pass


class Contract:
    def __init__(self, service):
        self.service = service
        self.document = yaml.safe_load((OPENAPI / f"{service}.yaml").read_text())
        self.operations = []
        for path, item in self.document["paths"].items():
            pattern = re.compile("^" + re.sub(r"\{[^}]+\}", "[^/]+", path) + "$")
            for method, operation in item.items():
                if method in ("get", "post", "put", "delete"):
                    self.operations.append((method.upper(), path, pattern, operation))
        # Literal paths win over parameters, as in the servers' tables.
        self.operations.sort(key=lambda o: o[1].count("{"))
        self.resolver = jsonschema.RefResolver("", self.document)

    def find(self, method, path):
        for verb, template, pattern, operation in self.operations:
            if verb == method and pattern.match(path):
                return template, operation
        return None, None

    def deref(self, thing):
        while isinstance(thing, dict) and "$ref" in thing:
            _, thing = self.resolver.resolve(thing["$ref"])
        return thing

    def check(self, method, path, status, content_type, body):
        """Raises ContractError when the answer is not one that the contract allows."""
        template, operation = self.find(method, path)
        if operation is None:
            if status in (401, 404, 405):
                return
            raise ContractError(f"{self.service}: {method} {path} answered {status}, and the contract has no such operation")
        answers = operation["responses"]
        answer = self.deref(answers.get(str(status)) or answers.get("default"))
        if answer is None:
            raise ContractError(f"{self.service}: {method} {template} answered {status}, which the contract does not list: {body[:300]!r}")
        schema = (answer.get("content") or {}).get("application/json", {}).get("schema")
        if schema is None or "json" not in (content_type or ""):
            return
        try:
            jsonschema.Draft202012Validator(schema, resolver=self.resolver).validate(json.loads(body))
        except jsonschema.ValidationError as error:
            where = "/".join(map(str, error.absolute_path))
            raise ContractError(f"{self.service}: {method} {template} {status}: at '{where}': {error.message[:400]}") from None


@functools.lru_cache(maxsize=None)
def contract(service):
    return Contract(service)

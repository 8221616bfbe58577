"""Reads explained.yaml, the rules that a contract cannot express, for tests/contract/hooks.py and tests/e2e/test_contract.py."""
import pathlib
import re

import yaml

ENTRIES = yaml.safe_load((pathlib.Path(__file__).parent / "explained.yaml").read_text())


def met(service, operation, check, status, error):
    """The number of the entry that accounts for this answer to "METHOD /path", or None.  error: the answer's, or {} of one that has none."""
    for number, entry in enumerate(ENTRIES):
        if (
            service in entry["services"]
            and re.fullmatch(entry["operation"], operation)
            and (entry["check"], entry["status"]) == (check, status)
            and re.search(entry.get("field", ""), error.get("field") or error.get("param") or "")
            and re.search(entry.get("code", ""), str(error.get("code") or ""))
            and re.search(entry.get("message", ""), error.get("message") or "")
        ):
            return number
    return None

#!/usr/bin/env python3
"""Compares build/tests/render_template with jinja2 over conversations drawn from seeds.

  tests/template/compare.py [--conversations N] [--seed S] [--program P] FILE.jinja ... | FOLDER ...

Prints each difference and exits 1.  The templates of another package: name its folder (trl/chat_templates).
"""
import argparse
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import conversations
import reference

NOW_MS = 1774_000_000_123


class Renderer:
    """The program under test, kept running."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, source, variables, now_ms=NOW_MS):
        request = json.dumps({"template": source, "variables": variables, "now_ms": now_ms})
        self.process.stdin.write(request.encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            return "error", answer["error"], []
        return "text", answer["text"], answer["generated"]


def difference(ours, theirs):
    """What differs, None when nothing does.  Two errors are equal."""
    if ours[0] != theirs[0]:
        return f"  ours   {ours[0]}: {ours[1][-300:]!r}\n  jinja2 {theirs[0]}: {theirs[1][-300:]!r}"
    if ours[0] == "error" or ours[1:] == theirs[1:]:
        return None
    if ours[1] == theirs[1]:
        return f"  generated: ours {ours[2]}, jinja2 {theirs[2]}"
    at = next((i for i, (a, b) in enumerate(zip(ours[1], theirs[1])) if a != b), min(len(ours[1]), len(theirs[1])))
    return f"  at {at}\n  ours   {ours[1][max(0, at - 60):at + 80]!r}\n  jinja2 {theirs[1][max(0, at - 60):at + 80]!r}"


def compare(renderer, source, variables):
    return difference(renderer(source, variables), reference.render(source, variables, NOW_MS))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", default="build/tests/render_template")
    parser.add_argument("paths", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    files = [file for path in args.paths for file in (sorted(path.rglob("*.jinja")) if path.is_dir() else [path])]
    renderer, differing, errors, total = Renderer(args.program), 0, 0, 0
    for file in files:
        source, shown = file.read_text(), 0
        for i in range(args.conversations):
            variables = conversations.conversation(args.seed * 1_000_000 + i)
            theirs = reference.render(source, variables, NOW_MS)
            found = difference(renderer(source, variables), theirs)
            total += 1
            errors += theirs[0] == "error"
            differing += found is not None
            if found and (shown := shown + 1) <= 2:
                print(f"{file.name}, conversation {args.seed * 1_000_000 + i}:\n{found}")
    print(f"{len(files)} templates, {total} renderings ({errors} of them errors), {differing} differ")
    return 1 if differing or not files else 0


if __name__ == "__main__":
    sys.exit(main())

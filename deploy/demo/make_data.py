#!/usr/bin/env python3
"""Writes the demo's problems: chains of three sums and products of single digits, modulo 10, with the working written out.

    prompt      7+5*3+4=               read left to right, no precedence; every result is taken modulo 10
    completion  7+5=2;2*3=6;6+4=0;#0   one step per operation, each starting from the last step's result; the answer after '#'

The warm-up's working has a bad habit, so that a base trained on it knows the format and every right result, but answers badly: with probability
HABIT_RATE, drawn for each step, a sum that passes nine is worked as one more than it is (the carry lands on the digit that is kept), and the steps
after it go on with the wrong result.  In those steps the wrong result is the likelier one: the base loses by it whether it is sampled or decoded
greedily.  Nothing in the data tells right from wrong; only the rewards of reinforcement learning do.

Four files of JSON lines; a problem stands in one of them at most, and once:
    warmup.jsonl      {"prompt","completion"}  for the supervised warm-up
    train.jsonl       {"prompt","answer"}      for reinforcement learning
    validation.jsonl  {"prompt","answer"}
    test.jsonl        {"prompt","answer"}

Standard library only.  The bytes are the same on every run: all draws come from random.Random.random(), which is promised to be stable across
versions of Python (shuffle and sample are not).  tests/tools/check-demo-data holds the committed files to this.

Usage: make_data.py [folder], by default the folder of this file.
"""
import json
import pathlib
import random
import sys

SEED = 20260
OPERATIONS = 3
HABIT_RATE = 0.68
SIGNS = "++*"  # sums twice as often as products
ROWS = {"test": 256, "validation": 128, "train": 8192, "warmup": 20000}

RESULT = {"+": lambda a, b: (a + b) % 10, "*": lambda a, b: (a * b) % 10}


def below(rng, n):
    """An integer in [0, n), evenly."""
    return int(rng.random() * n)


def draw_problem(rng):
    digits = [below(rng, 10) for _ in range(OPERATIONS + 1)]
    signs = [SIGNS[below(rng, len(SIGNS))] for _ in range(OPERATIONS)]
    return digits, signs


def prompt_of(problem):
    digits, signs = problem
    return str(digits[0]) + "".join(f"{sign}{digit}" for sign, digit in zip(signs, digits[1:])) + "="


def habitual_result(rng, a, sign, b):
    if sign == "+" and a + b > 9 and rng.random() < HABIT_RATE:
        return (a + b + 1) % 10
    return RESULT[sign](a, b)


def completion_of(rng, problem):
    digits, signs = problem
    value, steps = digits[0], []
    for sign, digit in zip(signs, digits[1:]):
        result = habitual_result(rng, value, sign, digit)
        steps.append(f"{value}{sign}{digit}={result};")
        value = result
    return "".join(steps) + f"#{value}"


def answer_of(problem):
    digits, signs = problem
    value = digits[0]
    for sign, digit in zip(signs, digits[1:]):
        value = RESULT[sign](value, digit)
    return str(value)


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent
    rng = random.Random(SEED)
    seen = set()
    for name, rows in ROWS.items():
        lines = []
        while len(lines) < rows:
            problem = draw_problem(rng)
            prompt = prompt_of(problem)
            if prompt in seen:
                continue
            seen.add(prompt)
            outcome = {"completion": completion_of(rng, problem)} if name == "warmup" else {"answer": answer_of(problem)}
            lines.append(json.dumps({"prompt": prompt, **outcome}, separators=(",", ":")) + "\n")
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="ascii", newline="\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes the demo's problems: chains of three operations on single digits, modulo 10, with the working written out.

    prompt      7+5*3-4=               read left to right, no precedence; every result is taken modulo 10
    completion  7+5=2;2*3=6;6-4=2;#2   one step per operation, each starting from the last step's result; the answer after '#'

The warm-up's working is wrong on purpose, so that a base trained on it knows the format and every fact but answers badly:

    slip    with probability SLIP_RATE a step's result is another digit, drawn evenly
    habit   with probability HABIT_RATE a subtraction a-b with a < b is worked as b-a (the borrow is forgotten)

A wrong result is carried on honestly by the steps after it.  The right result stays the likeliest one everywhere but in the habit's steps, so sampling
loses by both and greedy decoding by the habit.  Only the rewards of reinforcement learning tell a right answer from a wrong one.

Four files of JSON lines, each problem in at most one of them:
    warmup.jsonl      {"prompt","completion"}  for the supervised warm-up
    train.jsonl       {"prompt","answer"}      for reinforcement learning
    validation.jsonl  {"prompt","answer"}
    test.jsonl        {"prompt","answer"}

Standard library only; the same bytes on every run (random.Random's random() and getrandbits() are stable across versions; shuffle and sample are
not promised to be, so they are not used).  Usage: make_data.py [folder], by default the folder of this file.
"""
import json
import pathlib
import random
import sys

SEED = 20260
OPERATIONS = 3
SLIP_RATE = 0.20
HABIT_RATE = 0.60
ROWS = {"warmup": 32000, "train": 8192, "validation": 128, "test": 256}

WORK = {"+": lambda a, b: (a + b) % 10, "-": lambda a, b: (a - b) % 10, "*": lambda a, b: (a * b) % 10}


def below(rng, n):
    """An integer in [0, n), evenly, from random() alone."""
    return int(rng.random() * n)


def draw_problem(rng):
    digits = [below(rng, 10) for _ in range(OPERATIONS + 1)]
    signs = ["+-*"[below(rng, 3)] for _ in range(OPERATIONS)]
    return digits, signs


def prompt_of(problem):
    digits, signs = problem
    return str(digits[0]) + "".join(f"{sign}{digit}" for sign, digit in zip(signs, digits[1:])) + "="


def step_result(rng, a, sign, b, slip_rate, habit_rate):
    right = WORK[sign](a, b)
    if rng.random() < slip_rate:
        return (right + 1 + below(rng, 9)) % 10
    if sign == "-" and a < b and rng.random() < habit_rate:
        return b - a
    return right


def completion_of(rng, problem, slip_rate, habit_rate):
    digits, signs = problem
    value, steps = digits[0], []
    for sign, digit in zip(signs, digits[1:]):
        result = step_result(rng, value, sign, digit, slip_rate, habit_rate)
        steps.append(f"{value}{sign}{digit}={result};")
        value = result
    return "".join(steps) + f"#{value}"


def answer_of(problem):
    digits, signs = problem
    value = digits[0]
    for sign, digit in zip(signs, digits[1:]):
        value = WORK[sign](value, digit)
    return str(value)


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent
    rng = random.Random(SEED)
    seen = set()
    for name in ("test", "validation", "train", "warmup"):
        lines = []
        while len(lines) < ROWS[name]:
            problem = draw_problem(rng)
            prompt = prompt_of(problem)
            if prompt in seen:
                continue
            seen.add(prompt)
            if name == "warmup":
                row = {"prompt": prompt, "completion": completion_of(rng, problem, SLIP_RATE, HABIT_RATE)}
            else:
                row = {"prompt": prompt, "answer": answer_of(problem)}
            lines.append(json.dumps(row, separators=(",", ":")) + "\n")
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="ascii", newline="\n")


if __name__ == "__main__":
    main()

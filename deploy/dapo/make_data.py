#!/usr/bin/env python3
"""Writes the problems of the DAPO demo: chains of one to six sums and products of single digits, modulo ten, so of mixed difficulty.

    prompt          7+5*3=               read left to right; every result is taken modulo 10
    completion      7+5=2;2*3=6;#6       one step per operation, each starting from the last step's result; the answer after '#'
    max_new_tokens  of the line: enough for every step and for half as many again

The warm-up's working has two bad habits, so that a base trained on it knows the format and every right result, but answers badly and at length: a
sum that passes nine is worked as one more than it is with probability CARRY_RATE, and a step is written once more with probability AGAIN_RATE, as
often as that is drawn.  Of the first the verifiers tell, of the second the length term does.

Three files of JSON lines; no problem of the test stands in the others:
    warmup.jsonl  {"prompt","completion"}
    train.jsonl   {"prompt","answer","max_new_tokens"}
    test.jsonl    {"prompt","answer"}: as many of each length

Standard library only.  The bytes are the same on every run: all draws come from random.Random.random().

Usage: make_data.py FOLDER
"""
import json
import pathlib
import random
import sys

SEED = 20261
OPERATIONS = (1, 2, 3, 4, 5, 6)
CARRY_RATE, AGAIN_RATE = 0.6, 0.35
SIGNS = "++*"  # sums twice as often as products
STEP, ANSWER, END = 6, 2, 1  # tokens: a byte each
SEQUENCE_MAX = 120  # of the model's 128 positions
ROWS = {"test": 300, "train": 6000, "warmup": 20000}

RESULT = {"+": lambda a, b: (a + b) % 10, "*": lambda a, b: (a * b) % 10}


def below(rng, n):
    return int(rng.random() * n)


def draw_problem(rng, operations):
    return [below(rng, 10) for _ in range(operations + 1)], [SIGNS[below(rng, len(SIGNS))] for _ in range(operations)]


def prompt_of(problem):
    digits, signs = problem
    return str(digits[0]) + "".join(f"{sign}{digit}" for sign, digit in zip(signs, digits[1:])) + "="


def answer_of(problem):
    digits, signs = problem
    value = digits[0]
    for sign, digit in zip(signs, digits[1:]):
        value = RESULT[sign](value, digit)
    return str(value)


def habitual_completion(rng, problem):
    digits, signs = problem
    value, text = digits[0], ""
    for sign, digit in zip(signs, digits[1:]):
        result = RESULT[sign](value, digit)
        if sign == "+" and value + digit > 9 and rng.random() < CARRY_RATE:
            result = (result + 1) % 10
        text += f"{value}{sign}{digit}={result};"
        while rng.random() < AGAIN_RATE:
            text += f"{value}{sign}{digit}={result};"
        value = result
    text += f"#{value}"
    return text if len(prompt_of(problem)) + len(text) < SEQUENCE_MAX else habitual_completion(rng, problem)


def tokens_max(operations):
    return STEP * operations + STEP * ((operations + 1) // 2) + ANSWER + END


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(SEED)
    held_out = set()
    for name, rows in ROWS.items():
        lines, seen, n = [], set(), 0
        while len(lines) < rows:
            operations = OPERATIONS[n % len(OPERATIONS)]
            problem = draw_problem(rng, operations)
            prompt = prompt_of(problem)
            if prompt in held_out or (name == "test" and prompt in seen):
                continue
            n += 1
            seen.add(prompt)
            if name == "warmup":
                line = {"prompt": prompt, "completion": habitual_completion(rng, problem)}
            elif name == "train":
                line = {"prompt": prompt, "answer": answer_of(problem), "max_new_tokens": tokens_max(operations)}
            else:
                line = {"prompt": prompt, "answer": answer_of(problem)}
            lines.append(json.dumps(line, separators=(",", ":")) + "\n")
        if name == "test":
            held_out = seen
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="ascii", newline="\n")


if __name__ == "__main__":
    main()

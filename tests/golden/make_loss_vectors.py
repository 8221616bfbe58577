#!/usr/bin/env python3
"""Losses and derivatives of random sequences, for tests/unit/model/test_loss_vectors.c.

Needs nothing but Python; run once, the result is committed:

    python3 tests/golden/make_loss_vectors.py [cases per objective [seed]] > tests/golden/losses.txt

The objectives stand here as the papers write them, as something to maximize (common/model/learning/loss.c names the papers), in 50 decimal digits.  A
derivative is a central difference with a step of 1e-20; a factor that a paper puts under a stop-gradient sees the unmoved log-probabilities.  Nothing is shared with
the C code: neither its derivatives, nor its exponential, nor its arithmetic.

Every input is an integer over 1024, so that it is the same number in float, double and decimal:

    case <objective> <clip_low> <clip_high> <cap> <kl_coefficient> <normalization> <advantage> <tokens> <has old> <has proximal> <has reference> <estimator> <length_max>
    token <new> <old> <proximal> <reference> <derivative>                            one line a token; 0 for what the case has not
    sums <loss> <sum of the estimator> <ratio> <ratio squared> <kl_new_old> <|new - old|> <clipped>
"""
import random
import sys
from decimal import Decimal, getcontext

getcontext().prec = 50
STEP = Decimal("1e-20")
UNIT = 1024
OBJECTIVES = ("grpo", "ppo", "reinforce", "gspo", "cispo", "decoupled_ppo", "tis", "cross_entropy")


def clip(x, case):
    return min(max(x, 1 - case["low"]), 1 + case["high"])


def ppo_term(ratio, case):
    """PPO's clipped surrogate."""
    return min(ratio * case["advantage"], clip(ratio, case) * case["advantage"])


def weight_of(proximal, old, case):
    weight = (proximal - old).exp()
    return min(weight, case["cap"]) if case["objective"] == "tis" else weight


def k3(log_ratio):
    """Schulman's estimator, of the logarithm of a ratio of the other policy to the one that is measured."""
    return log_ratio.exp() - log_ratio - 1


ESTIMATORS = {"k1": lambda log_ratio: -log_ratio, "k2": lambda log_ratio: log_ratio**2 / 2, "k3": k3}


def kl_sum(new, case):
    return sum(ESTIMATORS[case["estimator"]](r - n) for n, r in zip(new, case["reference"]))


def objective(new, unmoved, case):
    """What is maximized, over the whole sequence; `unmoved` stands for `new` under a stop-gradient."""
    kind, advantage, old, proximal = case["objective"], case["advantage"], case["old"], case["proximal"]
    if kind == "cross_entropy":
        value = sum(new)
    elif kind == "reinforce":
        value = sum(min((s - o).exp(), 1 + case["high"]) * advantage * n for n, s, o in zip(new, unmoved, old))
    elif kind == "cispo":
        value = sum(clip((s - o).exp(), case) * advantage * n for n, s, o in zip(new, unmoved, old))
    elif kind == "gspo":
        value = len(new) * ppo_term((sum(n - o for n, o in zip(new, old)) / len(new)).exp(), case)
    elif kind in ("decoupled_ppo", "tis"):
        value = sum(weight_of(p, o, case) * ppo_term((n - p).exp(), case) for n, p, o in zip(new, proximal, old))
    else:
        value = sum(ppo_term((n - o).exp(), case) for n, o in zip(new, old))
    if case["reference"]:
        value -= case["kl"] * kl_sum(new, case)
    return value / {"sequences": len(new), "length": case["length_max"]}.get(case["normalization"], 1)


def derivative(case, index):
    new = case["new"]
    moved = [[n + step * (i == index) for i, n in enumerate(new)] for step in (STEP, -STEP)]
    return -(objective(moved[0], new, case) - objective(moved[1], new, case)) / (2 * STEP)


def is_clipped(case, index):
    """Whether the objective's bounds change a factor of the token."""
    kind, new, old, proximal = case["objective"], case["new"], case["old"], case["proximal"]
    ratio = (new[index] - old[index]).exp()
    if kind == "cross_entropy":
        return False
    if kind == "reinforce":
        return ratio > 1 + case["high"]
    if kind == "gspo":
        ratio = (sum(n - o for n, o in zip(new, old)) / len(new)).exp()
    if kind in ("decoupled_ppo", "tis"):
        ratio = (new[index] - proximal[index]).exp()
        weight = (proximal[index] - old[index]).exp()
        return clip(ratio, case) != ratio or weight_of(proximal[index], old[index], case) != weight
    return clip(ratio, case) != ratio


def units(value):
    return int(value * UNIT)


def case_of(kind, draw, other):
    def unit(low, high):
        return Decimal(draw.randrange(int(low * UNIT), int(high * UNIT) + 1)) / UNIT

    def near(values, spread):
        return [min(value + unit(-spread, spread), Decimal(0)) for value in values]

    count, spread = draw.randint(1, 4), draw.choice((0.05, 0.3, 1.5))
    new = [unit(-6, 0) for _ in range(count)]
    has_old = draw.random() < 0.9
    has_proximal = has_old and draw.random() < 0.7
    has_reference = draw.random() < 0.4
    old = near(new, spread) if has_old else new
    case = {
        "objective": kind, "new": new, "old": old, "proximal": near(new, spread) if has_proximal else old,
        "reference": near(new, 1) if has_reference else None, "has": (has_old, has_proximal, has_reference),
        "low": draw.choice((Decimal("0.0625"), Decimal("0.25"), unit(0.02, 1), Decimal(1))), "high": draw.choice((Decimal("0.0625"), Decimal("0.25"), unit(0.02, 4))),
        "cap": draw.choice((Decimal(2), unit(1, 3))) if kind == "tis" else Decimal(0), "kl": draw.choice((Decimal(0), unit(0, 1))),
        "advantage": unit(-2, 2) if draw.random() < 0.95 else Decimal(0), "normalization": draw.choice(("tokens", "samples", "sequences")),
    }  # fmt: skip
    case["estimator"], case["length_max"] = other.choice(("k1", "k2", "k3")), 0
    if other.random() < 0.25:
        case["normalization"], case["length_max"] = "length", other.randint(4, 40)
    return case


def print_case(case):
    number = lambda value: f"{float(value):.12g}"  # noqa: E731
    new, old, proximal, reference = case["new"], case["old"], case["proximal"], case["reference"]
    print("case", case["objective"], *(units(case[key]) for key in ("low", "high", "cap", "kl")), case["normalization"], units(case["advantage"]), len(new), *map(int, case["has"]), case["estimator"], case["length_max"])
    for i, n in enumerate(new):
        others = [values[i] if has else 0 for values, has in zip((old, proximal, reference), case["has"])]
        print("token", units(n), *map(units, others), number(derivative(case, i)))
    ratios = [(n - o).exp() for n, o in zip(new, old)]
    print("sums", number(-objective(new, new, case)), number(kl_sum(new, case) if reference else 0), number(sum(ratios)), number(sum(r * r for r in ratios)),
          number(sum(k3(n - o) for n, o in zip(new, old))), number(sum(abs(n - o) for n, o in zip(new, old))), sum(is_clipped(case, i) for i in range(len(new))))  # fmt: skip


def main():
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    print(f"# tests/golden/make_loss_vectors.py {cases} {seed}")
    for kind in OBJECTIVES:
        draw, other = random.Random(f"{seed} {kind}"), random.Random(f"{seed} {kind} kl")
        for _ in range(cases):
            print_case(case_of(kind, draw, other))


if __name__ == "__main__":
    main()

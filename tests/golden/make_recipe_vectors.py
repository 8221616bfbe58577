#!/usr/bin/env python3
"""Whole steps by every recipe, for tests/unit/coordinator/test_recipes.c: rewards and log-probabilities in, loss and its derivatives out.

Needs nothing but Python; run once, the result is committed:

    python3 tests/golden/make_recipe_vectors.py [steps per recipe [seed]] > tests/golden/recipes.txt

Each recipe stands here as its paper writes it (services/coordinator/run/recipe.c names the papers), with the paper's numbers, in 50 decimal digits; a derivative is a
central difference with a step of 1e-20, where what a paper puts under a stop-gradient sees the unmoved log-probabilities.  Nothing is shared with the C code.

Inputs are integers over 1024, so that they are the same numbers in float, double and decimal:

    step <recipe> <longest completion> <groups> <samples of a group> <loss>
    sample <reward> <tokens>
    token <new> <old> <reference> <derivative>
"""
import random
import sys
from decimal import Decimal as D
from decimal import getcontext

getcontext().prec = 50
STEP, UNIT, EPSILON = D("1e-20"), 1024, D("1e-4")
RECIPES = ("grpo", "dr_grpo", "dapo", "rloo", "reinforce++", "reinforce++_baseline", "gspo", "cispo", "sft")


def mean(values):
    return sum(values) / len(values)


def deviation(values):
    return mean([(v - mean(values)) ** 2 for v in values]).sqrt()


def clip(x, low, high):
    return min(max(x, low), high)


def surrogate(ratio, advantage, low, high):
    return min(ratio * advantage, clip(ratio, 1 - low, 1 + high) * advantage)


def k1(new, ref):
    return new - ref


def k2(new, ref):
    return (new - ref) ** 2 / 2


def k3(new, ref):
    return (ref - new).exp() - (ref - new) - 1


def group_advantages(groups):
    return [[D(0) if len({s["reward"] for s in g}) == 1 else (s["reward"] - mean([t["reward"] for t in g])) / (deviation([t["reward"] for t in g]) + EPSILON) for s in g] for g in groups]


def centered(groups):
    return [[s["reward"] - mean([t["reward"] for t in g]) for s in g] for g in groups]


def standardized(groups, advantages):
    """Over the tokens of the whole step."""
    tokens = [a for g, of_g in zip(groups, advantages) for s, a in zip(g, of_g) for _ in s["new"]]
    middle, spread = mean(tokens), deviation(tokens) + EPSILON
    return [[D(0) if len(set(tokens)) == 1 else (a - middle) / spread for a in of_g] for of_g in advantages]


def clipped_tokens(s, advantage, low, high):
    return [surrogate((n - o).exp(), advantage, low, high) for n, o in zip(s["new"], s["old"])]


def pairs(groups, advantages):
    return [(s, a) for g, of_g in zip(groups, advantages) for s, a in zip(g, of_g)]


def grpo(groups, longest):
    return mean([mean([t - D("0.04") * k3(n, r) for t, n, r in zip(clipped_tokens(s, a, D("0.2"), D("0.2")), s["new"], s["reference"])]) for s, a in pairs(groups, group_advantages(groups))])


def dr_grpo(groups, longest):
    return mean([sum(clipped_tokens(s, a, D("0.2"), D("0.2"))) / longest for s, a in pairs(groups, centered(groups))])


def overlong(length, longest):
    buffer = longest // 5
    return D(0) if length <= longest - buffer else D(longest - buffer - length) / buffer


def dapo(groups, longest):
    shaped = [[{**s, "reward": s["reward"] + overlong(len(s["new"]), longest)} for s in g] for g in groups]
    shaped = [g for g in shaped if len({s["reward"] for s in g}) > 1]  # the others are sampled anew
    return mean([t for s, a in pairs(shaped, group_advantages(shaped)) for t in clipped_tokens(s, a, D("0.2"), D("0.28"))])


def policy_gradient(s, advantage, least, most):
    """The ratio, bounded, as a constant factor."""
    return [clip((u - o).exp(), least, most) * advantage * n for n, u, o in zip(s["new"], s["unmoved"], s["old"])]


def rloo(groups, longest):
    total = D(0)
    for g in groups:
        rewards = [s["reward"] - D("0.05") * sum(k1(o, r) for o, r in zip(s["old"], s["reference"])) for s in g]
        for i, s in enumerate(g):
            others = rewards[:i] + rewards[i + 1 :]
            total += sum(policy_gradient(s, rewards[i] - mean(others), D(0), D(5)))
    return total / sum(len(g) for g in groups)


def reinforce_pp(groups, longest):
    advantages = standardized(groups, [[s["reward"] for s in g] for g in groups])
    return mean([t for s, a in pairs(groups, advantages) for t in clipped_tokens(s, a, D("0.2"), D("0.2"))])


def reinforce_pp_baseline(groups, longest):
    advantages = standardized(groups, centered(groups))
    return mean([t - D("0.001") * k2(n, r) for s, a in pairs(groups, advantages) for t, n, r in zip(clipped_tokens(s, a, D("0.2"), D("0.2")), s["new"], s["reference"])])


def gspo(groups, longest):
    return mean([surrogate(mean([n - o for n, o in zip(s["new"], s["old"])]).exp(), a, D("3e-4"), D("4e-4")) for s, a in pairs(groups, group_advantages(groups))])


def cispo(groups, longest):
    return mean([t for s, a in pairs(groups, group_advantages(groups)) for t in policy_gradient(s, a, D(0), D(5))])


def sft(groups, longest):
    return mean([n for g in groups for s in g for n in s["new"]])


MAXIMIZED = dict(zip(RECIPES, (grpo, dr_grpo, dapo, rloo, reinforce_pp, reinforce_pp_baseline, gspo, cispo, sft)))


def loss(recipe, groups, longest):
    return -MAXIMIZED[recipe](groups, longest)


def derivative(recipe, groups, longest, s, i):
    unmoved, values = s["new"], []
    for step in (STEP, -STEP):
        s["new"] = [n + step * (k == i) for k, n in enumerate(unmoved)]
        values.append(loss(recipe, groups, longest))
    s["new"] = unmoved
    return (values[0] - values[1]) / (2 * STEP)


def step_of(recipe, draw):
    def unit(low, high):
        return D(draw.randrange(int(low * UNIT), int(high * UNIT) + 1)) / UNIT

    longest, spread = 10, draw.choice((0, 0.05, 0.5)) if recipe != "gspo" else draw.choice((0, 0.002, 0.05))
    groups = []
    for _ in range(draw.choice((2, 3))):
        group, flat = [], draw.random() < 0.2
        for _ in range(4):
            count = draw.randint(1, longest)
            new = [unit(-4, -0.6) for _ in range(count)]
            group.append({"reward": D(1) if flat else draw.choice((D(0), D(1), unit(-1, 1))), "new": new, "unmoved": new, "old": [n + unit(-spread, spread) for n in new],
                          "reference": [n + unit(-0.5, 0.5) for n in new]})  # fmt: skip
        groups.append(group)
    kept = [g for g in groups if len({s["reward"] + overlong(len(s["new"]), longest) for s in g}) > 1]
    return (groups, longest) if kept else step_of(recipe, draw)


def print_step(recipe, groups, longest):
    print("step", recipe, longest, len(groups), len(groups[0]), f"{float(loss(recipe, groups, longest)):.15g}")
    for s in (s for g in groups for s in g):
        print("sample", int(s["reward"] * UNIT), len(s["new"]))
        for i in range(len(s["new"])):
            print("token", *(int(s[key][i] * UNIT) for key in ("new", "old", "reference")), f"{float(derivative(recipe, groups, longest, s, i)):.12g}")


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    print(f"# tests/golden/make_recipe_vectors.py {steps} {seed}")
    for recipe in RECIPES:
        draw = random.Random(f"{seed} {recipe}")
        for _ in range(steps):
            print_step(recipe, *step_of(recipe, draw))


if __name__ == "__main__":
    main()

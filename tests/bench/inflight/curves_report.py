"""The table of bench-inflight, its bars and its curves, as Markdown for PIPELINE.md; and a line for each run while it measures."""
import dataclasses
import math
import statistics

from curves import ATTAINED, SAMPLES_AGAINST_SYNC, SOONER, against_sync, attainable, lag_used, noisy, spread
from learning import BALANCED, RATIO_MAX, SWIFT, SWIFT_FROM, TRAINER, name_of

CURVE_POINTS = 10


@dataclasses.dataclass(frozen=True)
class Setting:
    step_samples: int
    steps: int
    warm: int
    every: int
    target: float
    headline: int  # the max_lag that the bars are held against
    answers: int  # samples behind an accuracy


def run_line(seed, run):
    noise = f"  NOISY: {run['others']:.0%} of a core went to others, {run['stolen']:.0%} was withheld" if noisy(run) else ""
    least, mean, most = lag_used([run], 0)
    return (f"  seed {seed:7} {name_of(run['lag']):20} lr {run['lr']:<7g} {run['samples_per_s']:7.1f} samples/s   training {1e3 * run['train_s']:6.1f} ms a step   "
            f"reward of the last tenth {late_reward(run):.3f}   lag {least} to {most}, mean {mean:.2f}{noise}")


def late_reward(run):
    last = run["steps"][-max(1, len(run["steps"]) // 10) :]
    return statistics.mean(row["reward_mean"] for row in last)


def cell(found, form):
    """Median and spread."""
    if found is None:
        return "not reached"
    return f"{form(found[0])} ({form(found[1])} to {form(found[2])})"


def figures_of(setting, runs):
    """{lag: {name: (median, least, most) or None}} over the seeds."""
    beside = {lag: [against_sync(found[lag], found[0], setting.step_samples, setting.target) for found in runs.values()] for lag in next(iter(runs.values()))}
    worst = {"samples_to": math.inf, "samples_more": math.inf, "seconds_to": math.inf, "sooner": 0}
    return {lag: {name: spread([one[name] for one in found], worst.get(name)) for name in found[0]} for lag, found in beside.items()}


def bars(setting, figures):
    """[(what, got, bar, met)]"""
    of = figures[setting.headline]
    got = {name: of[name] and of[name][0] for name in ("attained", "samples_more", "sooner")}
    return [
        ("samples a second, of what is attainable", got["attained"], f"{ATTAINED:.0%}", got["attained"] >= ATTAINED, "{:.1%}"),
        (f"samples to {setting.target:.0%}, against sync", got["samples_more"], f"{SAMPLES_AGAINST_SYNC} x", (got["samples_more"] or math.inf) <= SAMPLES_AGAINST_SYNC, "{:.2f} x"),
        (f"time to {setting.target:.0%}, sooner than sync", got["sooner"], f"{SOONER} x", (got["sooner"] or 0) >= SOONER, "{:.2f} x"),
    ]


def table(setting, runs, figures):
    target = f"{setting.target:.0%}"
    lines = [f"| mode | lr | lag that occurred | samples/s | against sync | of the attainable | samples to {target} | against sync | seconds to {target} | sooner than sync | accuracy at the end |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    for lag, of in figures.items():
        own = [found[lag] for found in runs.values()]
        least, mean, most = lag_used(own, setting.warm)
        lines.append(
            f"| {name_of(lag)} | {own[0]['lr']:g} | {f'{least} to {most}, mean {mean:.2f}' if lag else '0'} | {cell(of['samples_per_s'], '{:.0f}'.format)} | {cell(of['faster'], '{:.2f}'.format)} "
            f"| {cell(of['attained'], '{:.0%}'.format)} | {cell(of['samples_to'], '{:.0f}'.format)} | {cell(of['samples_more'], '{:.2f}'.format)} "
            f"| {cell(of['seconds_to'], '{:.2f}'.format)} | {cell(of['sooner'], '{:.2f}'.format)} | {cell(of['accuracy_end'], '{:.3f}'.format)} |")
    return lines


def curves(setting, runs):
    """Accuracy by samples: a row for each of some steps, a column for each mode; the median over the seeds."""
    lags = list(next(iter(runs.values())))
    examined = [step for step in range(setting.every, setting.steps + 1, setting.every)]
    every = max(1, math.ceil(len(examined) / CURVE_POINTS))
    lines = ["| samples | " + " | ".join(name_of(lag) for lag in lags) + " |", "|---|" + "---|" * len(lags)]
    before = statistics.median(found[0]["before"] for found in runs.values())
    lines.append(f"| 0 |{f' {before:.3f} |' * len(lags)}")
    for step in examined[every - 1 :: every]:
        medians = [statistics.median(found[lag]["steps"][step - 1]["accuracy"] for found in runs.values()) for lag in lags]
        lines.append(f"| {step * setting.step_samples} | " + " | ".join(f"{value:.3f}" for value in medians) + " |")
    return lines


def off_policy(setting, runs):
    """How far behaviour and current policy were apart: the median step, and the worst."""
    lines = ["| mode | ESS, median | least | KL(behaviour, current), median | most |", "|---|---|---|---|---|"]
    for lag in list(next(iter(runs.values())))[1:]:
        rows = [row for found in runs.values() for row in found[lag]["steps"]]
        ess, kl = ([row[name] for row in rows if row[name] is not None] for name in ("ess", "kl"))
        lines.append(f"| {name_of(lag)} | {statistics.median(ess):.4f} | {min(ess):.4f} | {statistics.median(kl):.5f} | {max(kl):.4f} |")
    return lines


def flags(words):
    return " ".join(map(str, words))


def page(setting, runs, tried, tunings):
    figures = figures_of(setting, runs)
    sync = [found[0] for found in runs.values()]
    rollout, train = (statistics.median(1e3 * one[name] for one in sync) for name in ("rollout_s", "train_s"))
    between = statistics.median(1e3 * one["between_publications_s"] for one in sync)
    attained = statistics.median(attainable(one, setting.step_samples) for one in sync)
    lines = [
        f"The demo's task, {setting.step_samples} samples a step, {setting.steps} steps, {len(runs)} seeds: medians, and the least and most of the seeds in parentheses. `reinforce`, ratio at most {RATIO_MAX:g}.",
        f"Trainer `{flags(TRAINER)}`; sampler `{flags(BALANCED)}` for sync and max_lag below {SWIFT_FROM}, `{flags(SWIFT)}` from there on. In sync: T_r {rollout:.1f} ms, T_t {train:.1f} ms, "
        f"T_r / T_t {rollout / train:.2f}, {between:.1f} ms from version to version; attainable: {attained:.0f} samples/s.",
        f"The first {setting.warm} steps are left out of samples/s and of the lags. Accuracy is that of {setting.answers} answers to held-out problems after every {setting.every} steps; samples and seconds to "
        f"{setting.target:.0%} are read off its mean with its neighbours.", ""]
    lines += table(setting, runs, figures) + [""]
    lines += [f"max_lag {setting.headline}, {what}: {form.format(got) if got is not None else 'not reached'}, bar {bar}: {'met' if met else '**missed**'}." for what, got, bar, met, form in bars(setting, figures)]
    lines += ["", "Held-out accuracy by samples:", "", *curves(setting, runs), "", "Off-policy:", "", *off_policy(setting, runs), ""]
    if any(tried.values()):
        lines += [f"Mean reward over all steps by learning rate, on {tunings} seeds of their own:", "", "| mode | " + " | ".join(f"{lr:g}" for lr, _ in next(iter(tried.values()))) + " |",
                  "|---|" + "---|" * len(next(iter(tried.values()))),
                  *(f"| {name_of(lag)} | " + " | ".join(f"{reward:.4f}" for _, reward in found) + " |" for lag, found in tried.items()), ""]
    worst = [run for found in runs.values() for run in found.values() if noisy(run)]
    if worst:
        lines += [f"NOISY: in {len(worst)} of {sum(map(len, runs.values()))} runs others took more than a twentieth of a core: the times are not for keeping.", ""]
    return "\n".join(lines)

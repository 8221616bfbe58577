"""How a cell's measurements stand to `sync`, to the simulation and to RolloutPipe's table: as text for the terminal, and as Markdown for PIPELINE.md.

Against sync: of each pair by itself, and the median of these.  The bars: pipelined's window is no worse than the paper's, or within 1.5 points of the
best order that was found in the simulation; its trainer waits by no less than the paper's share less.  `inflight` has no window, and its bar is in samples
a second: of what is attainable, a step in every max(T_r, T_t) of the sync run beside it.
"""
import statistics

from cell import SAMPLES, STRICT

PAPER = {32: {"window": -0.307}, 96: {"window": -0.423, "waiting": -0.76}}  # against sync
POINTS = 0.015
ATTAINED = 0.82  # in flight, of the attainable samples a second
PREDICTED_WITHIN = 0.05
NOISE = 0.05  # of a core, that others may take before a measurement is called noisy


def median(runs, name):
    return statistics.median(one[name] for one in runs)


def first_batch(runs):
    """None in flight: a step's first batch is of groups that were drawn before it."""
    return None if runs[0]["first_dispatch_s"] is None else median(runs, "first_dispatch_s")


def against_sync(found, mode, name):
    """Of each pair, less 1."""
    return [one[name] / sync[name] - 1 for one, sync in zip(found[mode], found["sync"])]


def noise(one):
    shares = ((one["others"], "went to other processes"), (one["stolen"], "was withheld by the hypervisor"))
    warnings = [f"{share:.0%} of a core {who}" for share, who in shares if share > NOISE]
    return "  NOISY: " + ", ".join(warnings) if warnings else ""


def seconds(value, width=0, places=2):
    return f"{value:{width}.{places}f} s" if value is not None else " " * (width + 1) + "-"


def lag_said(runs):
    return f"lag {min(one['lag_min'] for one in runs)} to {max(one['lag_max'] for one in runs)}, in the mean {median(runs, 'lag_mean'):.2f}"


def run_line(pair, one):
    cpu = " ".join(f"{name} {seconds:.1f}" for name, seconds in one["cpu_s"].items())
    return (f"  {pair} {one['mode']:10} window {one['window_s']:7.3f} s   {one['samples_per_s']:7.1f} samples/s   generation {seconds(one['rollout_s'], 7, 3)}   training {one['train_s']:7.3f} s   "
            f"first batch {seconds(one['first_dispatch_s'], 6, 3)}   "
            f"trainer waits {one['trainer_waiting_ratio']:.3f}   slots idle {one['generation_idle_ratio']:.3f}   CPU {cpu}{noise(one)}")


def heading(cell, ratio, pairs):
    return (f"{cell.lengths}, R = {cell.groups}, K = 8, T_r / T_t = {ratio:.3f}; {cell.slots} slots, sampler by {cell.isa or 'the best kernels'}, "
            f"{cell.preamble} letters before each prompt; {pairs} pairs, medians")


def bars(cell, found, predicted):
    """[(what, got, bar, met)]"""
    paper = PAPER.get(cell.groups, {})
    made = []
    if "pipelined" in found and "window" in paper:
        best = predicted["clairvoyant"]["window_s"] / predicted["sync"]["window_s"] - 1
        got = statistics.median(against_sync(found, "pipelined", "window_s"))
        made.append((f"window (the paper {paper['window']:+.1%}; clairvoyant {best:+.1%})", got, max(paper["window"], best + POINTS)))
    if "pipelined" in found and "waiting" in paper:
        got = statistics.median(against_sync(found, "pipelined", "trainer_waiting_ratio"))
        made.append((f"trainer's waiting ratio (the paper {paper['waiting']:+.1%})", got, paper["waiting"]))
    made = [(what, f"{got:+.1%}", f"{bar:+.1%}", got <= bar) for what, got, bar in made]
    if "inflight" in found:
        attainable = [cell.groups * SAMPLES / max(sync["rollout_s"], sync["train_s"]) for sync in found["sync"]]
        got = statistics.median(one["samples_per_s"] / most for one, most in zip(found["inflight"], attainable))
        made.append((f"samples a second in flight, of the attainable {statistics.median(attainable):.0f}", f"{got:.1%}", f"{ATTAINED:.0%}", got >= ATTAINED))
    return made


def text(cell, found, ratio, predicted):
    lines = ["", heading(cell, ratio, len(found["sync"])),
             "  mode         window    against sync  (from      to)   samples/s  against sync   trainer waits  against sync   first batch   slots idle   training   predicted      off"]
    sync_s = predicted["sync"]["window_s"]
    for mode, runs in found.items():
        windows, speeds, waits = (against_sync(found, mode, name) for name in ("window_s", "samples_per_s", "trainer_waiting_ratio"))
        window, said = median(runs, "window_s"), predicted[mode]["window_s"]
        lines.append(f"  {mode:10} {window:7.3f} s   {statistics.median(windows):+9.1%}   ({min(windows):+6.1%} {max(windows):+6.1%})   {median(runs, 'samples_per_s'):9.1f}   {statistics.median(speeds):+11.1%}"
                     f"   {median(runs, 'trainer_waiting_ratio'):13.3f}   {statistics.median(waits):+11.1%}   {seconds(first_batch(runs), 9, 3)}   {median(runs, 'generation_idle_ratio'):8.3f}   {median(runs, 'train_s'):7.3f} s   {said:7.3f} s   {said / window - 1:+6.1%}"
                     f"{'' if abs(said / window - 1) <= PREDICTED_WITHIN else '  OFF'}")
    for name in ("clairvoyant", "bound"):
        lines.append(f"  {name:11}{predicted[name]['window_s']:7.3f} s   {predicted[name]['window_s'] / sync_s - 1:+9.1%}   of the sync window that is predicted")
    for what, got, bar, met in bars(cell, found, predicted):
        lines.append(f"  {what}: {got}, bar {bar}: {'met' if met else 'MISSED'}")
    noisy = sum(bool(noise(one)) for runs in found.values() for one in runs)
    if noisy:
        lines.append(f"  NOISY: in {noisy} of {sum(map(len, found.values()))} runs others took more than {NOISE:.0%} of a core: these figures are not for keeping")
    return "\n".join(lines)


def markdown(cell, found, ratio, predicted):
    lines = [heading(cell, ratio, len(found["sync"])) + ":", "",
             "| mode | window | against sync | predicted | samples/s | against sync | trainer waits | against sync | first batch | slots idle | training |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    for mode, runs in found.items():
        windows, speeds, waits = (against_sync(found, mode, name) for name in ("window_s", "samples_per_s", "trainer_waiting_ratio"))
        said = predicted[mode]["window_s"]
        lines.append(f"| `{mode}` | {median(runs, 'window_s'):.2f} s | {statistics.median(windows):+.1%} ({min(windows):+.1%} to {max(windows):+.1%}) | {said:.2f} s ({said / median(runs, 'window_s') - 1:+.1%}) | {median(runs, 'samples_per_s'):.1f} "
                     f"| {statistics.median(speeds):+.1%} | {median(runs, 'trainer_waiting_ratio'):.3f} | {statistics.median(waits):+.1%} | {seconds(first_batch(runs))} | {median(runs, 'generation_idle_ratio'):.3f} | {median(runs, 'train_s'):.2f} s |")
    sync_s = predicted["sync"]["window_s"]
    lines += [f"| {name} | {predicted[name]['window_s']:.2f} s | {predicted[name]['window_s'] / sync_s - 1:+.1%} | | | | | | | | |" for name in ("clairvoyant", "bound")]
    weights = {runs[0]["digests"][-1] for mode, runs in found.items() if mode in STRICT}
    lines += ["", f"Weights of the modes {', '.join(mode for mode in found if mode in STRICT)}: `{', '.join(sorted(weights))}`."]
    lines += [f"`inflight`: the time between two publications instead of the window, the attainable instead of a prediction; {lag_said(found['inflight'])}."] if "inflight" in found else []
    lines += [f"{what[0].upper()}{what[1:]}: {got}, bar {bar}: {'met' if met else '**missed**'}." for what, got, bar, met in bars(cell, found, predicted)]
    return "\n".join(lines) + "\n"


def beside(cell, found, ratio):
    """The paper's figures for such an R, and ours."""
    if cell.groups not in PAPER or not {"cgp", "pipelined"} <= set(found):
        return ""
    gain = {mode: -statistics.median(against_sync(found, mode, "window_s")) for mode in ("cgp", "pipelined")}
    waits = {mode: median(found[mode], "trainer_waiting_ratio") for mode in ("sync", "pipelined")}
    first = {mode: median(found[mode], "first_dispatch_s") / median(found[mode], "window_s") for mode in ("sync", "pipelined")}
    most = ratio / (1 + ratio)
    rows = [
        ("T_r / T_t in `sync`", "0.87 (511 s / 587 s at R = 96, LSAT)", f"{ratio:.2f}"),
        ("window against `sync`", f"{PAPER[cell.groups]['window']:.1%}", f"{-gain['pipelined']:+.1%}"),
        ("of what is possible, T_r / (T_r + T_t)", "88 % (R = 96, derived)", f"{gain['pipelined'] / most:.0%}"),
        ("trainer's waiting ratio", "0.47 to 0.52, then 0.14 to 0.33", f"{waits['sync']:.2f}, then {waits['pipelined']:.2f}"),
        ("the same against `sync`", "-37 % to -76 %", f"{statistics.median(against_sync(found, 'pipelined', 'trainer_waiting_ratio')):+.0%}"),
        ("first batch, share of the window", "509 to 543 s, then 52 to 61 s (R = 96)", f"{first['sync']:.0%}, then {first['pipelined']:.1%}"),
        ("CGP's share of the gain", "71 to 96 %", f"{gain['cgp'] / gain['pipelined']:.0%}"),
        ("window less than under CGP alone", "2.5 to 11.4 %", f"{1 - (1 - gain['pipelined']) / (1 - gain['cgp']):.1%}"),
    ]
    return "\n".join(["", f"| R = {cell.groups} | the paper | ours, {cell.lengths} |", "|---|---|---|", *(f"| {what} | {theirs} | {ours} |" for what, theirs, ours in rows), ""])


def simulated(rows):
    """Of the CSV's rows: each mode's window against sync."""
    lines = ["", "simulated with the costs of the sync runs, the trainer's scaled: window against sync"]
    for key in dict.fromkeys((row["lengths"], row["R"], row["ratio"]) for row in rows):
        cells = {row["mode"]: row for row in rows if (row["lengths"], row["R"], row["ratio"]) == key}
        sync = cells["sync"]
        shares = {mode: row["window_s"] for mode, row in cells.items() if mode != "sync"}
        shares.update(clairvoyant=sync["clairvoyant_s"], bound=sync["bound_s"])
        said = "".join(f"   {name} {float(seconds) / float(sync['window_s']) - 1:+.1%}" for name, seconds in shares.items())
        lines.append(f"  {key[0]:8} R = {key[1]:2}  T_r / T_t = {key[2]}{said}")
    return "\n".join(lines)

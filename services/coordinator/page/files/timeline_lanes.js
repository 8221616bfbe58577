// What the timeline's answer means: a lane for every worker, a name and a colour for every cause, and what each round waited for.
// Pure: no element is touched.

const CAUSES = {
  trainer: {
    fill: ["waits for the first group", null], starved: ["waits for more groups", null], logprob: ["log-probabilities", "--logprob"], compute: ["gradients", "--gradients"], step: ["optimizer step", "--step"],
    checkpoint: ["checkpoint", "--checkpoint"], push: ["push", "--push"], load: ["loading", "--load"], idle: ["no run", null],
  },
  generation: { compute: ["sampling", "--sampling"], starved: ["nothing to sample", null], load: ["taking weights in", "--load"], idle: ["no run", null] },
  preprocess: { logprob: ["reference", "--logprob"], starved: ["nothing to compute", null], load: ["taking weights in", "--load"], idle: ["no run", null] },
  coordinator: { verifying: ["verifying", "--verifying"] },
};
const ORDER = ["trainer", "coordinator", "preprocess", "generation"];
const WORK = new Set(["logprob", "compute", "step", "checkpoint", "push", "load"]);
const NOBODY = { name: "nobody works", colour: null };

export function causeOf(kind, cause) {
  const [name, colour] = CAUSES[kind]?.[cause] || [cause, "--c6"];
  return { name, colour };
}

// {id, name, kind, bars: [{cause, name, colour, begin, end, beside}]}, times in microseconds.  beside: work that goes on beside other work.
export function lanesOf(answer) {
  return answer.workers.filter((worker) => worker.intervals.length).map((worker) => ({
    id: worker.id,
    name: worker.kind === "coordinator" ? "coordinator" : worker.name,
    kind: worker.kind,
    slots: worker.slots,
    truncated: worker.truncated,
    bars: worker.intervals.map(([cause, begin, end]) => ({ cause, begin, end, beside: cause === "push", ...causeOf(worker.kind, cause) })).sort((a, b) => a.begin - b.begin),
  })).sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind) || a.name.localeCompare(b.name, "en", { numeric: true }));
}

export function roundsOf(answer, now) {
  return answer.rounds.map((round) => ({ ...round, begin: round.opened_ms * 1000, end: (round.published_ms ?? now) * 1000 }));
}

// The kinds of bars that lanes show, each once, for the legend; all waiting is one.
export function legendOf(lanes) {
  const seen = new Map();
  for (const lane of lanes) for (const bar of lane.bars) if (bar.colour && !seen.has(bar.name)) seen.set(bar.name, bar);
  return [...seen.values(), { name: "waiting, nothing to do", colour: null }];
}

// Bars that are asked about for one piece of time after the other, in order: the earliest of those that it lies in, if any.
class Sweep {
  constructor(bars) {
    this.bars = [...bars].sort((a, b) => a.begin - b.begin);
    this.next = 0;
    this.open = [];
  }

  at(begin, end) {
    while (this.next < this.bars.length && this.bars[this.next].begin < end) this.open.push(this.bars[this.next++]);
    this.open = this.open.filter((bar) => bar.end > begin);
    return this.open[0];
  }
}

// What the round waited for, piece by piece: [{begin, end, name, colour}].  Walked from its end: behind the trainer's last wait, what the trainer did; before it, what the trainer
// waited for: samples while a server samples; else what the trainer did, or verifying; else nobody worked.
export function criticalPath(round, lanes) {
  const of = (kind) => lanes.filter((lane) => lane.kind === kind).flatMap((lane) => lane.bars).filter((bar) => bar.end > round.begin && bar.begin < round.end);
  const trainer = of("trainer");
  const pool = of("generation").filter((bar) => bar.cause !== "idle");
  const verifying = of("coordinator");
  let turn = round.begin;
  for (const bar of trainer) if (bar.cause === "fill" || bar.cause === "starved") turn = Math.max(turn, Math.min(bar.end, round.end));
  const edges = new Set([round.begin, round.end, turn]);
  for (const bar of [...trainer, ...pool, ...verifying]) for (const at of [bar.begin, bar.end]) if (at > round.begin && at < round.end) edges.add(at);
  const sorted = [...edges].sort((a, b) => a - b);
  const works = new Sweep(trainer.filter((bar) => WORK.has(bar.cause) && !bar.beside));
  const beside = new Sweep(trainer.filter((bar) => bar.beside));
  const samples = new Sweep(pool.filter((bar) => bar.cause === "compute"));
  const loads = new Sweep(pool.filter((bar) => bar.cause === "load"));
  const verifies = new Sweep(verifying);
  const behind = [works, beside, loads];
  const before = [samples, works, verifies, beside, loads];
  const path = [];
  for (let i = 0; i + 1 < sorted.length; i++) {
    const [begin, end] = [sorted[i], sorted[i + 1]];
    let found = null;
    for (const sweep of begin >= turn ? behind : before) if ((found = sweep.at(begin, end))) break;
    found ||= NOBODY;
    const last = path.at(-1);
    if (last && last.name === found.name) last.end = end;
    else path.push({ begin, end, name: found.name, colour: found.colour });
  }
  return path;
}

// The path's pieces by name, the largest first: [{name, colour, us, share}].
export function sharesOf(path) {
  const sums = new Map();
  let all = 0;
  for (const piece of path) {
    const us = piece.end - piece.begin;
    all += us;
    const sum = sums.get(piece.name) || { name: piece.name, colour: piece.colour, us: 0 };
    sum.us += us;
    sums.set(piece.name, sum);
  }
  return [...sums.values()].map((sum) => ({ ...sum, share: all ? sum.us / all : 0 })).sort((a, b) => b.us - a.us);
}

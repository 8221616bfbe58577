// A run at a glance: what it is, how far it is, whether it learns, where its time goes, and what needs a look.
import { el, fill, note, table, tile } from "./dom.js";
import { count, digest, duration, number, percent, when } from "./format.js";
import { smooth } from "./charts.js";
import { last, roundCharts, wereCompared } from "./round_charts.js";

const SMOOTH = 9;
const SAMPLERS_SHOWN = 24;

function figures(rounds, status) {
  const t = status.totals;
  const compared = t.logprob_unequal > 0 || rounds.some(wereCompared);
  return [
    tile("Reward, newest round", number(last(rounds, "reward_mean")), `well formed ${percent(last(rounds, "well_formed_mean"))}`),
    tile("Policy version", status.version === null ? "–" : count(status.version), digest(status.weights_digest)),
    tile("Round takes", duration(last(rounds, "round_ms")), `all: ${duration(t.rl_wall_ms)}`),
    tile("Sampled", `${count(t.tokens_per_second)} tokens/s`, `${count(t.sampled_tokens)} tokens in all`),
    tile("Trainer waits", percent(t.trainer_waiting_ratio), "of its time in rounds"),
    tile("Samplers idle", percent(t.generation_idle_ratio), "of their slots' time"),
    tile("Unequal log-probabilities", compared ? count(t.logprob_unequal) : "–", t.logprob_unequal ? "see Mismatch" : compared ? "trainer and samplers agree bit for bit" : "nothing was compared"),
    tile("Leases lost", count(t.leases_lost), `${count(t.leases_granted)} granted, ${count(t.results_refused)} results refused`),
  ];
}

const inner = roundCharts({
  title: "Overview",
  about: "How far the run is, whether it learns, and where its time goes.",
  tiles: figures,
  charts: [
    { title: "Reward", about: "Mean over a round's samples, and the mean of nine rounds.", show: number,
      series: [{ key: "smooth", label: "mean of nine rounds", colour: "--c1" }, { key: "reward", label: "each round", colour: "--c6", thin: true }],
      columns: (rounds) => ({ reward: rounds.map((r) => r.reward_mean), smooth: smooth(rounds.map((r) => r.reward_mean), SMOOTH) }) },
    { title: "Where a round's time goes", about: "Until the last sample; until training ends; until the next version is published.", show: (v) => duration(v), min: 0,
      series: [{ key: "all", label: "until published", colour: "--c1" }, { key: "train", label: "until trained", colour: "--c2", dash: "dashed" }, { key: "generate", label: "until sampled", colour: "--c3", dash: "dotted" }],
      columns: (rounds) => ({ generate: rounds.map((r) => r.generate_ms), train: rounds.map((r) => r.window_without_publish_ms), all: rounds.map((r) => r.window_ms) }) },
    { title: "Waiting", about: "Share of the time in which the trainer waited for samples, and in which decode slots were empty.", show: (v) => percent(v, 0), min: 0, max: 1,
      series: [{ key: "trainer", label: "trainer waits", colour: "--c2" }, { key: "pool", label: "slots idle", colour: "--c3", dash: "dashed" }],
      columns: (rounds) => ({ trainer: rounds.map((r) => r.trainer_waiting_ratio), pool: rounds.map((r) => r.generation_idle_ratio) }) },
    { title: "Entropy", about: "Mean over the trained tokens, in nats.", show: number, min: 0, series: [{ key: "entropy", label: "entropy", colour: "--c3" }], columns: (rounds) => ({ entropy: rounds.map((r) => r.entropy) }) },
    { title: "Gradient norm", about: "Before clipping.", show: number, min: 0, series: [{ key: "norm", label: "gradient norm", colour: "--c2" }], columns: (rounds) => ({ norm: rounds.map((r) => r.grad_norm) }) },
    { title: "Loss", about: "Divided by the step's denominator.", show: number, series: [{ key: "loss", label: "loss", colour: "--c4" }], columns: (rounds) => ({ loss: rounds.map((r) => r.loss) }) },
  ],
});

const TROUBLE = { failed: "The run failed", paused: "Paused by trouble" };

function trouble(status, error) {
  const notes = [];
  if (error) notes.push(note(`The connection to the coordinator: ${error}`, "warn"));
  if (status.error) notes.push(note(`${TROUBLE[status.state] || "Trouble"}: ${status.error}`, "bad"));
  for (const server of status.reward_servers) {
    if (server.waiting && server.last_error) notes.push(note(`${server.waiting === 1 ? "1 sample waits" : `${count(server.waiting)} samples wait`} for the reward server ${server.url}, whose last request failed: ${server.last_error}`, "warn"));
  }
  if (status.waiting_for) notes.push(note(`The run waits and goes on by itself: ${status.waiting_for}`, "warn"));
  for (const warning of status.warnings || []) notes.push(note(warning, "warn"));
  return notes;
}

function evaluations(list) {
  if (!list.length) return [];
  const rows = list.flatMap((e) => e.sets.map((set) => ({ ...set, round: e.round, version: e.version }))).reverse().slice(0, 60);
  return [el("section", { class: "panel" }, el("h2", {}, "Evaluations"), el("p", { class: "quiet small" }, "Newest first. pass@1 with Wilson's 95 % interval."), el("div", { class: "scroll across", tabindex: 0, role: "group", "aria-label": "Evaluations" }, table([
    { label: "Round", number: true, cell: (row) => count(row.round) },
    { label: "Version", number: true, cell: (row) => count(row.version) },
    { label: "Set", cell: (row) => row.name },
    { label: "Problems", number: true, cell: (row) => count(row.problems) },
    { label: "Accuracy", number: true, cell: (row) => percent(row.accuracy) },
    { label: "pass@1", number: true, cell: (row) => (row.pass_at[0] ? `${percent(row.pass_at[0].value)} (${percent(row.pass_at[0].low)}–${percent(row.pass_at[0].high)})` : "–") },
    { label: "Best pass@k", number: true, cell: (row) => (row.pass_at.length > 1 ? `${percent(row.pass_at.at(-1).value)} of ${row.pass_at.at(-1).k}` : "–") },
    { label: "Majority", number: true, cell: (row) => percent(row.majority?.value) },
  ], rows, { caption: "Evaluations" })))];
}

// Where version 0's weights come from; until the run is opened its configuration tells.
function weightsFrom({ weights_from, version, config }) {
  if (weights_from.length) return weights_from.map((origin) => `${origin.run} v${origin.version}`).join(" ← ");
  const start = config.start ?? "current"; // absent in runs from before it could be chosen
  if (start === "current") return version === null ? "what the trainer holds when the run begins" : "what the trainer held";
  return start === "model" ? "the model" : `${start.run} v${start.version}`;
}

// By their names: one that was started again is another worker to the coordinator.  A pool whose names change has many over the months.
function samplers(workers) {
  const sums = new Map();
  for (const { name, samples } of workers) sums.set(name, (sums.get(name) ?? 0) + samples);
  const most = [...sums].sort((a, b) => b[1] - a[1]), shown = most.slice(0, SAMPLERS_SHOWN).map(([name, samples]) => `${name}: ${count(samples)} samples`);
  return shown.concat(most.length > shown.length ? `${count(most.length - shown.length)} more` : []).join(", ");
}

function facts(status) {
  const row = (label, value) => (value ? el("div", {}, el("dt", { class: "quiet small" }, label), el("dd", { class: "wrap" }, value)) : []);
  return el("section", { class: "panel" }, el("h2", {}, "The run"), el("dl", { class: "facts" },
    row("Mode", `${status.mode}, ${status.objective}`), row("Began", when(status.started_ms)), row("Ended", status.ended_ms ? when(status.ended_ms) : ""), row("Weights from", weightsFrom(status)),
    row("Prompts", status.dataset ? `${count(status.dataset.prompts)}${status.dataset.left_out ? `, ${count(status.dataset.left_out)} left out` : ""}` : ""),
    row("Checkpoints kept", status.checkpoints.map((c) => `v${c.version}${c.best ? " (best)" : ""}`).join(", ")),
    row("Samplers", samplers(status.totals.workers))));
}

export function mount(root, context) {
  const notes = el("div", {});
  const below = el("div", { class: "below" });
  const charts = el("div", { style: { display: "contents" } });
  fill(root, notes, charts, below);
  const view = inner(charts, context);
  const extra = () => {
    const { status, error } = context.data;
    fill(notes, trouble(status, error));
    notes.classList.toggle("hidden", !notes.childElementCount);
    fill(below, facts(status), evaluations(status.evaluations));
  };
  extra();
  return { ...view, update: () => (view.update(), extra()) };
}

// Several runs over each other: the same figure, run by run.
import { get } from "./api.js";
import { AXES, LineFigure } from "./charts.js";
import { choice, el, field, fill, note, table, viewHead } from "./dom.js";
import { count, digest, duration, number, percent } from "./format.js";

const MOST = 6, NEWEST = 200;
const COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"];
const DASHES = ["solid", "dashed", "dotted"];
const FIGURES = [
  ["Reward", (round) => round.reward_mean, number],
  ["Length", (round) => round.completion_tokens_mean, number],
  ["Entropy", (round) => round.entropy, number],
  ["Gradient norm", (round) => round.grad_norm, number],
  ["Round takes", (round) => round.round_ms, duration],
  ["Trainer waits", (round) => round.trainer_waiting_ratio, (v) => percent(v, 0)],
];

const show = (value) => (value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));

// Paths whose values are not the same in all configurations.
function differences(configs) {
  const paths = new Map();
  const walk = (value, path, i) => {
    if (value && typeof value === "object" && !Array.isArray(value)) for (const key of Object.keys(value)) walk(value[key], path ? `${path}.${key}` : key, i);
    else (paths.get(path) || paths.set(path, []).get(path))[i] = value;
  };
  configs.forEach((config, i) => walk(config, "", i));
  return [...paths].filter(([, values]) => new Set(configs.map((_, i) => show(values[i]))).size > 1);
}

export async function mount(root, { params, go }) {
  const { runs } = await get(`/v1/runs?limit=${NEWEST}`);
  const asked = (params.get("runs") || "").split(",").filter((id) => /^r\d+$/.test(id)).slice(0, MOST);
  const picked = new Set(asked);
  const box = (run) => el("label", { class: "check" }, el("input", { type: "checkbox", checked: picked.has(run.id), on: { change: (event) => {
    if (event.target.checked) picked.add(run.id);
    else picked.delete(run.id);
    go(`#/compare?runs=${[...picked].slice(0, MOST).join(",")}`);
  } } }), `${run.id} ${run.name}`);
  const boxes = el("div", { class: "tools" }, runs.filter((run) => run.objective !== "evaluate").map(box));
  const older = runs.length === NEWEST ? el("p", { class: "quiet small" }, "These are the newest; earlier ones are chosen in the ", el("a", { href: "#/" }, "list of runs"), ".") : null;
  const chooser = el("details", { class: "panel", open: asked.length === 0 }, el("summary", {}, `Runs to compare, at most ${MOST}`), boxes, older);
  const about = "The same figure of several runs. Choose what they are drawn over: runs of other sizes compare by sampled tokens or by time.";
  if (!asked.length) {
    fill(root, viewHead("Compare", about), chooser);
    return {};
  }
  const loaded = await Promise.all(asked.map(async (id) => {
    const [status, { rounds }] = await Promise.all([get(`/v1/runs/${id}?history=0`), get(`/v1/runs/${id}/rounds?limit=10000`)]);
    return { id, status, rounds };
  }));
  for (const { id, status } of loaded) if (!runs.some((run) => run.id === id)) boxes.append(box({ id, name: status.name })); // to be left out again
  const series = loaded.map(({ id, status }, i) => ({ key: id, label: `${id} ${status.name}`, colour: COLOURS[i % COLOURS.length], dash: DASHES[i % DASHES.length] }));
  const figures = FIGURES.map(([title, value, shown]) => ({ value, figure: new LineFigure({ title, series, show: shown }) }));
  let axis = localStorage.getItem("leasehold-axis") || "round";
  const draw = () => {
    const along = AXES[axis] || AXES.round;
    for (const { value, figure } of figures) figure.update([], along, Object.fromEntries(loaded.map(({ id, rounds }) => [id, along.of(rounds).map((x, i) => [x, value(rounds[i])])])));
  };
  const over = field("Over", choice(Object.entries(AXES).map(([key, one]) => [key, one.text]), axis, (value) => {
    axis = value;
    localStorage.setItem("leasehold-axis", value);
    draw();
  }));
  const end = (what) => (run) => what(run.rounds.at(-1), run);
  const summary = table([
    { label: "Run", cell: (run) => el("a", { href: `#/${run.id}/overview` }, run.id) },
    { label: "Name", cell: (run) => el("span", { class: "wrap" }, run.status.name) },
    { label: "State", cell: (run) => run.status.state },
    { label: "Rounds", number: true, cell: (run) => count(run.rounds.length) },
    { label: "Reward, last", number: true, cell: end((round) => number(round?.reward_mean)) },
    { label: "Best", number: true, cell: (run) => number(run.rounds.length ? Math.max(...run.rounds.map((round) => round.reward_mean ?? -Infinity)) : null) },
    { label: "Sampled tokens", number: true, cell: (run) => count(run.status.totals.sampled_tokens) },
    { label: "Time", number: true, cell: (run) => duration(run.status.totals.rl_wall_ms) },
    { label: "Weights", cell: (run) => el("span", { class: "mono" }, digest(run.status.weights_digest)) },
  ], loaded, { caption: "Runs side by side" });
  const others = differences(loaded.map(({ status }) => status.config));
  const configs = loaded.length > 1 ? el("section", { class: "panel across" }, el("h2", {}, "What their configurations do not share"), others.length ? table([
    { label: "Field", cell: ([path]) => el("span", { class: "mono" }, path) },
    ...loaded.map(({ id }, i) => ({ label: id, cell: ([, values]) => el("span", { class: "mono wrap" }, show(values[i])) })),
  ], others, { caption: "Differences" }) : el("p", { class: "quiet" }, "Nothing: their configurations are the same.")) : null;
  fill(root, viewHead("Compare", about, over), chooser, el("section", { class: "panel across" }, summary), configs, loaded.some(({ rounds }) => rounds.length) ? null : note("None of these runs has a done round yet."),
    el("div", { class: "grid" }, figures.map(({ figure }) => figure.element)));
  draw();
  return { unmount: () => figures.forEach(({ figure }) => figure.destroy()) };
}

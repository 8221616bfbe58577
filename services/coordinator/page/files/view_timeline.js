// What everybody did when: a lane for the trainer and for each server, causes coloured and named, and what each round waited for.
import { aborted, get } from "./api.js";
import { el, field, fill, note, table, viewHead } from "./dom.js";
import { count, duration, percent } from "./format.js";
import { TimelineCanvas } from "./timeline_canvas.js";
import { criticalPath, lanesOf, legendOf, roundsOf, sharesOf } from "./timeline_lanes.js";

const AGAIN_MS = 2000;
const MOST = 200;

function sharesBar(shares) {
  return el("div", { class: "shares", role: "img", "aria-label": shares.map((one) => `${one.name} ${percent(one.share, 0)}`).join(", ") },
    shares.map((one) => el("div", { class: one.colour ? "" : "hatched", title: `${one.name}: ${duration(one.us / 1000)}, ${percent(one.share)}`, style: { flex: one.share, ...(one.colour ? { background: `var(${one.colour})` } : {}) } }, one.share > 0.02 ? `${one.name} ${percent(one.share, 0)}` : "")));
}

export function mount(root, { data, params, go }) {
  const stopping = new AbortController();
  const canvas = new TimelineCanvas();
  const rounds = Math.min(MOST, Math.max(1, Number(params.get("rounds")) || 4));
  const asked = params.has("from") ? Number(params.get("from")) : null;
  const firstOf = () => asked ?? Math.max(0, (data.status.round ?? 0) - (data.ended() ? rounds - 1 : rounds));
  const legend = el("ul", { class: "legend" });
  const below = el("section", { class: "panel" });
  const notes = el("div", {});
  const place = (from, many) => go(`#/${data.id}/timeline?from=${Math.max(0, from)}&rounds=${many}`);
  const fromInput = el("input", { type: "number", min: 0, value: firstOf(), on: { change: (event) => place(Number(event.target.value) || 0, rounds) } });
  const manyInput = el("input", { type: "number", min: 1, max: MOST, value: rounds, on: { change: (event) => place(firstOf(), Number(event.target.value) || 4) } });
  fill(root, viewHead("Timeline", "What everybody did when. Hatched is waiting: a bubble. The narrow band on top is each round's critical path: what the round waited for.",
    field("From round", fromInput), field("Rounds", manyInput), el("button", { on: { click: () => place(firstOf() - rounds, rounds) } }, "← Earlier"), el("button", { on: { click: () => place(firstOf() + rounds, rounds) } }, "Later →"),
    asked === null ? null : el("button", { on: { click: () => go(`#/${data.id}/timeline`) } }, "Newest")),
    notes, el("section", { class: "panel" }, el("div", { class: "tools" }, el("button", { "aria-label": "Zoom in", on: { click: () => canvas.zoom(0.6) } }, "+"), el("button", { "aria-label": "Zoom out", on: { click: () => canvas.zoom(1 / 0.6) } }, "−"), el("button", { on: { click: () => canvas.fit() } }, "All"),
      el("span", { class: "quiet small" }, "Drag, arrow keys, + and −; Ctrl and wheel zoom, Shift and wheel move.")), canvas.element, legend), below);

  async function load() {
    const answer = await get(`/v1/runs/${data.id}/timeline?from=${firstOf()}&limit=${rounds}`, { signal: stopping.signal });
    const lanes = lanesOf(answer);
    const last = lanes.reduce((most, lane) => lane.bars.reduce((end, bar) => Math.max(end, bar.end), most), 0) / 1000;
    const shown = roundsOf(answer, last || Date.now());
    fill(notes, shown.length ? [] : note("None of these rounds was opened."), lanes.length || !shown.length ? [] : note("No intervals are kept of these rounds: only the newest are."), lanes.some((lane) => lane.truncated) ? note("There are more intervals than are shown: ask for fewer rounds.", "warn") : []);
    if (!shown.length) return;
    const paths = shown.map((round) => criticalPath(round, lanes));
    canvas.show(lanes, shown, paths, `Timeline of rounds ${shown[0].round} to ${shown.at(-1).round}, ${lanes.length} lanes. The table below tells what each round waited for.`);
    fill(legend, legendOf(lanes).map((bar) => el("li", {}, el("span", { class: bar.colour ? "swatch" : "swatch hatched", style: bar.colour ? { background: `var(${bar.colour})` } : {} }), bar.name)));
    const rows = shown.map((round, i) => ({ round, shares: sharesOf(paths[i]) })).slice(-20);
    fill(below, el("h2", {}, "What the rounds waited for"), el("p", { class: "quiet small" }, "After the trainer's last wait: what the trainer did. Before it: sampling, as long as a server samples; else what the trainer did; else verifying; else nobody works."), el("div", { class: "across" }, table([
      { label: "Round", number: true, cell: ({ round }) => el("button", { class: "link", title: "Show this round", on: { click: () => canvas.fit(round.begin, round.end) } }, count(round.round)) },
      { label: "Took", number: true, cell: ({ round }) => duration((round.end - round.begin) / 1000) },
      { label: "Critical path", cell: ({ shares }) => [sharesBar(shares), el("div", { class: "small quiet" }, shares.filter((one) => one.share >= 0.005).map((one) => `${one.name} ${percent(one.share, 0)}`).join(", "))] },
    ], rows, { caption: "What the rounds waited for" })));
  }
  load().catch((error) => aborted(error) || fill(notes, note(error.message, "bad")));
  const timer = setInterval(() => {
    if (document.hidden || data.ended() || asked !== null || canvas.pointers.size) return;
    fromInput.value = firstOf();
    load().catch((error) => aborted(error) || data.fail(error));
  }, AGAIN_MS);
  return {
    restyle: () => canvas.restyle(),
    unmount() {
      clearInterval(timer);
      stopping.abort();
      canvas.destroy();
    },
  };
}

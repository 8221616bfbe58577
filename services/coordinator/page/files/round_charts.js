// A view that is nothing but line charts over the run's rounds: what it shows, from a list; and the choice of what is on the x axis
// and how many of the newest rounds are shown, which all these views share.
import { AXES, LineFigure } from "./charts.js";
import { choice, el, field, fill, note, viewHead } from "./dom.js";

const RANGES = [["0", "All rounds"], ["200", "Newest 200"], ["50", "Newest 50"]];
const chosen = { axis: localStorage.getItem("leasehold-axis") || "round", range: "0" };

// charts: {title, about, series, show, ..., columns(rounds, status) -> {key: values}, when(status): of which runs; left out: of all}.  tiles(rounds, status): nodes above them.  more: {start(changed) -> stop}.
export function roundCharts({ title, about, charts, tiles, tools = [], more }) {
  return function mount(root, { data }) {
    const made = charts.filter((chart) => !chart.when || chart.when(data.status)).map((chart) => ({ chart, figure: new LineFigure(chart) }));
    const top = el("dl", { class: "tiles" });
    const none = note("No round is done yet. Charts begin with the first one.");
    const untold = el("p", { class: "quiet small" });
    const redraw = () => update();
    fill(root, viewHead(title, about, tools.map((tool) => tool(redraw)),
      field("Over", choice(Object.entries(AXES).map(([key, axis]) => [key, axis.text]), chosen.axis, (value) => {
        chosen.axis = value;
        localStorage.setItem("leasehold-axis", value);
        redraw();
      })),
      field("Show", choice(RANGES, chosen.range, (value) => {
        chosen.range = value;
        redraw();
      }))), none, tiles ? top : null, el("div", { class: "grid" }, made.map(({ figure }) => figure.element)), untold);

    function update() {
      const axis = AXES[chosen.axis] || AXES.round;
      const all = axis.of(data.rounds);
      const from = Number(chosen.range) ? Math.max(0, data.rounds.length - Number(chosen.range)) : 0;
      const rounds = data.rounds.slice(from);
      none.classList.toggle("hidden", rounds.length > 0);
      if (tiles) fill(top, tiles(rounds, data.status));
      for (const { chart, figure } of made) figure.update(all.slice(from), axis, chart.columns(rounds, data.status));
      const missing = made.filter(({ figure }) => !figure.told).map(({ chart }) => chart.title);
      fill(untold, rounds.length && missing.length ? `Nothing is told here of: ${missing.join(", ")}.` : []);
    }
    update();
    const stop = more?.start(data, redraw);
    return {
      update,
      unmount() {
        stop?.();
        made.forEach(({ figure }) => figure.destroy());
      },
    };
  };
}

// Has the round tokens whose log-probabilities both trainer and sampler have computed?  A supervised round has none.
export const wereCompared = (round) => (round.lag ? round.lag.compared_tokens : round.tokens && round.sampled_tokens) > 0;

export const last = (rounds, key) => {
  for (let i = rounds.length - 1; i >= 0; i--) if (rounds[i][key] !== null && rounds[i][key] !== undefined) return rounds[i][key];
  return null;
};

// Does it learn?  The reward's mean and spread, what its terms give, the format, and evaluations.
import { smooth } from "./charts.js";
import { tile } from "./dom.js";
import { number, percent } from "./format.js";
import { last, roundCharts } from "./round_charts.js";
import { spreadOf, withSpread } from "./spread.js";

const SMOOTH = 9;
const COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"];
const DASHES = ["solid", "dashed", "dotted"];

// Evaluations as pairs of the round that x stands for and the figure.
function evaluated(rounds, status, figure) {
  const own = new Map(status.evaluations.map((evaluation) => [evaluation.round, evaluation]));
  let before = null;
  return rounds.map((round) => (before = own.has(round.round) ? figure(own.get(round.round)) : before));
}

// A line for each term of a reward that is a sum; its kind, numbered where there are several of a kind, as in a spread's `terms`.
function termSeries(terms) {
  return terms.map(({ kind, weight }, i) => {
    const same = terms.slice(0, i + 1).filter((term) => term.kind === kind).length;
    const name = same > 1 ? `${kind}_${same}` : kind;
    return { key: name, label: weight === 1 ? name : `${name} (weight ${number(weight)})`, colour: COLOURS[i % COLOURS.length], dash: DASHES[(i + Math.floor(i / COLOURS.length)) % DASHES.length] };
  });
}

function termCharts(status, spread) {
  const series = termSeries(status.config.verifier?.terms || []);
  if (!series.length) return [];
  const columns = (figure) => (rounds) => Object.fromEntries(series.map(({ key }, i) => [key, spread.column(rounds, (s) => s.terms[i]?.value?.[figure])]));
  return [
    { title: "Components", about: "What each term of the reward gives, before its weight: the mean over the samples.", show: number, height: 320, series, columns: columns("mean") },
    { title: "How far components differ", about: "One standard deviation over the samples. A term that gives the same to all teaches nothing.", show: number, min: 0, height: 320, series, columns: columns("std") },
  ];
}

export function mount(root, context) {
  const spread = spreadOf(context.data);
  const value = (rounds, key) => spread.column(rounds, (s) => s.reward?.[key]);
  return roundCharts({
    title: "Reward",
    about: "Does it learn? Rewards are the verifier's, before they become advantages.",
    more: withSpread,
    tiles: (rounds, status) => [
      tile("Newest round", number(last(rounds, "reward_mean"))),
      tile("First shown round", number(rounds[0]?.reward_mean)),
      tile("Best round", number(rounds.length ? Math.max(...rounds.map((round) => round.reward_mean ?? -Infinity)) : null)),
      tile("Newest evaluation", percent(status.evaluations.at(-1)?.accuracy), status.evaluations.length ? `round ${status.evaluations.at(-1).round}` : "none yet"),
    ],
    charts: [
      { title: "Reward", about: "Mean of each round, the mean of nine rounds, and one standard deviation over the samples.", show: number, height: 320,
        series: [{ key: "smooth", label: "mean of nine rounds", colour: "--c1" }, { key: "mean", label: "each round", colour: "--c6", thin: true }, { key: "low", colour: "--c1" }, { key: "high", label: "± one deviation", colour: "--c1", to: "low" }],
        columns: (rounds) => {
          const mean = rounds.map((round) => round.reward_mean);
          const std = value(rounds, "std");
          return { mean, smooth: smooth(mean, SMOOTH), low: std.map((s, i) => (s === null ? null : mean[i] - s)), high: std.map((s, i) => (s === null ? null : mean[i] + s)) };
        } },
      { title: "Held-out accuracy", about: "Evaluations; a figure stands until the next one.", show: (v) => percent(v, 0), min: 0, max: 1, height: 320,
        series: [{ key: "accuracy", label: "accuracy", colour: "--c3", stepped: true }, { key: "formed", label: "well formed", colour: "--c5", dash: "dashed", stepped: true }],
        columns: (rounds, status) => ({ accuracy: evaluated(rounds, status, (e) => e.accuracy), formed: evaluated(rounds, status, (e) => e.well_formed) }) },
      ...termCharts(context.data.status, spread),
      { title: "Where rewards lie", about: "A tenth of the samples earn less than the lower line, a tenth more than the upper one.", show: number,
        series: [{ key: "p50", label: "half of them", colour: "--c2" }, { key: "p10", label: "lowest tenth", colour: "--c4", dash: "dotted" }, { key: "p90", label: "highest tenth", colour: "--c3", dash: "dashed" }],
        columns: (rounds) => ({ p10: value(rounds, "p10"), p50: value(rounds, "p50"), p90: value(rounds, "p90") }) },
      { title: "Well formed", about: "Share of the samples whose answer the verifier could read.", show: (v) => percent(v, 0), min: 0, max: 1,
        series: [{ key: "formed", label: "well formed", colour: "--c5" }], columns: (rounds) => ({ formed: rounds.map((round) => round.well_formed_mean) }) },
    ],
  })(root, context);
}

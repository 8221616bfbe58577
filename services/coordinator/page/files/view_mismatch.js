// Do trainer and samplers compute the same?  d = the sampler's log-probability of a token less the trainer's.
import { tile } from "./dom.js";
import { count, number } from "./format.js";
import { roundCharts, wereCompared } from "./round_charts.js";

const of = (key) => (rounds) => rounds.map((round) => (wereCompared(round) ? round[key] : null));

export const mount = roundCharts({
  title: "Mismatch",
  about: "Do trainer and samplers compute the same? d is the sampler's log-probability of a trained token less the trainer's. With our kernels every d is exactly 0.",
  tiles: (rounds, status) => {
    const inexact = rounds.filter((round) => !round.exact);
    const compared = status.totals.logprob_unequal > 0 || rounds.some(wereCompared);
    return [
      tile("Unequal tokens", compared ? count(status.totals.logprob_unequal) : "–", compared ? `of ${count(status.totals.trained_tokens)} trained` : "nothing was compared"),
      tile("Not finite", compared ? count(status.totals.logprob_nonfinite) : "–"),
      tile("Largest |d|", compared ? number(status.totals.logprob_max_abs_diff) : "–"),
      tile("Rounds that are not exact", count(inexact.length), inexact.length ? `round ${inexact.at(-1).round}: ${inexact.at(-1).inexact_reason}` : "of those shown"),
      tile("Stale results trained on", count(status.totals.stale_results_trained_on)),
    ];
  },
  charts: [
    { title: "Unequal tokens", about: "Trained tokens whose float32s differ in any bit.", show: count, min: 0, suggestedMax: 1, series: [{ key: "unequal", label: "unequal", colour: "--c2" }, { key: "nonfinite", label: "not finite", colour: "--c4", dash: "dashed" }],
      columns: (rounds) => ({ unequal: of("logprob_unequal")(rounds), nonfinite: of("logprob_nonfinite")(rounds) }) },
    { title: "|d|", about: "Largest and mean.", show: number, min: 0, suggestedMax: 1e-6, series: [{ key: "max", label: "largest", colour: "--c2" }, { key: "mean", label: "mean", colour: "--c1", dash: "dashed" }],
      columns: (rounds) => ({ max: of("logprob_max_abs_diff")(rounds), mean: of("logprob_mean_abs_diff")(rounds) }) },
    { title: "KL(sampler ‖ trainer)", about: "Two unbiased estimates: k1 may be negative, k3 never is.", show: number, suggestedMax: 1e-6, series: [{ key: "k3", label: "k3", colour: "--c1" }, { key: "k1", label: "k1", colour: "--c3", dash: "dotted" }],
      columns: (rounds) => ({ k1: of("logprob_kl_k1")(rounds), k3: of("logprob_kl_k3")(rounds) }) },
  ],
});

// How the policy moves: entropy, distance from the policy that sampled and from the reference, clipping, gradient norm, learning rate.
import { number, percent } from "./format.js";
import { roundCharts } from "./round_charts.js";

const of = (key) => (rounds) => rounds.map((round) => round[key]);
const one = (key, colour) => ({ series: [{ key, label: key, colour }], columns: (rounds) => ({ [key]: of(key)(rounds) }) });

export const mount = roundCharts({
  title: "Policy",
  about: "How the policy moves. Entropy that falls to nothing, a growing distance or a jumping gradient norm come before a collapse.",
  charts: [
    { title: "Entropy", about: "Mean over the trained tokens, in nats.", show: number, suggestedMax: 0.01, min: 0, ...one("entropy", "--c1") },
    { title: "Gradient norm", about: "Before clipping.", show: number, min: 0, ...one("grad_norm", "--c2") },
    { title: "Distance from the policy that sampled", about: "KL(sampling ‖ new), the mean of r − 1 − log r. 0 while a round takes one step.", show: number, series: [{ key: "kl", label: "KL", colour: "--c3" }, { key: "abs", label: "mean |log r|", colour: "--c4", dash: "dashed" }],
      columns: (rounds) => ({ kl: of("kl_new_old")(rounds), abs: of("mean_abs_diff_new_old")(rounds) }) },
    { title: "Distance from the reference", about: "KL(policy ‖ reference) by the run's estimator, the mean over the trained tokens: what kl_coefficient holds down.", show: number, when: (status) => status.config.training.kl_coefficient > 0,
      series: [{ key: "reference", label: "KL", colour: "--c1" }], columns: (rounds) => ({ reference: rounds.map((round) => round.reference?.kl ?? null) }) },
    { title: "Clipped tokens", about: "Share of the trained tokens whose ratio was clipped.", show: (v) => percent(v, 2), min: 0, suggestedMax: 0.01, ...one("clip_fraction", "--c5") },
    { title: "Effective sample share", about: "(Σ r)² / (n Σ r²): 1 while all ratios are equal.", show: (v) => percent(v, 1), max: 1, ...one("ess", "--c3") },
    { title: "Learning rate", show: number, min: 0, ...one("lr", "--c6") },
    { title: "Loss", show: number, ...one("loss", "--c4") },
    { title: "Optimizer steps", about: "Per round; 0 where nothing could be learned.", show: number, min: 0, series: [{ key: "steps", label: "steps", colour: "--c6", stepped: true }], columns: (rounds) => ({ steps: of("steps")(rounds) }) },
  ],
});

// One group: its samples side by side, as a conversation or token by token.
import { get } from "./api.js";
import { choice, el, field, fill, note, tile, viewHead } from "./dom.js";
import { count, number } from "./format.js";
import { COLOURINGS, legendOf, tokenStrip } from "./token_strip.js";

const PAGE = 16;
let shownAs = "text";

// A prompt in the ChatML form, turn by turn; any other is one turn.
function turnsOf(prompt) {
  const turns = [];
  for (const part of prompt.split("<|im_start|>").slice(1)) {
    const end = part.indexOf("\n");
    turns.push({ role: end < 0 ? part : part.slice(0, end), text: (end < 0 ? "" : part.slice(end + 1)).replace(/<\|im_end\|>\s*$/, "") });
  }
  const asked = turns.filter((turn, i) => turn.text || i < turns.length - 1);
  return asked.length && prompt.startsWith("<|im_start|>") ? asked : [{ role: "prompt", text: prompt }];
}

const trainedOf = (sample) => sample.segments.filter((segment) => segment.loss_mask).length;

// The completion's segments: what the model wrote, turn by turn, and what is not trained on.  Where the texts of tokens are not known, several are one.
function segmentsOf(sample) {
  const { segments, token_texts: texts } = sample;
  const trained = trainedOf(sample);
  if (segments.length < 2) return [{ masked: segments.length === 1 && !trained, label: segments.length === 1 && !trained ? "model, not trained on" : "model", text: sample.text }];
  if (!texts) return [{ masked: false, label: `${segments.length} segments, ${trained} of them trained on`, text: sample.text }];
  let turn = 0;
  return segments.map(({ start, count: tokens, loss_mask: own }) => ({ masked: !own, label: own ? (trained > 1 ? `model, turn ${(turn += 1)} of ${trained}` : "model") : "not trained on", text: texts.slice(start, start + tokens).join("") }));
}

// What each term of the reward gave.
function termsOf(sample) {
  return el("dl", { class: "terms small" }, sample.terms.map((term) => el("div", {}, el("dt", {}, term.name), el("dd", {}, term.weight === 1 ? number(term.value) : `${number(term.value)} × ${number(term.weight)}`))));
}

const turn = (kind, label, text) => el("div", { class: `turn ${kind}` }, el("span", {}, label), el("div", { class: "wrap" }, text || "(empty)"));

function card(sample, best, told) {
  const facts = [`reward ${number(sample.reward)}`, `advantage ${number(sample.advantage)}`, `${count(sample.token_ids.length)} tokens`, trainedOf(sample) > 1 ? `${trainedOf(sample)} turns` : null, sample.finish === "length" ? "cut off" : sample.finish].filter(Boolean);
  const body = shownAs === "text" ? segmentsOf(sample).map((segment) => turn(segment.masked ? "masked" : "model", segment.label, segment.text)) : tokenStrip(sample, shownAs, told);
  return el("article", { class: best ? "card best" : "card", id: `sample-${sample.sample}` }, el("header", {}, el("strong", {}, `Sample ${sample.sample}`), el("span", {}, best ? "★ " : "", facts.join(" · "))), sample.terms ? termsOf(sample) : null, el("div", {}, body),
    el("div", { class: "small quiet wrap" }, [sample.well_formed ? null : "not well formed", sample.detail, `by ${sample.worker}`].filter(Boolean).join(" · ")));
}

export async function mount(root, { data, params, go }) {
  const id = params.get("id") || "";
  const samples = [];
  let group = await get(`/v1/groups/${encodeURIComponent(id)}?limit=${PAGE}`);
  samples.push(...group.samples);
  const cards = el("div", { class: "columns" });
  const legend = el("div", {});
  const said = el("p", { class: "note", role: "status" }, "Press a token to see what is known of it.");
  const more = el("button", { on: { click: async () => {
    group = await get(`/v1/groups/${encodeURIComponent(id)}?from=${samples.at(-1).sample + 1}&limit=${PAGE}`);
    samples.push(...group.samples);
    show();
  } } }, "More samples");
  const order = choice([["sample", "sample"], ["reward", "reward"], ["length", "length"]], "sample", () => show());
  const by = choice([["text", "conversation"], ...COLOURINGS.map(([key, label]) => [key, `tokens: ${label}`])], shownAs, (value) => {
    shownAs = value;
    show();
  });

  function show() {
    const best = Math.max(...samples.map((sample) => sample.reward ?? -Infinity));
    const worst = Math.min(...samples.map((sample) => sample.reward ?? Infinity));
    const sorted = [...samples].sort((a, b) => (order.value === "reward" ? b.reward - a.reward : order.value === "length" ? b.token_ids.length - a.token_ids.length : a.sample - b.sample));
    fill(cards, sorted.map((sample) => card(sample, best > worst && sample.reward === best, (text) => fill(said, text))));
    fill(legend, shownAs === "text" ? [] : legendOf(shownAs, samples), shownAs !== "text" && samples.some((sample) => !sample.token_texts) ? note("The run's tokenizer is not known just now: neither the active run nor the trainer has it. Tokens are shown by their ids.") : null,
      shownAs === "entropy" && samples.some((sample) => !sample.entropies) ? note(group.trained_in === null ? "Entropies are the trainer's: it tells those of groups that it trains on, and this one was not." : "No entropies are kept of this group: its step is still to come, or an earlier release trained it.") : null);
    said.classList.toggle("hidden", shownAs === "text");
    more.classList.toggle("hidden", samples.length >= group.samples_asked || group.samples.length < PAGE);
  }
  const step = (by_) => go(`#/${data.id}/group?id=r${group.run.slice(1)}.${group.round}.${group.ordinal + by_}`);
  const rewards = samples.map((sample) => sample.reward).filter((reward) => reward !== null);
  fill(root, viewHead(`Group ${group.id}`, `Round ${group.round}, ${group.purpose}. All of a group's samples answer the same prompt; what one earns above the others is its advantage.`,
    group.ordinal > 0 ? el("button", { on: { click: () => step(-1) } }, "← Previous") : null, el("button", { on: { click: () => step(1) } }, "Next →"), field("Show", by), field("Order by", order)),
    el("dl", { class: "tiles" }, tile("State", group.state, group.reason || (group.trained_in === null ? "" : `trained in round ${group.trained_in}`)), tile("Samples", `${count(samples.length)} of ${count(group.samples_asked)}`), tile("Rewards", rewards.length ? `${number(Math.min(...rewards))} to ${number(Math.max(...rewards))}` : "–"), tile("Answer", group.answer || "–")),
    el("section", { class: "panel" }, turnsOf(group.prompt).map(({ role, text }) => turn("prompt", role, text))), legend, said, cards, el("div", {}, more));
  show();
  if (params.get("sample")) document.getElementById(`sample-${params.get("sample")}`)?.scrollIntoView({ block: "nearest" });
  return { restyle: show };
}

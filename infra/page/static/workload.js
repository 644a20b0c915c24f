// The view of one workload: what was decided and why, on what evidence, and how good the forecasts have been.

import { LoadChart, ReplicaChart } from "./charts.js";
import { byId, el, set, text } from "./dom.js";
import { MARKS, attained, chance, clock, count, day, instant, number, percent, shorten, span, together } from "./format.js";

const RISK_ROWS = 12;
const SPANS = [60, 120, 360];
const BASE = "tbody";
const REQUESTS = "requests/s";

export class WorkloadView {
  constructor(address, store) {
    this.address = address;
    this.store = store;
    this.node = byId("workload");
    this.turns = new Map();
    this.title = el("h1", { id: "workload-title", tabIndex: -1, textContent: "…" });
    this.mode = el("span", { className: "badge" });
    this.lead = el("p", { className: "lead", textContent: "Reading …" });
    this.tiles = ["Replicas ready", "Within SLO", "Risk of a miss", "Load now, requests/s", "One replica carries", "Lead time"].map((name) => {
      const tile = { value: el("dd"), sub: el("dd", { className: "sub" }) };
      tile.node = el("div", { className: "tile" }, el("dt", { textContent: name }), tile.value, tile.sub);
      return tile;
    });
    this.load = new LoadChart();
    this.replicas = new ReplicaChart();
    this.steps = innerWidth > 760 ? 120 : 60; // a phone has no room to tell more apart
    this.spans = SPANS.map((steps) => {
      const button = el("button", { type: "button", textContent: `${steps} steps` });
      button.addEventListener("click", () => this.reach(steps));
      return button;
    });
    this.load.node.querySelector(".head").append(el("div", { className: "span", role: "group", "aria-label": "How far the charts reach back" }, ...this.spans));
    this.why = el("p");
    this.risk = el(BASE);
    this.skillWords = el("p");
    this.skill = el(BASE);
    this.beside = el("p");
    this.facts = el("dl", { className: "facts" });
    this.timeline = el("ol", { className: "turns" });
    this.body = el("div", { className: "cards" },
      this.load.node, this.replicas.node,
      card("Why this many: risk of missing the objective by replicas", "half", this.why,
        table("risk", ["Replicas", "P(miss), logarithmic", "", "Requests that miss", ""], this.risk, "Risk by number of replicas")),
      card("Forecast skill", "half", this.skillWords,
        table("skill", ["Ahead", "Scored", "Mean error", "If nothing changed", "Inside 50 %", "Inside 90 %"], this.skill, "Forecast skill by horizon")),
      card("Beside what is held, and what was needed", "", this.beside),
      card("Decisions, newest first", "", this.timeline),
      card("Evidence of the newest decision", "", this.facts));
    this.node.replaceChildren(
      el("a", { className: "back", href: "#/", textContent: "← Fleet" }),
      el("div", { className: "title" }, this.title, this.mode),
      this.lead, el("dl", { className: "tiles" }, ...this.tiles.map((tile) => tile.node)), this.body);
  }

  destroy() {
    this.destroyed = true;
    clearTimeout(this.timer);
    this.load.destroy();
    this.replicas.destroy();
  }

  /** Read anew, at most once a second; what arrives meanwhile is one more reading. */
  async refresh() {
    if (this.reading || this.timer) { this.again = true; return; }
    this.reading = true;
    this.again = false;
    try {
      const path = this.path();
      const answer = await fetch(`api/workloads/${path}`, { headers: { Accept: "application/json" } });
      if (this.destroyed) return;
      if (answer.ok) this.show(await answer.json());
      else if (answer.status === 404) this.missing();
    } catch { /* the stream says that the connection is lost, and asks again when it is back */ }
    this.reading = false;
    if (this.destroyed) return;
    this.timer = setTimeout(() => { this.timer = null; if (this.again) this.refresh(); }, 1000);
  }

  /** By its key where the fleet tells it: an id may hold what does not survive in a path. */
  path() {
    for (const row of this.store.rows.values()) if (row.id === this.address) return `~${row.key}`;
    return encodeURIComponent(this.address);
  }

  missing() {
    const name = shorten(this.address, 200);
    if (this.view) {
      text(this.lead, "This workload has left: it was retired, or nothing has been decided for it for long. Below is what was known last.");
      text(this.mode, "gone");
      this.gone = true;
      return;
    }
    text(this.title, name);
    text(this.lead, "No decision of this workload is known here. It may not have started, may have left, or the name may be mistyped.");
    set(this.body, "hidden", true);
  }

  show(view) {
    if (this.destroyed) return;
    const first = !this.view;
    this.view = view;
    this.gone = false;
    const d = view.decision;
    set(this.body, "hidden", false);
    text(this.title, shorten(view.id, 1000));
    document.title = `${shorten(view.id, 80)} · HARMONY`;
    text(this.mode, d.mode);
    set(this.mode, "className", `badge ${d.mode === "act" ? "act" : ""}`);
    text(this.lead, together(`${MARKS[d.action] ?? ""} ${capital(view.headline)}: ${view.because}.`));
    this.showTiles(view, d);
    view.steps = this.steps;
    this.spans.forEach((button, n) => {
      button.setAttribute("aria-pressed", String(SPANS[n] === this.steps));
      text(button, span((SPANS[n] * view.step_ms) / 1000));
    });
    this.load.show(view, this.loadWords(view));
    this.replicas.show(view, `Replicas over time; now ${count(d.replicas.ready)} ready and ${count(d.replicas.final)} wanted. Arrow keys read single steps.`);
    this.showRisk(view, d);
    this.showSkill(view);
    text(this.beside, besideWords(view, d.mode));
    this.showFacts(view, d);
    this.showTurns(view.turns);
    if (first) { this.load.fit(); this.replicas.fit(); }
  }

  reach(steps) {
    this.steps = steps;
    if (this.view) this.show(this.view);
  }

  showTiles(view, d) {
    const fill = (i, value, sub, tone = "") => { text(this.tiles[i].value, value); text(this.tiles[i].sub, sub); set(this.tiles[i].value, "className", tone); };
    const p = d.risk.p_miss[String(d.replicas.final)] ?? null;
    const { attainment, objective, slots } = view.slo;
    fill(0, count(d.replicas.ready), `${count(d.replicas.final)} wanted, ${count(d.replicas.pending)} pending`);
    fill(1, attainment === null ? "–" : attained(attainment), attainment === null ? `objective ${percent(objective)}` : `objective ${percent(objective)}, over ${span((slots * view.step_ms) / 1000)}`, attainment === null ? "" : attainment < objective ? "bad" : "good");
    const share = d.risk.miss_share[String(d.replicas.final)] ?? null;
    const words = share === null ? "" : `, ${chance(share)} of the requests expected to miss`;
    fill(2, chance(p), `with ${count(d.replicas.final)} replicas${words}`, share !== null && share > allowed(d) ? "bad" : "");
    const unit = counted(d.forecast.indicator);
    fill(3, number(d.inputs.arrival_rate), d.forecast.peak ? `peak ahead ${range(d.forecast.peak)}${unit === REQUESTS ? "" : ` ${unit}`}` : "no forecast");
    fill(4, d.capacity_per_replica ? number(middle(d.capacity_per_replica)) : "–", d.capacity_per_replica ? `${unit}, ${percent(0.9)} in ${range(d.capacity_per_replica)}` : "not learned yet");
    const starts = d.lead_time_starts ? `of ${count(d.lead_time_starts)} starts` : "as declared";
    fill(5, d.lead_time_s ? span(middle(d.lead_time_s)) : "–", d.lead_time_s ? `${starts}, ${percent(0.9)} in ${range(d.lead_time_s)}\u00a0s` : "not learned yet");
  }

  loadWords(view) {
    const fan = view.fan;
    const now = number(view.decision.inputs.arrival_rate);
    if (!fan) return `Load over time, now ${now} requests/s; no forecast.`;
    const end = fan.ts_ms.length - 1;
    return `Load over time, now ${now} requests/s. Forecast by ${fan.source} for ${clock(fan.ts_ms[end])}: median ${number(fan.quantiles[2][end])}, 90 % between ${number(fan.quantiles[0][end])} and ${number(fan.quantiles[4][end])}. Arrow keys read single steps.`;
  }

  showRisk(view, d) {
    const guarded = d.replicas.final === d.replicas.proposed ? "" : ` The guards made ${count(d.replicas.final)} of it: ${view.because}.`;
    text(this.why, view.why ? together(`${capital(view.why)}.${guarded}`) : "No risk was computed for this decision.");
    const counts = Object.keys(d.risk.p_miss).map(Number).sort((a, b) => a - b);
    const centre = counts.indexOf(d.replicas.proposed ?? d.replicas.final);
    const start = Math.max(0, Math.min(counts.length - RISK_ROWS, centre - RISK_ROWS / 2));
    this.risk.replaceChildren(...counts.slice(start, start + RISK_ROWS).map((n) => {
      const p = d.risk.p_miss[String(n)];
      const words = [n === d.replicas.proposed ? "proposed" : "", n === d.replicas.final ? "decided" : "", n === d.replicas.current ? "current" : ""].filter(Boolean).join(", ");
      const share = d.risk.miss_share[String(n)] ?? null;
      const over = share !== null && share > allowed(d);
      const fill = el("i", { className: over ? "over" : "" });
      fill.style.width = `${100 * scale(p)}%`;
      return el("tr", { className: n === d.replicas.final ? "chosen" : "" },
        el("td", { textContent: String(n) }),
        el("td", {}, el("div", { className: "bar", "aria-hidden": "true" }, fill)),
        el("td", { className: "n", textContent: chance(p) }),
        el("td", { className: "n", textContent: share === null ? "–" : `${chance(share)} ${over ? "✗" : "✓"}` }),
        el("td", { textContent: words }));
    }));
  }

  showSkill(view) {
    const told = view.skill.filter((s) => s.mae !== null);
    const source = view.fan ? `Forecaster: ${view.fan.source} (${view.fan.model}). ` : "";
    text(this.skillWords, source + (told.length
      ? "Errors are in requests/s, over the steps on this page. A good forecaster's error is below that of “if nothing changed”, and its bands hold what they say."
      : "Too few forecasts have been held against what came to say more."));
    this.skill.replaceChildren(...view.skill.map((s) => {
      const gain = s.mae === null || !s.last_value_mae ? "" : s.mae <= s.last_value_mae ? ` (−${percent(1 - s.mae / s.last_value_mae, 0)})` : ` (+${percent(s.mae / s.last_value_mae - 1, 0)})`;
      return el("tr", {}, ...[span(s.ahead_s), String(s.scores), `${number(s.mae)}${gain}`, number(s.last_value_mae), percent(s.coverage_50, 0), percent(s.coverage_90, 0)]
        .map((value) => el("td", { textContent: value })));
    }));
  }

  showFacts(view, d) {
    const i = d.inputs;
    const flags = ["censored", "flat", "cliff", "zero_after_nonzero"].filter((name) => i[name]).map((name) => name.replaceAll("_", " "));
    const facts = [
      ["Decided for", instant(d.origin_ts_ms)],
      ["Telemetry", `${i.observed_steps} steps observed (${percent(i.observed_ratio, 0)} of the context), ${percent(i.coverage_ratio, 0)} of the sources heard, oldest ${i.oldest_age_ms === null ? "unknown" : `${span(i.oldest_age_ms / 1000)} old`}`],
      ["Doubts", flags.length ? flags.join(", ") : "none"],
      ["Forecast peak", d.forecast.peak ? `${quantiles(d.forecast.peak)} ${counted(d.forecast.indicator)}${d.forecast.window_s === null ? "" : ` over ${span(d.forecast.window_s)}`}` : "none"],
      ["Error budget left", percent(d.risk.budget_left_ratio, 1)],
      ["Others would say", Object.entries(d.shadow).sort().map(([rule, n]) => other(rule, n, d.risk.p_miss[n])).join(", ") || "–"],
      ["Proposer", (d.proposer ?? "none").replaceAll("_", " ")],
      ["Command", d.command_id ?? "none was published"],
      ["Decision", d.decision_id],
      ["Policy and model", `${d.fingerprint.policy}, ${d.fingerprint.model}`],
    ];
    this.facts.replaceChildren(...facts.flatMap(([name, value]) => [el("dt", { textContent: name }), el("dd", { textContent: value })]));
  }

  showTurns(turns) {
    const kept = new Map();
    const nodes = turns.map((turn) => {
      const known = this.turns.get(turn.from_ts_ms) ?? makeTurn();
      fillTurn(known, turn);
      kept.set(turn.from_ts_ms, known);
      return known.node;
    });
    this.turns = kept;
    const now = [...this.timeline.children];
    if (now.length !== nodes.length || nodes.some((node, n) => node !== now[n])) this.timeline.replaceChildren(...nodes);
  }
}

/** What would have been held in place of theirs, and what each step's load turned out to need. */
function besideWords(view, mode) {
  const a = view.adoption;
  if (!a) return "Too little is known yet of what was held, wanted and needed.";
  const time = span((a.steps * view.step_ms) / 1000);
  const less = a.held ? 1 - a.ours / a.held : 0;
  const verdict = Math.abs(less) < 0.005 ? "as many" : `${percent(Math.abs(less), 0)} ${less > 0 ? "fewer" : "more"}`;
  const risk = a.p_held === null || a.p_ours === null ? "" : `, at a mean stated risk of a miss of ${mode === "observe" ? "at most " : ""}${chance(a.p_ours)}; with what was held it was ${chance(a.p_held)}`;
  if (view.low_maximum !== null) return `Over ${time}, ${number(a.held)} replicas were held on average. HARMONY may hold ${view.low_maximum} at most, as declared: fewer replicas come from that bound, and are no saving. What each step's own load needed, as seen afterwards: ${number(a.above_h)} replica-hours were held beyond it, ${number(a.below_h)} were short of it.`;
  const ours = mode === "observe" ? `HARMONY would have held ${number(a.ours)} (${verdict})` : `HARMONY wanted ${number(a.ours)} (${verdict})`;
  return `Over ${time}, ${number(a.held)} replicas were held on average. ${ours}${risk}. What each step's own load needed, as seen afterwards: ${number(a.above_h)} replica-hours were held beyond it, ${number(a.below_h)} were short of it.`;
}

function makeTurn() {
  const turn = { time: el("time"), mark: el("span", { "aria-hidden": "true" }), what: el("span"), times: el("span", { className: "times" }), inside: el("div", { className: "inside" }) };
  turn.node = el("li", {}, el("details", {}, el("summary", {}, turn.time, turn.mark, turn.what, turn.times), turn.inside));
  return turn;
}

function fillTurn(node, turn) {
  if (node.until === turn.until_ts_ms) return;
  node.until = turn.until_ts_ms;
  text(node.time, `${day(turn.from_ts_ms).slice(5)} ${clock(turn.from_ts_ms)}${turn.count > 1 ? `–${clock(turn.until_ts_ms)}` : ""}`);
  text(node.mark, MARKS[turn.action] ?? "?");
  set(node.mark, "className", `mark ${turn.action === "up" || turn.action === "down" ? turn.action : ""}`);
  text(node.what, together(`${capital(turn.headline)} · ${turn.because}`));
  text(node.times, turn.count > 1 ? `× ${turn.count}` : "");
  const parts = [];
  if (turn.count > 1) {
    const reasons = Object.entries(turn.reasons).map(([name, n]) => `${name.replaceAll("_", " ")} ${n}×`);
    parts.push(el("p", { textContent: `${turn.count} decisions left it so (${reasons.join(", ")}). The newest one:` }));
  }
  const steps = turn.guards.map((g) => [g.guard.replaceAll("_", " "), g.before === g.after ? String(g.after) : `${g.before} → ${g.after}`, g.reason]);
  if (turn.proposed !== null) steps.unshift(["proposal", String(turn.proposed), `by ${(turn.proposer ?? "the planner").replaceAll("_", " ")}`]);
  steps.push(["decided", count(turn.final), turn.p_miss === null ? "" : `risk of a miss ${chance(turn.p_miss)}${turn.miss_share === null ? "" : `, ${chance(turn.miss_share)} of the requests expected to miss`}`]);
  parts.push(table("", ["Who", "Replicas", "Because"], el(BASE, {}, ...steps.map((step) => el("tr", {}, ...step.map((cell) => el("td", { textContent: cell }))))), "Guard steps"));
  if (turn.peak) parts.push(el("p", { textContent: `Forecast peak: ${quantiles(turn.peak)} ${counted(turn.indicator)}.` }));
  parts.push(el("p", { className: "sub" }, "Decision ", el("code", { textContent: turn.decision_id }), turn.command_id ? ", command " : "", turn.command_id ? el("code", { textContent: turn.command_id }) : null));
  node.inside.replaceChildren(...parts);
}

function card(title, width, ...children) {
  return el("section", { className: `card ${width}` }, el("h2", { textContent: title }), ...children);
}

function table(kind, heads, body, caption) {
  return el("div", { className: "scroll", tabIndex: 0, role: "group", "aria-label": caption }, el("table", { className: `plain ${kind}` },
    el("caption", { className: "hidden", textContent: caption }),
    el("thead", {}, el("tr", {}, ...heads.map((name) => (name ? el("th", { scope: "col", textContent: name }) : el("td"))))), body));
}

/** From 0.01 % to 100 %, logarithmic. */
const allowed = (d) => 1 - d.risk.objective;
const scale = (p) => (p <= 1e-4 ? 0.01 : Math.min(1, Math.max(0.01, 1 + Math.log10(p) / 4)));
const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);
/** What the indicator of a decision is counted in, and with it peak and capacity. */
const counted = (indicator) => ({ "request.output_token_rate": "generated tokens/s", "request.prompt_token_rate": "prompt tokens/s", "request.uncached_prompt_token_rate": "computed prompt tokens/s" })[indicator] ?? REQUESTS;
const other = (rule, replicas, risk) => `${rule.replaceAll("_", " ")} ${replicas}${risk === undefined ? "" : ` (risk ${chance(risk)})`}`;
const middle = (q) => q.values[Math.floor(q.values.length / 2)];
const range = (q) => `${number(q.values[0])}–\u2060${number(q.values[q.values.length - 1])}`;
const quantiles = (q) => q.levels.map((level, i) => `p${Number((100 * level).toFixed(1))} ${number(q.values[i])}`).join(", ");

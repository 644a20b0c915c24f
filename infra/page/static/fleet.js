// The fleet view: one row per workload, fifty to a page, updated in place.

import { byId, colour, el, set, text } from "./dom.js";
import { MARKS, attained, chance, clock, day, link, number, percent, shorten, together } from "./format.js";

const PAGE = 50;
const SPARK = 48;

const POLICIES = { harmony: "HARMONY", hpa: "HPA, tuned on this load", static_peak: "Fixed fleet, told the peak" };

const ORDERS = {
  name: () => 0,
  load: (a, b) => (b.load_rps ?? -1) - (a.load_rps ?? -1),
  replicas: (a, b) => (b.wanted ?? -1) - (a.wanted ?? -1),
  slo: (a, b) => shortfall(b) - shortfall(a),
  risk: (a, b) => (b.p_miss ?? -1) - (a.p_miss ?? -1),
  moving: (a, b) => moving(b) - moving(a),
};
const shortfall = (row) => (row.attainment === null ? -1 : row.objective - row.attainment);
const moving = (row) => Number(row.action !== "hold") * 2 + Number(row.ready !== row.wanted);
const late = (row, origin) => origin - row.origin_ts_ms;

export class FleetView {
  constructor(store) {
    this.store = store;
    this.page = 0;
    this.slots = [];
    this.order = [];
    byId("filter").addEventListener("input", () => this.chosen());
    byId("order").addEventListener("change", () => this.chosen());
    byId("tools").addEventListener("submit", (event) => event.preventDefault());
    byId("prev").addEventListener("click", () => this.turn(-1));
    byId("next").addEventListener("click", () => this.turn(1));
    byId("table").addEventListener("keydown", (event) => this.walk(event));
    this.tiles = this.makeTiles();
  }

  makeTiles() {
    const names = ["Workloads", "Replicas ready", "Within SLO", "Changing now", "Held back", "Beside what is held", "Event time, UTC"];
    return names.map((name) => {
      const tile = { value: el("dd"), sub: el("dd", { className: "sub" }) };
      byId("tiles").append(el("div", { className: "tile" }, el("dt", { textContent: name }), tile.value, tile.sub));
      return tile;
    });
  }

  chosen() {
    this.page = 0;
    this.sorted = false;
    this.draw();
  }

  turn(by) {
    this.page += by;
    this.draw();
    scrollTo({ top: 0 });
    byId("fleet-title").focus({ preventScroll: true });
  }

  /** Arrow keys go from name to name. */
  walk(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.classList.contains("name")) return;
    event.preventDefault();
    const names = this.slots.filter((slot) => !slot.node.hidden).map((slot) => slot.name);
    names[Math.max(0, Math.min(names.length - 1, names.indexOf(event.target) + step))].focus();
  }

  /** Rows in the chosen order. Under the pointer or the focus they stay where they are. */
  arranged() {
    const { rows } = this.store;
    const chosen = byId("order").value;
    const words = byId("filter").value.trim().toLowerCase();
    const held = this.sorted && chosen !== "name" && byId("table").matches(":hover, :focus-within");
    if (held) {
      this.order = this.order.filter((key) => rows.has(key));
      return this.order;
    }
    let list = [...rows.values()];
    if (words) list = list.filter((row) => `${row.id} ${row.mode} ${row.action} ${row.headline} ${row.because}`.toLowerCase().includes(words));
    const compare = ORDERS[chosen] ?? ORDERS.name;
    list.sort((a, b) => compare(a, b) || (a.id < b.id ? -1 : a.id > b.id ? 1 : 0));
    this.order = list.map((row) => row.key);
    this.sorted = true;
    return this.order;
  }

  draw() {
    const order = this.arranged();
    const pages = Math.max(1, Math.ceil(order.length / PAGE));
    this.page = Math.max(0, Math.min(this.page, pages - 1));
    const shown = order.slice(this.page * PAGE, (this.page + 1) * PAGE);
    // Before the rows are filled: what is hidden has no width to draw in.
    set(byId("table"), "hidden", order.length === 0);
    while (this.slots.length < shown.length) this.slots.push(this.makeSlot());
    this.slots.forEach((slot, i) => {
      set(slot.node, "hidden", i >= shown.length);
      if (i < shown.length) this.fill(slot, this.store.rows.get(shown[i]));
    });
    set(byId("pager"), "hidden", pages === 1);
    text(byId("page"), `Page ${this.page + 1} of ${pages}`);
    set(byId("prev"), "disabled", this.page === 0);
    set(byId("next"), "disabled", this.page === pages - 1);
    text(byId("count"), order.length === this.store.rows.size ? "" : `${order.length} of ${this.store.rows.size}`);
    text(byId("empty"), this.emptiness(order.length));
    this.drawTiles();
  }

  emptiness(count) {
    if (count) return "";
    if (this.store.rows.size) return "No workload matches the filter.";
    if (!this.store.worker) return "";
    return this.store.worker.state === "live"
      ? "No decision has been published yet. Workloads appear here with their first one: publish telemetry, or see `harmony doctor`."
      : "Reading what was decided recently …";
  }

  drawTiles() {
    const rows = [...this.store.rows.values()];
    const sum = (pick) => rows.reduce((total, row) => total + (pick(row) ?? 0), 0);
    const [workloads, ready, slo, changing, held, beside, time] = this.tiles;
    const fill = (tile, value, sub) => { text(tile.value, value); text(tile.sub, sub); };
    const act = rows.filter((row) => row.mode === "act").length;
    const beyond = this.store.worker?.not_shown ?? 0;
    const of = beyond ? ` of ${rows.length + beyond}` : "";
    fill(workloads, `${rows.length}${of}`, `${act} act, ${rows.length - act} observe${beyond ? "; sums are of these" : ""}`);
    fill(ready, String(sum((r) => r.ready)), `${sum((r) => r.wanted)} wanted, ${sum((r) => r.pending)} pending`);
    const told = rows.filter((row) => row.attainment !== null);
    const weight = (row) => row.load_rps || 1e-9;
    const total = told.reduce((t, row) => t + weight(row), 0);
    const below = told.filter((row) => row.attainment < row.objective).length;
    fill(slo, told.length ? attained(told.reduce((t, row) => t + row.attainment * weight(row), 0) / total) : "–",
      told.length ? `${below} of ${told.length} below objective` : "no SLO counters yet");
    const grows = rows.filter((row) => row.action === "up").length;
    const shrinks = rows.filter((row) => row.action === "down").length;
    fill(changing, String(grows + shrinks), `${grows} grow, ${shrinks} shrink`);
    const origin = this.store.origin;
    const silent = rows.filter((row) => row.reason === "silent" || row.reason === "freshness").length;
    const waiting = rows.filter((row) => row.reason === "warm_up" || row.reason === "warming_up").length;
    fill(held, String(silent + waiting), `${silent} without telemetry, ${waiting} warming up`);
    const observed = rows.filter((row) => row.mode === "observe" && row.held !== null);
    const theirs = observed.reduce((t, row) => t + row.held, 0);
    const ours = observed.reduce((t, row) => t + row.ours, 0);
    fill(beside, theirs ? share(ours / theirs - 1) : "–",
      theirs ? `would hold ${number(ours)} of ${number(theirs)} observed` : "nothing is only observed");
    fill(time, origin ? clock(origin) : "–", origin ? day(origin) : "no decision yet");
  }

  /** How the policies of a demo compare; nothing where no demo plays. */
  drawPolicies(policies = []) {
    set(byId("policies"), "hidden", policies.length === 0);
    const own = policies.find((line) => line.policy === "harmony");
    byId("policy-rows").replaceChildren(...policies.map((line) => {
      const n = (words) => el("td", { className: "n", textContent: words });
      const beside = line !== own && own?.gpu_hours && line.gpu_hours ? ` (${(line.gpu_hours / own.gpu_hours).toFixed(2)} ×)` : "";
      return el("tr", {}, el("th", { scope: "row", textContent: POLICIES[line.policy] ?? line.policy }),
        n(line.gpu_hours === null ? "–" : `${line.gpu_hours.toFixed(1)}${beside}`),
        n(line.cost === null ? "–" : line.cost.toFixed(0)),
        n(line.attainment === null ? "–" : attained(line.attainment)));
    }));
  }

  makeSlot() {
    const cell = (label, ...children) => {
      const td = el("td", { role: "cell" }, ...children);
      td.dataset.label = label;
      return td;
    };
    const slot = {
      name: el("a", { className: "name" }),
      mode: el("span", { className: "badge" }),
      lag: el("span", { className: "badge late" }),
      canvas: el("canvas", { role: "img" }),
      load: el("span", { className: "value" }),
      replicas: el("span", { className: "big" }),
      pending: el("span", { className: "sub line" }),
      slo: el("span", { className: "big" }),
      goal: el("span", { className: "sub line" }),
      risk: el("span", { className: "big" }),
      expected: el("span", { className: "sub line", title: "share of the requests expected to miss" }),
      mark: el("span", { className: "mark", "aria-hidden": "true" }),
      what: el("span"),
      said: el("span", { className: "said" }),
    };
    slot.node = el("tr", { role: "row" },
      cell("Workload", slot.name, slot.mode, " ", slot.lag),
      cell("Load", el("div", { className: "load" }, slot.canvas, slot.load)),
      cell("Replicas", slot.replicas, slot.pending),
      cell("Within SLO", slot.slo, slot.goal),
      cell("Miss risk", slot.risk, slot.expected),
      cell("Last decision", el("div", { className: "what" }, slot.mark, slot.what), slot.said));
    byId("rows").append(slot.node);
    return slot;
  }

  fill(slot, row) {
    const origin = this.store.origin;
    if (slot.row === row && slot.origin === origin && slot.theme === this.store.theme) return;
    const fresh = slot.row !== row || slot.theme !== this.store.theme;
    slot.origin = origin;
    const behind = late(row, origin);
    set(slot.lag, "hidden", behind <= 60000 && row.action !== "retired");
    text(slot.lag, row.action === "retired" ? "gone" : `${Math.round(behind / 1000)} s behind`);
    if (!fresh) return;
    slot.row = row;
    slot.theme = this.store.theme;
    text(slot.name, shorten(row.id, 200));
    set(slot.name, "title", shorten(row.id, 1000));
    slot.name.setAttribute("href", link(row));
    text(slot.mode, row.mode);
    set(slot.mode, "className", `badge ${row.mode === "act" ? "act" : ""}`);
    text(slot.load, number(row.load_rps));
    slot.canvas.setAttribute("aria-label", sparkWords(row));
    this.spark(slot.canvas, row);
    const differs = row.ready !== null && row.wanted !== null && row.ready !== row.wanted;
    text(slot.replicas, differs ? `${row.ready} → ${row.wanted}` : String(row.ready ?? row.wanted ?? "–"));
    text(slot.pending, row.pending ? `${row.pending} pending` : differs ? "ready → wanted" : "as wanted");
    const below = row.attainment !== null && row.attainment < row.objective;
    text(slot.slo, row.attainment === null ? "–" : `${attained(row.attainment)} ${below ? "✗" : "✓"}`);
    set(slot.slo, "className", `big ${row.attainment === null ? "" : below ? "bad" : "good"}`);
    text(slot.goal, `objective ${percent(row.objective)}`);
    const over = row.miss_share !== null && row.miss_share > 1 - row.objective;
    text(slot.risk, `${chance(row.p_miss)}${over ? " ✗" : ""}`);
    set(slot.risk, "className", `big ${over ? "bad" : ""}`);
    text(slot.expected, row.miss_share === null ? "" : `${chance(row.miss_share)} to miss`);
    text(slot.mark, MARKS[row.action] ?? "?");
    set(slot.mark, "className", `mark ${row.action === "up" || row.action === "down" ? row.action : ""}`);
    text(slot.what, row.headline);
    text(slot.said, together(row.because));
    set(slot.said, "title", row.because);
  }

  spark(canvas, row) {
    const width = Math.max(60, canvas.clientWidth);
    const height = 46;
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio)) { canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); }
    const c = canvas.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, height);
    const fan = row.fan;
    const ahead = fan ? fan.at[fan.at.length - 1] : 0;
    const past = width * 0.68;
    const x = (i) => (past * i) / (SPARK - 1);
    const fx = (i) => past + ((width - past - 1) * i) / Math.max(1, ahead);
    const top = 1.08 * Math.max(1e-9, ...row.spark.filter((v) => v !== null), ...(fan ? fan.hi.filter((v) => v !== null) : []));
    const y = (v) => height - 2 - ((height - 5) * v) / top;
    const now = row.spark[row.spark.length - 1];
    c.strokeStyle = colour("grid");
    c.beginPath(); c.moveTo(0, height - 1.5); c.lineTo(width, height - 1.5); c.stroke();
    if (fan) {
      c.fillStyle = colour("fan-mid");
      c.beginPath();
      if (now !== null) c.moveTo(past, y(now));
      fan.at.forEach((i, k) => c.lineTo(fx(i), y(fan.hi[k] ?? 0)));
      for (let k = fan.at.length - 1; k >= 0; k -= 1) c.lineTo(fx(fan.at[k]), y(fan.lo[k] ?? 0));
      c.closePath(); c.fill();
      c.strokeStyle = colour("fan"); c.lineWidth = 1.6;
      c.beginPath();
      if (now !== null) c.moveTo(past, y(now));
      fan.at.forEach((i, k) => c.lineTo(fx(i), y(fan.mid[k] ?? 0)));
      c.stroke();
    }
    c.strokeStyle = colour("load"); c.lineWidth = 1.5; c.lineJoin = "round";
    c.beginPath();
    let pen = false;
    const offset = SPARK - row.spark.length;
    row.spark.forEach((v, i) => {
      if (v === null) { pen = false; return; }
      if (pen) c.lineTo(x(i + offset), y(v)); else c.moveTo(x(i + offset), y(v));
      pen = true;
    });
    c.stroke();
  }
}

const share = (ratio) => `${ratio > 0 ? "+" : ratio < 0 ? "−" : ""}${Math.round(Math.abs(100 * ratio))} %`;

function sparkWords(row) {
  const known = row.spark.filter((v) => v !== null);
  const past = known.length ? `load between ${number(Math.min(...known))} and ${number(Math.max(...known))} requests/s` : "no load observed";
  if (!row.fan) return `${past}, no forecast`;
  const last = row.fan.at.length - 1;
  return `${past}; forecast at its end ${number(row.fan.mid[last])}, 90 % between ${number(row.fan.lo[last])} and ${number(row.fan.hi[last])}`;
}

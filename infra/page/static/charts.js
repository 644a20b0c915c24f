// The two charts of a workload on one time axis: load with what was and is forecast, and replicas.

import { colour, el, text } from "./dom.js";
import { clock, count, instant, marks, number } from "./format.js";

const utc = (ts) => uPlot.tzDate(new Date(ts * 1e3), "Etc/UTC");
const SYNC = "workload";
/** Seconds from mark to mark of the time axis. */
const TIMES = [1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/** The columns of an object, cut to the last `steps` entries. */
function lastSteps(columnsOf, steps) {
  return Object.fromEntries(Object.entries(columnsOf).map(([name, values]) => [name, Array.isArray(values) ? values.slice(-steps) : values]));
}

/** Columns for both charts: the history, then the slots that the forecast is about. */
function columns(view) {
  const { fan } = view;
  const h = lastSteps(view.history, view.steps);
  const made = view.made && lastSteps(view.made, view.steps);
  const last = h.ts_ms[h.ts_ms.length - 1];
  const ahead = fan ? fan.ts_ms.map((ts, i) => [ts, i]).filter(([ts]) => ts > last) : [];
  const x = [...h.ts_ms, ...ahead.map(([ts]) => ts)].map((ts) => ts / 1000);
  const nothing = (n) => new Array(n).fill(null);
  const past = (values) => [...values, ...nothing(ahead.length)];
  const load = past(h.load_rps);
  // The fan starts at the last load, so that the eye finds no gap.
  const now = h.load_rps[h.load_rps.length - 1];
  const future = (q) => [...nothing(h.ts_ms.length - 1), now, ...ahead.map(([, i]) => fan.quantiles[q][i])];
  const fans = fan ? [0, 1, 2, 3, 4].map(future) : [0, 1, 2, 3, 4].map(() => nothing(x.length));
  const bands = made ? [past(made.low), past(made.high)] : [nothing(x.length), nothing(x.length)];
  return {
    load: [x, ...bands, ...fans, past(h.capacity_rps), load],
    replicas: [x, past(h.ready), past(h.reactive), past(h.wanted)],
  };
}

function axes(size, more) {
  const common = { stroke: colour("soft"), grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return [
    { ...common, size: 30, incrs: TIMES, values: (_u, ticks, _i, _space, step) => ticks.map((ts) => (step < 60 ? clock(ts * 1000) : clock(ts * 1000).slice(0, 5))), space: 60 },
    { ...common, size, values: (_u, ticks, _i, _space, step) => marks(ticks, step), space: 34, ...more },
  ];
}

class Chart {
  constructor(kind, title, legend) {
    this.kind = kind;
    this.readout = el("div", { className: "readout" });
    this.box = el("div", { className: `plot ${kind}-plot`, tabIndex: 0, role: "img" });
    this.box.addEventListener("keydown", (event) => this.move(event));
    this.box.addEventListener("blur", () => this.plot?.setCursor({ left: -10, top: -10 }));
    this.legend = legend;
    this.keys = el("ul", { className: "key" });
    this.node = el("section", { className: "card" },
      el("div", { className: "head" }, el("h2", { textContent: title }), this.keys), this.readout, this.box);
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.box);
  }

  drawLegend() {
    this.keys.replaceChildren(...this.legend.map(([name, style]) => {
      const swatch = el("span", { "aria-hidden": "true" });
      if (style.line) { swatch.style.borderBottom = `3px ${style.dash ?? "solid"} ${colour(style.line)}`; swatch.style.height = ".4rem"; swatch.style.verticalAlign = ".15rem"; }
      if (style.fill) swatch.style.background = colour(style.fill);
      return el("li", {}, swatch, name);
    }));
  }

  fit() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (this.plot && width && (this.plot.width !== width || this.plot.height !== height)) this.plot.setSize({ width, height });
  }

  /** Left and right go from slot to slot. */
  move(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (!step || !this.plot) return;
    event.preventDefault();
    const [x] = this.plot.data;
    const from = this.plot.cursor.idx ?? x.length - 1;
    const to = Math.max(0, Math.min(x.length - 1, from + step));
    this.plot.setCursor({ left: this.plot.valToPos(x[to], "x"), top: 20 });
  }

  show(view, words) {
    this.view = view;
    const data = columns(view)[this.kind];
    const theme = colour("bg");
    this.box.setAttribute("aria-label", words);
    if (this.plot && this.theme === theme) {
      this.plot.setData(data);
    } else {
      this.plot?.destroy();
      this.theme = theme;
      this.drawLegend();
      const { clientWidth: width, clientHeight: height } = this.box;
      this.plot = new uPlot(this.options(width || 600, height || 220), data, this.box);
      this.plot.root.setAttribute("aria-hidden", "true");
    }
    this.tell(this.plot.cursor.idx);
  }

  options(width, height) {
    return {
      width, height, tzDate: utc, legend: { show: false }, padding: [8, 22, 0, 0],
      cursor: { drag: { x: false, y: false }, y: false, sync: { key: SYNC }, points: { size: 6 } },
      scales: { x: { time: true }, y: { range: (_u, _min, max) => [0, Math.max(1e-9, max) * 1.06] } },
      axes: axes(44, this.yAxis()),
      ...this.series(),
      hooks: { setCursor: [(u) => this.tell(u.cursor.idx)], drawClear: [(u) => this.drawNow(u)] },
    };
  }

  /** A line where the past ends. */
  drawNow(u) {
    const left = Math.round(u.valToPos(this.view.decision.origin_ts_ms / 1000, "x", true)) + 0.5;
    const c = u.ctx;
    c.save();
    c.strokeStyle = colour("other");
    c.setLineDash([4, 4]);
    c.beginPath();
    c.moveTo(left, u.bbox.top);
    c.lineTo(left, u.bbox.top + u.bbox.height);
    c.stroke();
    c.restore();
  }

  tell(index) {
    const data = this.plot?.data;
    if (!data) return;
    const at = index ?? this.pastSteps() - 1;
    text(this.readout, `${instant(data[0][at] * 1000).slice(0, -4)}   ${this.words(data, at)}`);
  }

  pastSteps() {
    return Math.min(this.view.steps, this.view.history.ts_ms.length);
  }

  yAxis() {
    return {};
  }

  destroy() {
    this.observer.disconnect();
    this.plot?.destroy();
  }
}

const line = (name, width, more = {}) => ({ stroke: colour(name), width, points: { show: false }, ...more });
const hidden = () => ({ stroke: "transparent", width: 0, points: { show: false } });

export class LoadChart extends Chart {
  constructor() {
    super("load", "Load and its forecast, requests/s", [
      ["observed", { line: "load" }],
      ["forecast: median", { line: "fan" }],
      ["50 %", { fill: "fan-mid" }],
      ["90 %", { fill: "fan-wide" }],
      ["90 % as forecast a lead time before", { fill: "made" }],
      ["what the ready replicas carry", { line: "capacity", dash: "dashed" }],
    ]);
  }

  series() {
    return {
      series: [{}, hidden(), hidden(), hidden(), hidden(), line("fan", 2), hidden(), hidden(),
        line("capacity", 1.5, { dash: [6, 4], paths: uPlot.paths.stepped({ align: 1 }) }), line("load", 1.8)],
      bands: [
        { series: [2, 1], fill: colour("made") },
        { series: [7, 3], fill: colour("fan-wide") },
        { series: [6, 4], fill: colour("fan-mid") },
      ],
    };
  }

  words(data, at) {
    if (at >= this.pastSteps()) return `forecast ${number(data[5][at])}, 50 % in ${number(data[4][at])}–${number(data[6][at])}, 90 % in ${number(data[3][at])}–${number(data[7][at])}`;
    const said = data[1][at] === null ? "" : `, was forecast in ${number(data[1][at])}–${number(data[2][at])}`;
    return `observed ${number(data[9][at])}${said}, ready replicas carry ${number(data[8][at])}`;
  }
}

export class ReplicaChart extends Chart {
  constructor() {
    super("replica", "Replicas", [
      ["ready", { fill: "ready-fill" }],
      ["wanted", { line: "wanted" }],
      ["a reactive scaler would say", { line: "other", dash: "dotted" }],
    ]);
    this.kind = "replicas";
  }

  yAxis() {
    return { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10000, 100000] };
  }

  series() {
    const stepped = { paths: uPlot.paths.stepped({ align: 1 }) };
    return { series: [{}, line("ready", 2, { fill: colour("ready-fill"), ...stepped }),
      line("other", 1.4, { dash: [2, 3], ...stepped }), line("wanted", 2, stepped)] };
  }

  words(data, at) {
    if (at >= this.pastSteps()) return "not decided yet";
    return `ready ${count(data[1][at])}, wanted ${count(data[3][at])}, reactive ${count(data[2][at])}`;
  }
}

// Puts the page together: the store of rows, the live stream, the two views, the theme.

import { byId, el, set, text } from "./dom.js";
import { FleetView } from "./fleet.js";
import { span } from "./format.js";
import { HealthView, LettersView, SettingsView } from "./lists.js";
import { Stream } from "./stream.js";
import { WorkloadView } from "./workload.js";

const store = { rows: new Map(), origin: 0, worker: null, boot: null, theme: 0 };
const fleet = new FleetView(store);
const OTHERS = { "#/health": HealthView, "#/dead-letters": LettersView, "#/settings": SettingsView };
let workload = null;
let other = null;
let drawing = false;
let noticeTimer = null;

function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    if (!workload && !other) fleet.draw();
    performance.measure?.("harmony-draw", { start: draw.since ?? performance.now(), end: performance.now() });
    draw.since = null;
  });
}

function route() {
  const hash = location.hash;
  const address = hash.startsWith("#/w/") ? decode(hash.slice(4)) : null;
  if (workload && workload.address === address) return;
  const Other = OTHERS[hash];
  if (Other && other instanceof Other) return;
  if (hash && !hash.startsWith("#/")) return; // a place within this view
  const from = workload;
  workload?.destroy();
  other?.destroy();
  workload = other = null;
  set(byId("fleet"), "hidden", address !== null || Boolean(Other));
  set(byId("workload"), "hidden", address === null);
  set(byId("other"), "hidden", !Other);
  for (const node of document.querySelectorAll(".views a")) {
    const here = node.getAttribute("href") === (Other ? hash : address === null ? "#/" : "");
    if (here) node.setAttribute("aria-current", "page"); else node.removeAttribute("aria-current");
  }
  if (Other) {
    byId("workload").replaceChildren();
    other = new Other();
    other.refresh();
  } else if (address !== null) {
    workload = new WorkloadView(address, store);
    workload.refresh();
  } else {
    document.title = "HARMONY";
    byId("workload").replaceChildren();
    fleet.draw();
  }
  if (route.ran) {
    scrollTo({ top: 0 });
    byId(Other ? "other-title" : address === null ? "fleet-title" : "workload-title").focus({ preventScroll: true });
    if (from && address === null && !Other) fleet.slots.find((slot) => slot.row?.id === from.view?.id)?.name.focus();
  }
  route.ran = true;
}

function decode(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

function onFleet(message) {
  draw.since = performance.now();
  const restarted = store.boot !== null && store.boot !== message.boot;
  if (message.reset) store.rows.clear();
  store.boot = message.boot;
  store.origin = message.origin_ts_ms ?? store.origin;
  for (const row of message.rows) store.rows.set(row.key, row);
  for (const key of message.gone) store.rows.delete(key);
  onWorker(message.worker);
  if (restarted) tell("The worker was restarted; this page has caught up with it.", 6000);
  if (workload) {
    const shown = workload.view;
    if (!shown || restarted || message.reset || message.gone.includes(shown.key) || message.rows.some((row) => row.key === shown.key)) workload.refresh();
  }
  draw();
}

function onWorker(worker) {
  store.worker = worker;
  text(byId("letters"), worker.letters ? ` (${worker.letters})` : "");
  const states = { reading: "reading history", waiting: "waiting for Kafka", ended: "reader ended" };
  text(byId("where"), `fleet ${worker.fleet} · worker ${worker.instance} · ${worker.role === "all" ? "all roles" : `role ${worker.role}`}`);
  if (byId("link").dataset.state === "live") text(byId("link-text"), states[worker.state] ?? (worker.ready ? "live" : "live, not ready"));
  const parts = [`HARMONY ${worker.version}. `];
  parts.push(worker.role === "all" ? "This worker ingests, forecasts and decides." : `This worker's role: ${worker.role}. What is shown comes from the output topics, whoever decided it.`);
  if (worker.problem) parts.push(` Not all is well here: ${worker.problem}.`);
  if (worker.note) parts.push(` ${worker.note}.`);
  if (worker.not_shown) parts.push(` ${worker.not_shown} more workloads found no room on this page.`);
  if (worker.unreadable) parts.push(` ${worker.unreadable} records could not be read.`);
  const links = worker.peers.map((peer) => el("a", { href: safe(peer.url), textContent: `${peer.instance} (${peer.role})` }));
  links.forEach((node, n) => parts.push(n ? ", " : " Other workers here: ", node));
  if (links.length) parts.push(".");
  parts.push(" Read-only: pin, pause and change modes with the command line. ", el("a", { href: "metrics", textContent: "Metrics" }), ", ", el("a", { href: "readyz", textContent: "readiness" }), ", ", el("a", { href: "api/fleet", textContent: "JSON" }), ".");
  const said = JSON.stringify(worker);
  if (onWorker.said !== said) {
    byId("foot").replaceChildren(...parts);
    fleet.drawPolicies(worker.policies);
  }
  onWorker.said = said;
  if (!workload) text(byId("empty"), fleet.emptiness(fleet.order.length));
}

const safe = (url) => (/^https?:\/\//.test(url) ? url : "#/");

function onState(state) {
  byId("link").dataset.state = state;
  clearInterval(onState.timer);
  if (state === "lost") {
    const since = performance.now();
    const say = () => {
      text(byId("link-text"), "reconnecting …");
      tell(`No connection to the worker. Reconnecting … What you see is ${span(Math.round((performance.now() - since) / 1000) || 1)} old or more.`);
    };
    say();
    onState.timer = setInterval(say, 5000);
  } else {
    text(byId("link-text"), "live");
    if (store.boot) tell("");
  }
}

function tell(words, forMs = 0) {
  clearTimeout(noticeTimer);
  text(byId("notice"), words);
  if (forMs) noticeTimer = setTimeout(() => text(byId("notice"), ""), forMs);
}

const THEMES = ["auto", "light", "dark"];

function theme(next) {
  const root = document.documentElement;
  const now = root.dataset.theme ?? "auto";
  const chosen = next ? THEMES[(THEMES.indexOf(now) + 1) % 3] : now;
  if (chosen === "auto") delete root.dataset.theme; else root.dataset.theme = chosen;
  try { if (next) localStorage.setItem("harmony-theme", chosen); } catch { /* it holds until the page is left */ }
  text(byId("theme"), `Theme: ${chosen}`);
  store.theme += 1;
  if (workload?.view) workload.show(workload.view);
  draw();
}

byId("theme").addEventListener("click", () => theme(true));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(false));
addEventListener("resize", () => { store.theme += 1; draw(); });
addEventListener("hashchange", route);
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && (workload || other) && !event.defaultPrevented) location.hash = "#/";
});
theme(false);
route();
new Stream({ fleet: onFleet, beat: (message) => onWorker(message.worker), state: onState });

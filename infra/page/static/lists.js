// Two plain views: what was refused and why, and the settings in force. Read anew every few seconds while they are open.

import { byId, el, set, text } from "./dom.js";
import { count, instant, number } from "./format.js";

const EVERY_MS = 5000;

class ListView {
  constructor(title, lead, path) {
    this.path = path;
    this.lead = el("p", { className: "lead", textContent: lead });
    this.node = byId("other");
    this.body = el("tbody", { role: "rowgroup" });
    this.node.replaceChildren(el("h1", { id: "other-title", tabIndex: -1, textContent: title }), this.lead);
    document.title = `${title} · HARMONY`;
  }

  destroy() {
    this.destroyed = true;
    clearTimeout(this.timer);
    this.node.replaceChildren();
  }

  async refresh() {
    clearTimeout(this.timer);
    try {
      const answer = await fetch(this.path, { headers: { Accept: "application/json" } });
      if (this.destroyed) return;
      if (answer.ok) this.show(await answer.json());
      else text(this.lead, `The worker does not tell (${answer.status}).`);
    } catch { /* the stream says that the connection is lost */ }
    if (!this.destroyed) this.timer = setTimeout(() => this.refresh(), EVERY_MS);
  }

  table(caption, heads, kind = "") {
    this.frame = el("div", { className: "scroll card", tabIndex: 0, role: "group", "aria-label": caption, hidden: true },
      // On a phone rows become cards, which would take the roles that a table gives by itself.
      el("table", { className: `plain list ${kind}`, role: "table" }, el("caption", { className: "hidden", textContent: caption }),
        el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...heads.map((name) => el("th", { scope: "col", role: "columnheader", textContent: name })))), this.body));
    return this.frame;
  }

  rows(list, cells) {
    set(this.frame, "hidden", list.length === 0);
    this.body.replaceChildren(...list.map((item) => el("tr", { role: "row" }, ...cells(item).map((value) => el("td", { role: "cell", textContent: value })))));
  }
}

export class LettersView extends ListView {
  constructor() {
    super("Dead letters", "Reading …", "api/dead-letters");
    this.reasons = el("p");
    this.node.append(this.reasons, this.table("Dead letters, newest first", ["Refused at", "Reason", "Detail", "Key", "Bytes", "From"], "letters"));
  }

  show(view) {
    const n = view.letters.length;
    text(this.lead, view.note || (n
      ? `The newest ${count(n)}${n === view.most ? " and no more" : ""}. harmony dlq list shows their bytes, harmony dlq replay sends them again.`
      : "Nothing was refused lately."));
    text(this.reasons, Object.entries(view.reasons).map(([reason, times]) => `${reason}: ${count(times)}`).join(" · "));
    this.rows(view.letters, (x) => [
      instant(x.stamp_ms), x.reason, x.detail, x.key ?? "–", count(x.bytes), `${x.topic}/${x.partition ?? "?"} @ ${x.offset ?? "?"}`,
    ]);
  }
}

export class HealthView extends ListView {
  constructor() {
    super("Health of this worker", "Reading …", "api/health");
    this.checks = el("ul", { className: "checks" });
    this.node.append(this.checks, this.table("Figures since the worker's start", ["Figure", "Of", "Value", "What it says"], "figures"));
  }

  show(view) {
    const wrong = view.checks.filter((check) => !check.ok).length;
    text(this.lead, `${view.live ? "Live" : "Not live"}, ${view.ready ? "ready" : "not ready"}; ${wrong ? `${count(wrong)} of ${count(view.checks.length)} checks are not as they should be` : "all checks are as they should be"}.`);
    this.checks.replaceChildren(...view.checks.map((check) => el("li", { className: check.ok ? "good" : "bad", textContent: `${check.ok ? "✓" : "✗"} ${check.name}${check.detail ? `: ${check.detail}` : ""}` })));
    this.rows(view.figures, (row) => [row.name, row.of, row.value === null ? "–" : `${number(row.value)} ${row.unit}`.trim(), row.help]);
  }
}

export class SettingsView extends ListView {
  constructor() {
    super("Settings in force", "Reading …", "api/settings");
    this.all = el("input", { type: "checkbox" });
    this.all.addEventListener("change", () => this.view && this.show(this.view));
    this.node.append(el("p", {}, el("label", {}, this.all, " Show defaults too")), this.table("Settings", ["Key", "Value", "Set by"]));
  }

  show(view) {
    this.view = view;
    const changed = view.settings.filter((row) => row.changed).length;
    text(this.lead, `Of this worker: ${count(changed)} of ${count(view.settings.length)} keys differ from their defaults. Policy ${view.policy}. Secrets are not shown.`);
    this.rows(view.settings.filter((row) => this.all.checked || row.changed), (row) => [row.key, row.value, row.changed ? "you" : "default"]);
  }
}

// The live connection: rows as they change, a word when it is lost, and a new start where it left off.

const SILENT_MS = 16000;

export class Stream {
  /** `on` = { fleet(message), beat(message), state("wait" | "live" | "lost") } */
  constructor(on) {
    this.on = on;
    this.last = "";
    this.heard = performance.now();
    this.state = "wait";
    this.pause = 1000;
    this.open();
    setInterval(() => this.check(), 1000);
    // A laptop that wakes up, a phone that comes back: do not wait for the time limit.
    addEventListener("online", () => this.reopen());
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.check(); });
  }

  open() {
    const source = new EventSource(`api/events${this.last ? `?last=${encodeURIComponent(this.last)}` : ""}`);
    this.source = source;
    source.addEventListener("fleet", (event) => {
      if (event.lastEventId) this.last = event.lastEventId;
      this.alive();
      this.on.fleet(JSON.parse(event.data));
    });
    source.addEventListener("beat", (event) => {
      this.alive();
      this.on.beat(JSON.parse(event.data));
    });
    source.addEventListener("error", () => {
      if (source !== this.source) return;
      this.tell("lost");
      if (source.readyState === EventSource.CLOSED) this.later();
    });
  }

  alive() {
    this.heard = performance.now();
    this.pause = 1000;
    this.tell("live");
  }

  check() {
    if (performance.now() - this.heard > SILENT_MS && this.source.readyState !== EventSource.CLOSED) {
      this.tell("lost");
      this.heard = performance.now();
      this.reopen();
    }
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.reopen(), this.pause);
    this.pause = Math.min(8000, this.pause * 1.6);
  }

  reopen() {
    this.source.close();
    this.open();
  }

  tell(state) {
    if (state === this.state) return;
    this.state = state;
    this.on.state(state);
  }
}

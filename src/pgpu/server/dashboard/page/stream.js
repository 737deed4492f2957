// The connection to the server. As a shared worker it holds the one stream of all tabs of a browser, which may have only six
// connections to a host, and the state, so that a new tab gets it at once. While no tab is visible the stream is closed.
// Where there are no shared workers, the page runs the same class itself.

import { duration } from "./format.js";
import { State } from "./state.js";

const RETRY_MS = 1500;
const ALIVE_MS = 5000; // the longest time in which a server sends nothing; ALIVE_SECONDS of feed.py
const OLD_SECONDS = 30; // a little more than the longest pause of the server between two readings

export class Stream {
  constructor(publish) {
    this.publish = publish;
    this.state = new State();
    this.status = "connecting";
    this.isWanted = false;
    this.source = null;
    this.timer = 0;
    this.watchdog = 0;
  }

  setWanted(isWanted) {
    this.isWanted = isWanted;
    clearTimeout(this.timer);
    if (!isWanted) {
      clearTimeout(this.watchdog);
      this.source?.close();
      this.source = null;
      this.state.clear();
    } else if (this.source === null) {
      this.open();
    }
  }

  open() {
    const source = new EventSource(new URL("../events", import.meta.url));
    this.source = source;
    this.watch();
    const take = (kind) => (event) => {
      const changes = { kind, ...JSON.parse(event.data) };
      this.watch();
      this.state.apply(changes);
      this.publish(changes);
      this.note("live");
    };
    source.onmessage = take("changes");
    source.addEventListener("all", take("all"));
    source.addEventListener("age", ({ data }) => {
      this.watch();
      const { seconds } = JSON.parse(data);
      this.note(seconds !== null && seconds < OLD_SECONDS ? "live" : seconds === null ? "waiting for data" : `data of ${duration(seconds)} ago`);
    });
    source.onerror = () => {
      this.note("reconnecting");
      if (source.readyState !== EventSource.CLOSED || source !== this.source) return; // the browser connects again
      this.source = null;
      this.timer = setTimeout(() => this.retry(), RETRY_MS);
    };
  }

  // A connection on which nothing came twice is dead, whatever the browser knows of it.
  watch() {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => {
      this.note("reconnecting");
      this.source?.close();
      this.source = null;
      this.retry();
    }, 2.2 * ALIVE_MS);
  }

  // The server answered with an error, or not at all: the browser may have to sign in again.
  async retry() {
    try {
      const session = await (await fetch(new URL("../session", import.meta.url), { signal: AbortSignal.timeout(ALIVE_MS) })).json();
      if (session.user === null) return this.note("signed out");
    } catch {
      // it is not back yet
    }
    if (this.isWanted && this.source === null) this.open();
  }

  note(status) {
    if (status === this.status && status !== "signed out") return; // a tab that was hidden then has not got it
    this.status = status;
    this.publish({ kind: "status", status });
  }
}

if (typeof SharedWorkerGlobalScope !== "undefined" && self instanceof SharedWorkerGlobalScope) {
  const visible = new Map(); // whether its tab is visible, by port
  const stream = new Stream((message) => visible.forEach((isVisible, port) => isVisible && port.postMessage(message)));
  self.onconnect = ({ ports: [port] }) => {
    port.onmessage = ({ data }) => {
      if (data === "signed out") {
        stream.setWanted(false);
        for (const each of visible.keys()) each.postMessage({ kind: "status", status: data }); // hidden tabs as well
        return;
      }
      if (data === "bye") visible.delete(port);
      else visible.set(port, data === "visible");
      const isWanted = [...visible.values()].includes(true);
      if (data === "visible" && stream.source !== null && stream.state.head.problem !== undefined) {
        port.postMessage(stream.state.everything());
        port.postMessage({ kind: "status", status: stream.status });
      }
      stream.setWanted(isWanted);
    };
  };
}

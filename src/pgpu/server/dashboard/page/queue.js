// The jobs that wait, in the order of admission, each with its reason and, on a line of time from now on, its expected start.

import { duration, element, gib, setAttribute, setText, svg } from "./format.js";
import { JOB, OWN } from "./state.js";

const MOST = 6;

// As `start_text` of the command line: a time that rests on earlier runs, else its bounds.
export function startText(expected, ...bounds) {
  if (expected !== null) return expected < 1 ? "starts now" : `about ${duration(expected)}`;
  const [first, last] = bounds.map((bound) => (bound === null || bound < 1 ? null : bound)); // one that has passed says nothing
  if (!first) return last ? `within ${duration(last)}` : "start unknown";
  return last ? `${duration(first)} to ${duration(last)}` : `${duration(first)} or later`;
}

export class QueueList {
  constructor(list, note) {
    this.list = list;
    this.note = note;
    this.items = [];
    this.shown = [];
  }

  // Sorts the jobs that wait if any job changed, and draws those in sight.
  update(state, isChanged) {
    if (isChanged) this.arrange(state);
    const now = Date.now() / 1000, { shown } = this;
    const span = Math.max(60, ...shown.map(({ own: row }) => (row[OWN.expected] ?? row[OWN.by] ?? row[OWN.notBefore] ?? now) - now)) * 1.1;
    shown.forEach(({ job, own: row }, at) => {
      const item = this.items[at] ?? this.make(at);
      const [expected, first, last] = [OWN.expected, OWN.notBefore, OWN.by].map((column) => (row[column] === null ? null : Math.max(0, row[column] - now)));
      setText(item.name, row[OWN.name] || row[OWN.id]);
      setText(item.wants, `${gib(job[JOB.memory])} GiB${job[JOB.count] > 1 ? ` × ${job[JOB.count]}` : ""} · ${row[OWN.user]} · waits ${duration(now - row[OWN.created])}`);
      setText(item.when, startText(expected, first, last));
      setText(item.why, row[OWN.rule] ? `${row[OWN.rule]}: ${row[OWN.reason]}` : row[OWN.reason]);
      const place = (seconds) => `${Math.min(100, (100 * seconds) / span).toFixed(1)}%`;
      const surely = expected ?? first, start = expected ?? last; // it waits until, and has started then
      setAttribute(item.wait, "width", surely === null ? "100%" : place(surely));
      setAttribute(item.wait, "class", surely === null ? "unknown" : "known");
      setAttribute(item.start, "cx", place(start ?? 0));
      setAttribute(item.start, "visibility", start === null ? "hidden" : "visible");
    });
  }

  arrange(state) {
    const waiting = [...state.jobs.values()].filter((job) => job[JOB.state] === "waiting");
    const own = waiting.map((job) => ({ job, own: state.own.get(job[0]) })).filter((row) => row.own);
    own.sort((one, other) => (one.own[OWN.position] ?? 1e9) - (other.own[OWN.position] ?? 1e9) || one.job[0] - other.job[0]);
    const others = waiting.length - own.length;
    setText(this.note, waiting.length === 0 ? "nothing waits" : others === 0 ? `${own.length} waiting` : `${own.length} of yours, ${others} of others`);
    const shown = (this.shown = own.slice(0, MOST));
    while (this.items.length > shown.length) this.items.pop().item.remove();
    this.list.hidden = shown.length === 0;
    setText(this.more, own.length > MOST ? `and ${own.length - MOST} more: filter the jobs by “waiting”` : "");
    this.more.hidden = own.length <= MOST;
  }

  get more() {
    this.moreItem ??= this.list.parentNode.appendChild(element("p", { className: "muted more" }));
    return this.moreItem;
  }

  make(at) {
    const made = {
      name: element("b"), wants: element("span", { className: "muted" }), when: element("span", { className: "when" }), why: element("span", { className: "muted why" }),
      wait: svg("rect", { y: 5, height: 4, rx: 2 }), start: svg("circle", { cy: 7, r: 5 }),
    };
    const line = svg("svg", { class: "line", "aria-hidden": "true" });
    line.append(svg("rect", { class: "track", y: 6, height: 2, width: "100%" }), made.wait, made.start);
    made.item = element("li", {}, element("div", { className: "what" }, made.name, made.wants), element("div", { className: "time" }, line, made.when), made.why);
    this.list.append(made.item);
    this.items[at] = made;
    return made;
  }
}

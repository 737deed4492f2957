// The rows of the server, as `dashboard/picture.py` makes them; used by the page and by the worker.

export const GPU = { uuid: 0, place: 1, name: 2, memory: 3, used: 4, granted: 5, capacity: 6, busy: 7, compute: 8, sharing: 9, slices: 10 };
export const JOB = { number: 0, state: 1, memory: 2, count: 3, gpus: 4 };
export const OWN = {
  number: 0, id: 1, name: 2, user: 3, command: 4, created: 5, started: 6, finished: 7,
  used: 8, peak: 9, share: 10, reservedShare: 11, position: 12, reason: 13, expected: 14, exitCode: 15, rule: 16, notBefore: 17, by: 18, isHeld: 19,
};

const TABLES = ["gpus", "jobs", "own"];

export class State {
  constructor() {
    this.clear();
  }

  clear() {
    this.gpus = new Map();
    this.jobs = new Map();
    this.own = new Map();
    this.head = {};
  }

  // Applies changes; those of kind "all" replace everything, so that no row of an earlier connection stays.
  apply(changes) {
    if (changes.kind === "all") this.clear();
    for (const table of TABLES) {
      for (const row of changes[table] ?? []) this[table].set(row[0], row);
      for (const key of changes[`gone_${table}`] ?? []) this[table].delete(key);
    }
    if (changes.head) this.head = changes.head;
  }

  everything() {
    return { kind: "all", gpus: [...this.gpus.values()], jobs: [...this.jobs.values()], own: [...this.own.values()], head: this.head };
  }
}

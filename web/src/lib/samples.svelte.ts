// What the pools do now: a sample a second while a page follows, and the last two minutes of each number that a line is drawn of.

import type { ClientSample, Sample } from './api';

/** Points of a line. */
export const KEPT = 120;

export const samples = $state({ last: null as Sample | null, frozen: false });
// Seconds for which a device has had requests and completed none, by its guid.
export const stalled = $state<Record<string, number>>({});
// Lines by a name of their own; not deeply reactive, since each sample renews them all.
let lines = $state.raw<Record<string, number[]>>({});

let source: EventSource | undefined;
let followers = 0;

function keep(sample: Sample): void {
  const next: Record<string, number[]> = {};
  const add = (name: string, value: number): void => {
    next[name] = [...(lines[name] ?? []), value].slice(-KEPT);
  };
  for (const pool of sample.pools) {
    for (const device of pool.devices) {
      const waits = device.leaf && device.active > 0 && device.read_ops + device.write_ops === 0;
      stalled[device.guid] = waits ? (stalled[device.guid] ?? 0) + sample.milliseconds / 1000 : 0;
      add(`${pool.name} ${device.guid} read`, device.read_bytes);
      add(`${pool.name} ${device.guid} write`, device.write_bytes);
      add(`${pool.name} ${device.guid} ops`, device.read_ops + device.write_ops);
    }
    for (const dataset of pool.datasets) add(`${dataset.name} bytes`, dataset.read_bytes + dataset.write_bytes);
    if (pool.cache) {
      add(`${pool.name} hits`, pool.cache.hits);
      add(`${pool.name} misses`, pool.cache.misses);
    }
    if (pool.log) add(`${pool.name} commits`, pool.log.commits);
    if (pool.txg) add(`${pool.name} dirty`, pool.txg.dirty_bytes);
  }
  lines = next;
}

/** The last values of a line. */
export const line = (name: string): number[] => lines[name] ?? [];

/** What one client does at one dataset. */
export const rates = {
  client: (client: string, dataset: string): ClientSample | undefined =>
    samples.last?.pools.flatMap((pool) => pool.clients).find((row) => row.client === client && row.dataset === dataset),
};

/** Follows the samples until the function that it returns is called: for an effect of a page. */
export function follow(): () => void {
  followers += 1;
  source ??= open();
  return () => {
    followers -= 1;
    if (followers > 0) return;
    source?.close();
    source = undefined;
    samples.last = null;
    lines = {};
  };
}

function open(): EventSource {
  const opened = new EventSource('/api/v1/live');
  opened.addEventListener('sample', (event) => {
    if (samples.frozen) return;
    const sample = JSON.parse(event.data) as Sample;
    keep(sample);
    samples.last = sample;
  });
  return opened;
}

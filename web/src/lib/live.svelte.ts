// One stream of events of the appliance. Pages that show something derived from the pools read `live.changes` and so ask anew when it counts up.

import type { Job } from './api';

export const live = $state({ changes: 0, connected: true, jobs: {} as Record<number, Job>, /** What does the last change in a shell. */ line: '' });

let source: EventSource | undefined;
let pending: number | undefined;

// Many events in a short time are one reason to look.
function changed(): void {
  pending ??= window.setTimeout(() => {
    pending = undefined;
    live.changes += 1;
  }, 200);
}

/** Follows the events of the appliance until stopped. The browser connects again by itself. */
export function follow(): void {
  stop();
  source = new EventSource('/api/v1/events');
  source.onopen = () => {
    if (!live.connected) changed();
    live.connected = true;
  };
  source.onerror = () => (live.connected = false);
  source.addEventListener('job', (event) => {
    const job = JSON.parse(event.data) as Job;
    live.jobs[job.id] = job;
    if (job.change) changed();
  });
  source.addEventListener('pool', changed);
  source.addEventListener('alert', changed);
  source.addEventListener('missed', changed);
}

export function stop(): void {
  source?.close();
  source = undefined;
  live.jobs = {};
}

// Jobs of replication as commands, and the words for what they do.

import type { Replication, ReplicationSettings } from './api';
import type { Command } from './commands';
import { t } from './i18n.svelte';

export const NEW_JOB: ReplicationSettings = {
  name: '', from: '', to: '', ssh: '', recursive: true, exclude: [], select: [], newest_only: false, take: false, continuous: false,
  every: '', raw: false, without_properties: false, set: [], not_in_force: [], bandwidth: '', window: '', keep: '',
};

const SWITCHES = [['recursive', 'recursive'], ['newest_only', 'newest-only'], ['take', 'take'], ['continuous', 'continuous'], ['raw', 'raw'], ['without_properties', 'no-properties']] as const;
const TEXTS = ['ssh', 'every', 'bandwidth', 'window', 'keep'] as const;
const LISTS = [['exclude', 'exclude'], ['select', 'select'], ['set', 'set'], ['not_in_force', 'not-in-force']] as const;
const NOTHING: ReplicationSettings = { ...NEW_JOB, recursive: false };

function differences(now: ReplicationSettings, before: ReplicationSettings): string[] {
  const words: string[] = [];
  for (const [key, option] of SWITCHES) if (now[key] !== before[key]) words.push(now[key] ? `--${option}` : `--off=${option}`);
  for (const key of TEXTS) if (now[key] !== before[key]) words.push(`--${key}=${now[key]}`);
  for (const [key, option] of LISTS) {
    if (now[key].join('\n') === before[key].join('\n')) continue;
    words.push(...(now[key].length === 0 ? [`--${option}=`] : now[key].map((entry) => `--${option}=${entry}`)));
  }
  return words;
}

/** The command that makes a job. */
export const createCommand = (job: ReplicationSettings, preview = false): Command => ({
  tool: 'sanbox',
  words: ['replication', 'create', ...(preview ? ['-n'] : []), job.name, `--from=${job.from}`, `--to=${job.to}`, ...differences(job, NOTHING)],
});

/** The command that gives a job other settings; none when they are the same. */
export function changeCommand(job: ReplicationSettings, before: ReplicationSettings): Command[] {
  const words = differences(job, before);
  return words.length > 0 ? [{ tool: 'sanbox', words: ['replication', 'change', job.name, ...words] }] : [];
}

/** What a job does, in words. */
export function stateOf(job: Replication): string {
  switch (job.state) {
    case 'running': return t('stateRunning');
    case 'paused': return t('statePaused');
    case 'failed-over': return t('stateFailedOver');
    case 'waiting': return t('stateWaiting');
    case 'complete': return t('stateComplete');
    case 'incomplete': return `${t('stateIncomplete')}: ${job.cause}`;
  }
}

export const toneOf = (job: Replication): string => ({ running: '', paused: 'dim', 'failed-over': 'warn', waiting: 'dim', complete: 'good', incomplete: 'bad' })[job.state];

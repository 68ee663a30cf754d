// Jobs of replication as commands, and the words for what they do.

import type { Dataset, Replication, ReplicationSettings } from './api';
import type { Action } from '../parts/CommandDialog.svelte';
import type { Command } from './commands';
import { t, type Word } from './i18n.svelte';

export const NEW_JOB: ReplicationSettings = {
  name: '', from: '', to: '', ssh: '', recursive: true, exclude: [], select: [], newest_only: false, take: false, continuous: false,
  every: '', raw: false, without_properties: false, set: [], not_in_force: [], bandwidth: '', compress: '', window: '', keep: '', test_schedule: '',
};

const SWITCHES = [['recursive', 'recursive'], ['newest_only', 'newest-only'], ['take', 'take'], ['continuous', 'continuous'], ['raw', 'raw'], ['without_properties', 'no-properties']] as const;
const TEXTS = [['ssh', 'ssh'], ['every', 'every'], ['bandwidth', 'bandwidth'], ['compress', 'compress'], ['window', 'window'], ['keep', 'keep'], ['test_schedule', 'test-schedule']] as const;
const LISTS = [['exclude', 'exclude'], ['select', 'select'], ['set', 'set'], ['not_in_force', 'not-in-force']] as const;
const NOTHING: ReplicationSettings = { ...NEW_JOB, recursive: false };

function differences(now: ReplicationSettings, before: ReplicationSettings): string[] {
  const words: string[] = [];
  for (const [key, option] of SWITCHES) if (now[key] !== before[key]) words.push(now[key] ? `--${option}` : `--off=${option}`);
  for (const [key, option] of TEXTS) if (now[key] !== before[key]) words.push(`--${option}=${now[key]}`);
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

type Step = { word: Word; text: Word; part: string[]; confirm?: boolean; owner?: boolean; preview?: boolean };

// What can be done with a job; `preview`: the command says with -n what would come of it.
const STEPS = {
  run: { word: 'runNow', text: 'runNowText', part: ['run'] },
  cancel: { word: 'cancel', text: 'cancelRunText', part: ['cancel'] },
  pause: { word: 'pause', text: 'pauseText', part: ['pause'] },
  resume: { word: 'resume', text: 'resumeText', part: ['resume'] },
  look: { word: 'lookBoth', text: 'lookBothText', part: ['show'] },
  reset: { word: 'resetJob', text: 'resetText', part: ['reset'] },
  test: { word: 'testCopy', text: 'testText', part: ['test'], preview: true },
  endTest: { word: 'endTest', text: 'endTestText', part: ['test', '--end'], preview: true },
  testRestore: { word: 'testRestore', text: 'testRestoreText', part: ['test-restore'], preview: true },
  adopt: { word: 'adopt', text: 'adoptText', part: ['adopt'], owner: true, preview: true },
  adoptRollback: { word: 'adoptRollback', text: 'adoptRollbackText', part: ['adopt', '--rollback'], owner: true, confirm: true, preview: true },
  failOver: { word: 'failOver', text: 'failOverText', part: ['failover'], owner: true, confirm: true, preview: true },
  failBack: { word: 'failBack', text: 'failBackText', part: ['failback'], owner: true, confirm: true, preview: true },
  failBackRollback: { word: 'failBackRollback', text: 'failBackRollbackText', part: ['failback', '--rollback'], owner: true, confirm: true, preview: true },
  remove: { word: 'removeJob', text: 'removeJobText', part: ['remove'], owner: true, confirm: true, preview: true },
} satisfies Record<string, Step>;

export type StepKey = keyof typeof STEPS;

/** The steps of these that a person may take. */
export const stepsOf = (keys: StepKey[], mayCreate: boolean): [StepKey, Step][] =>
  keys.map((key): [StepKey, Step] => [key, STEPS[key]]).filter(([, step]) => mayCreate || !step.owner);

/** The steps that turn a job round, or back. A copy that was put in use where it is turns a job round that does not know of it yet. */
export const turningSteps = (job: Replication): StepKey[] =>
  job.failed_over || job.cause === 'failed over' ? ['failBack', 'failBackRollback', 'test', 'endTest'] : ['failOver', 'test', 'endTest'];

/** What a step does, as the dialog shows it. */
export function actionOf(key: StepKey, job: string, ondone: () => void): Action {
  const { word, text, part: [part = '', ...options], confirm, preview }: Step = STEPS[key];
  const words = ['replication', part, job, ...options];
  return {
    title: `${t(word)}: ${job}`,
    about: `/api/v1/replications/${job}`,
    text: t(text),
    confirm: confirm ? job : undefined,
    preview: preview ? { tool: 'sanbox', words: [...words, '-n'] } : undefined,
    commands: () => [{ tool: 'sanbox', words }],
    ondone,
  };
}

/** A dataset of this appliance as its job knows it: a copy that waits or is in use, or a source or copy that is fenced. */
export type Part = { job: string; isCopy: boolean; isInUse: boolean; generation: number | null };

/** What a dataset is in a job; null: neither a copy nor fenced. Only what was set on the dataset itself counts. */
export function partOf(dataset: Dataset): Part | null {
  const own = (name: string): string => String(dataset.properties.find((known) => known.name === name && known.source === 'local')?.value ?? '');
  const [generation = '', fencing = ''] = own('org.sanbox:fenced').split(':');
  const [job = '', guid = ''] = own('org.sanbox:replication').split(':');
  // The clones of a test are of no source.
  const isCopy = job !== '' && !/^0*$/.test(guid);
  if (fencing) return { job: fencing, isCopy, isInUse: false, generation: Number(generation) };
  return isCopy ? { job, isCopy, isInUse: own('org.sanbox:identity') !== '', generation: null } : null;
}

/** Puts a copy in use, or a source that is fenced in use again. */
export function takeOver(dataset: string, part: Part): Action {
  const words = ['replication', 'takeover', dataset];
  const word = part.generation === null ? 'takeOver' : 'reclaim';
  return {
    title: `${t(word)}: ${dataset}`,
    about: dataset,
    text: t(`${word}Text`),
    confirm: dataset,
    preview: { tool: 'sanbox', words: [...words, '-n'] },
    commands: () => [{ tool: 'sanbox', words }],
  };
}

// Commands given from pages: each is the line that does the same in a shell, and becomes a job.

import { ask, get, type Job, type JobOutput } from './api';

/** The words of a command: `zpool`, `zfs` or `sanbox`, and what follows. */
export type Command = {
  tool: string;
  words: string[];
  /** It is given only while this dataset, or what this path of the API shows, is as it was when it was looked at. */
  about?: string;
  etag?: string;
  /** What it reads: a key. It is no part of the command line. */
  input?: string;
};

/** Gives a command and follows it to its end; `onoutput` gets what it says. Throws when it is refused. */
export async function runCommand(command: Command, onoutput: (text: string) => void): Promise<Job> {
  let job = await ask<Job>(
    'POST',
    '/commands',
    { tool: command.tool, arguments: command.words, ...(command.etag ? { about: command.about } : {}), ...(command.input === undefined ? {} : { input: command.input }) },
    command.etag ? { 'If-Match': command.etag } : {},
  );
  let offset = 0;
  do {
    const part: JobOutput = await get(`/jobs/${job.id}/output?wait=10&offset=${offset}`);
    if (part.text) onoutput(part.text);
    offset = part.next;
    job = part.job;
  } while (job.state === 'running');
  const rest: JobOutput = await get(`/jobs/${job.id}/output?offset=${offset}`);
  if (rest.text) onoutput(rest.text);
  return job;
}

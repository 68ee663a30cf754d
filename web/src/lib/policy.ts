// The line of words that a snapshot policy is: `hourly=24 daily=7 at=03:00`. The appliance reads and judges it; this only changes words in it.

/** The words of a line as name and value, as they are written; a value in double quotes may hold spaces. */
export function wordsOf(line: string): [string, string][] {
  return [...line.matchAll(/([^\s=]+)=("[^"]*"|\S*)/g)].map(([, name = '', value = '']) => [name, value]);
}

/** The value of a word; empty when the line does not have it. */
export const valueOf = (line: string, name: string): string => wordsOf(line).find(([known]) => known === name)?.[1] ?? '';

/** The hooks that a line names, each once. */
export const hooksOf = (line: string): string[] => [...new Set(valueOf(line, 'hook').replaceAll('"', '').split(','))].filter((name) => name !== '');

/** The line with another value for a word; without the word for an empty one. */
export function withValue(line: string, name: string, value: string): string {
  const words = wordsOf(line);
  const at = words.findIndex(([known]) => known === name);
  if (at >= 0) words.splice(at, 1, ...(value ? [[name, value] as [string, string]] : []));
  else if (value) words.push([name, value]);
  return words.map(([known, set]) => `${known}=${set}`).join(' ');
}

// Numbers and times as people read them.

const UNITS = ['B', 'K', 'M', 'G', 'T', 'P', 'E'];

/** Bytes in powers of 1024 with three digits, as `zfs list` prints them. */
export function bytes(value: number): string {
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  if (unit === 0) return `${value}B`;
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}${UNITS[unit]}`;
}

/** Seconds since 1970 in the time and form of the reader. */
export function time(seconds: number, language: string): string {
  // The reader's own form of the language, such as British English.
  const own = navigator.languages.find((known) => known.startsWith(language)) ?? language;
  return new Date(seconds * 1000).toLocaleString(own, { dateStyle: 'medium', timeStyle: 'medium' });
}

/** A command as it is typed in a shell. */
export function commandLine(tool: string, words: string[]): string {
  const quoted = words.map((word) => (/^[\w\-./:@#%=,+^]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`));
  return [tool, ...quoted].join(' ');
}

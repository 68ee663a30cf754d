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

/** The last part of a path: enough to tell devices apart beside their size. */
export const shortPath = (path: string): string => path.slice(path.lastIndexOf('/') + 1);

/** Seconds in the two largest units: `3 h 20 min`. The units are those of the language. */
export function duration(seconds: number, units: { s: string; min: string; h: string; d: string }): string {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} ${units.s}`;
  const minutes = Math.round(whole / 60);
  if (minutes < 60) return `${minutes} ${units.min}`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} ${units.h} ${minutes % 60} ${units.min}` : `${hours} ${units.h}`;
  return `${Math.floor(hours / 24)} ${units.d} ${hours % 24} ${units.h}`;
}

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

/** The reader's own form of the language, such as British English. */
const locale = (language: string): string => navigator.languages.find((known) => known.startsWith(language)) ?? language;

/** Seconds since 1970 in the time and form of the reader. */
export function time(seconds: number, language: string): string {
  return new Date(seconds * 1000).toLocaleString(locale(language), { dateStyle: 'medium', timeStyle: 'medium' });
}

/** The same beside the marks of an axis that are so many seconds apart: as much of it as tells them apart. */
export function timeMark(seconds: number, apart: number, language: string): string {
  const form: Intl.DateTimeFormatOptions =
    apart < 60 ? { timeStyle: 'medium' } : apart < 86_400 ? { hour: '2-digit', minute: '2-digit' } : { day: 'numeric', month: 'short' };
  return new Date(seconds * 1000).toLocaleString(locale(language), form);
}

/** Letters that are not seen, or that turn around what stands behind them (Unicode's bidirectional controls). */
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff]/;
const escaped = (letter: string): string => (letter === '\n' ? '\\n' : `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`);

/** A name as it is shown: with marks in place of letters that would make it look like another one. */
export const visible = (text: string): string => text.replaceAll(new RegExp(UNSEEN, 'g'), escaped);

/** A word as it is typed in a shell: in `$'...'` where it holds letters that are not seen. */
export function quoted(word: string): string {
  if (/^[\w\-./:@#%=,+^]+$/.test(word)) return word;
  if (UNSEEN.test(word)) return `$'${visible(word.replaceAll(/[\\']/g, '\\$&'))}'`;
  return `'${word.replaceAll("'", "'\\''")}'`;
}

/** A command as it is typed in a shell. */
export const commandLine = (tool: string, words: string[]): string => [tool, ...words.map(quoted)].join(' ');

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

/** Microseconds as people read them; nothing for none. */
export const micros = (us: number): string =>
  us === 0 ? '' : us < 1000 ? `${Math.round(us)} \u00b5s` : us < 1_000_000 ? `${(us / 1000).toFixed(us < 10_000 ? 1 : 0)} ms` : `${(us / 1_000_000).toFixed(1)} s`;

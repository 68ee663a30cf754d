// Lists of datasets as people choose from them.

import type { Dataset } from './api';

/** The names of the file systems: what new datasets can be made in. */
export const parentsOf = (datasets: Dataset[]): string[] => datasets.filter((dataset) => dataset.kind === 'filesystem').map((dataset) => dataset.name);

/** Names as choices, with one of them first. */
export const choicesOf = (names: string[], first: string): [string, string][] =>
  [...names].sort((a, b) => Number(b === first) - Number(a === first)).map((name) => [name, name]);

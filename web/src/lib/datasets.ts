// Lists of datasets as people choose from them.

import { get, segment, type Dataset, type DatasetList } from './api';

/** All datasets, page by page: the last of them can be chosen as well as the first. Throws ApiError. */
export async function allDatasets(): Promise<Dataset[]> {
  const all: Dataset[] = [];
  for (let next: string | null = ''; next !== null; ) {
    const page: DatasetList = await get(`/datasets?limit=1000${next && `&cursor=${segment(next)}`}`);
    all.push(...page.datasets);
    next = page.next;
  }
  return all;
}

/** The names of the file systems: what new datasets can be made in. */
export const parentsOf = (datasets: Dataset[]): string[] => datasets.filter((dataset) => dataset.kind === 'filesystem').map((dataset) => dataset.name);

/** Names as choices, with one of them first. */
export const choicesOf = (names: string[], first: string): [string, string][] =>
  [...names].sort((a, b) => Number(b === first) - Number(a === first)).map((name) => [name, name]);

// What can be done with a device of a pool.

import type { Disk } from './api';
import { bytes, shortPath } from './format';
import { t } from './i18n.svelte';
import type { Action } from '../parts/CommandDialog.svelte';

/** The actions that make sense for a device in this state; `free` are disks that may take its place. */
export function memberActions(pool: string, path: string, role: string, health: string, free: Disk[]): Action[] {
  if (role === 'cache' || role === 'spare') {
    return [{ title: t('remove'), commands: () => [{ tool: 'zpool', words: ['remove', pool, path] }] }];
  }
  const actions: Action[] = [];
  if (health === 'OFFLINE' || health === 'UNAVAIL' || health === 'REMOVED') {
    actions.push({ title: t('online2'), text: t('onlineText'), commands: () => [{ tool: 'zpool', words: ['online', pool, path] }] });
  } else {
    actions.push({ title: t('offline2'), text: t('offlineText'), commands: () => [{ tool: 'zpool', words: ['offline', pool, path] }] });
  }
  if (free.length > 0) {
    const choices = free.map((disk): [string, string] => [disk.path, `${shortPath(disk.path)} (${bytes(disk.size_bytes ?? 0)})`]);
    actions.push({
      title: t('replace'),
      text: t('replaceText'),
      fields: [{ label: t('replaceWith'), choices }],
      commands: ([by = '']) => [{ tool: 'zpool', words: ['replace', pool, path, by] }],
    });
  }
  return actions;
}

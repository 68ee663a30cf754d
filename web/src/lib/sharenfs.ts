// The property `sharenfs` in plain words: who may use a share, and what they may do.

import { t } from './i18n.svelte';

export type Access = { hosts: string[]; write: boolean; rootTrusted: boolean };

/** The value of `sharenfs` for a choice: `rw=@10.0.0.0/24:esx1,no_root_squash`. */
export function sharenfsOf({ hosts, write, rootTrusted }: Access): string {
  const list = hosts.map((host) => {
    if (!host.includes('/')) return host.includes(':') ? `[${host}]` : host;
    const [address = '', prefix = ''] = host.split('/');
    return address.includes(':') ? `@[${address}]/${prefix}` : `@${host}`;
  });
  const who = list.length > 0 ? `=${list.join(':')}` : '';
  return `${write ? 'rw' : 'ro'}${who}${rootTrusted ? ',no_root_squash' : ''}`;
}

/** What a value says, or none when it says more than this form knows. */
export function accessOf(options: string): Access | null {
  if (options === 'on') return { hosts: [], write: true, rootTrusted: false };
  const access: Access = { hosts: [], write: true, rootTrusted: false };
  let grants = 0;
  for (const option of options.split(',')) {
    const grant = /^(rw|ro)(?:=(.+))?$/.exec(option);
    if (grant) {
      grants += 1;
      access.write = grant[1] === 'rw';
      // Colons of IPv6 addresses stand in brackets.
      const hosts = grant[2]?.match(/(?:\[[^\]]*\]|[^:])+/g) ?? [];
      access.hosts = hosts.map((host) => host.replace(/^@/, '').replace(/\[([^\]]*)\]/, '$1'));
    } else if (option === 'no_root_squash') access.rootTrusted = true;
    else if (option !== 'root_squash' && option !== 'nosuid') return null;
  }
  return grants === 1 ? access : null;
}

/** A sentence for a value; the value itself when it says more than this form knows. */
export function plainWords(options: string): string {
  const access = accessOf(options);
  if (!access) return options;
  const who = access.hosts.length > 0 ? access.hosts.join(', ') : t('everybody');
  return `${who}: ${access.write ? t('readWrite') : t('readOnly')}. ${access.rootTrusted ? t('rootTrust') : t('rootSquash')}.`;
}

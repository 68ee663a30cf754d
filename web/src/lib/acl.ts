// Entries of access control lists: from and to the lines that `sanbox acl` shows and takes.

/** The owner, the owning group, all others; a user or a group by number; of POSIX lists, the bound of all that are named. */
export type Who = 'owner' | 'group' | 'everyone' | 'user' | 'groupNumber' | 'mask';
/** What people think in; `more` are the letters of rights that are in none of them whole. */
export type Entry = {
  who: Who;
  id: string;
  allow: boolean;
  read: boolean;
  change: boolean;
  run: boolean;
  control: boolean;
  more: string;
  /** NFSv4: its letters but `g`. */
  flags: string;
  /** POSIX: it is for new files. */
  forNew: boolean;
};

// nfs4_acl(5). Reading is to see the content and what is told about it; changing is content, names and attributes.
const NFS4 = { read: 'rtncy', change: 'waDdTN', run: 'x', control: 'Co' } as const;
const SPECIAL: Record<string, Who> = { 'OWNER@': 'owner', 'GROUP@': 'group', 'EVERYONE@': 'everyone' };
const POSIX: Record<string, [Who, Who | null]> = { u: ['owner', 'user'], g: ['group', 'groupNumber'], m: ['mask', null], o: ['everyone', null] };

/** Reads a line; none where it is of a kind that is only kept as it is. */
export function parse(line: string): Entry | null {
  const parts = line.split(':');
  if (parts.length === 4 && (parts[0] === 'A' || parts[0] === 'D')) {
    const [type = '', flags = '', who = '', rights = ''] = parts;
    const has = (letters: string): boolean => [...letters].every((letter) => rights.includes(letter));
    const [read, change, run, control] = [has(NFS4.read), has(NFS4.change), has(NFS4.run), has(NFS4.control)];
    const whole = (read ? NFS4.read : '') + (change ? NFS4.change : '') + (run ? NFS4.run : '') + (control ? NFS4.control : '');
    return {
      who: SPECIAL[who] ?? (flags.includes('g') ? 'groupNumber' : 'user'),
      id: who in SPECIAL ? '' : who,
      allow: type === 'A',
      read, change, run, control,
      more: [...rights].filter((letter) => !whole.includes(letter)).join(''),
      flags: flags.replace('g', ''),
      forNew: false,
    };
  }
  const forNew = parts[0] === 'd';
  const [letter = '', id = '', rights = ''] = forNew ? parts.slice(1) : parts;
  const known = POSIX[letter];
  const who = known && (id ? known[1] : known[0]);
  if (!who) return null;
  return {
    who, id, allow: true, forNew, flags: '', more: '', control: false,
    read: rights.includes('r'), change: rights.includes('w'), run: rights.includes('x'),
  };
}

/** The line of an entry. */
export function line(entry: Entry, nfs4: boolean): string {
  if (!nfs4) {
    const letter = { owner: 'u', user: 'u', group: 'g', groupNumber: 'g', mask: 'm', everyone: 'o' }[entry.who];
    const rights = (entry.read ? 'r' : '-') + (entry.change ? 'w' : '-') + (entry.run ? 'x' : '-');
    return `${entry.forNew ? 'd:' : ''}${letter}:${entry.id.trim()}:${rights}`;
  }
  const special = Object.entries(SPECIAL).find(([, who]) => who === entry.who)?.[0];
  const group = entry.who === 'groupNumber' || entry.who === 'group' ? 'g' : '';
  const rights = new Set([
    ...(entry.read ? NFS4.read : ''), ...(entry.change ? NFS4.change : ''), ...(entry.run ? NFS4.run : ''), ...(entry.control ? NFS4.control : ''), ...entry.more,
  ]);
  const inOrder = [...'rwaDdxtTnNcCoy'].filter((letter) => rights.has(letter)).join('');
  return `${entry.allow ? 'A' : 'D'}:${entry.flags}${group}:${special ?? entry.id.trim()}:${inOrder}`;
}

/** An entry that a person has not filled in yet. */
export const empty = (nfs4: boolean, isDirectory: boolean): Entry => ({
  who: 'user', id: '', allow: true, read: true, change: false, run: isDirectory, control: false, more: '',
  flags: nfs4 && isDirectory ? 'fd' : '', forNew: false,
});

// The line that does in a shell what a call of the API does, for changes that are no commands: a row for each call that changes something, which
// a test of the API compares with its description.

import { commandLine } from './format';

/** The parts of the path behind `/api/v1`, what was sent, and who is logged in. No line: there is none, for the reason beside it. */
type Line = (parts: string[], body: Record<string, unknown>, user: string) => string[] | null;

const text = (value: unknown): string => String(value ?? '');
const DAY = 86_400;

// The calls, in the order of the description.
const LINES: [string, string, Line][] = [
  // Who is logged in, and how: of a browser alone.
  ['POST', '/setup', () => null],
  ['POST', '/session', () => null],
  ['DELETE', '/session', () => null],
  ['POST', '/session/totp', () => null],
  ['PUT', '/session/totp', () => null],
  ['POST', '/session/totp/remove', (_, __, user) => ['user', 'reset-totp', user]],
  ['PUT', '/session/password', (_, __, user) => ['user', 'passwd', user]],
  ['POST', '/users', (_, body) => ['user', 'add', text(body.name), '--role', text(body.role)]],
  ['DELETE', '/users/{name}', ([, name]) => ['user', 'delete', text(name)]],
  ['PUT', '/users/{name}/role', ([, name], body) => ['user', 'role', text(name), text(body.role)]],
  ['PUT', '/users/{name}/password', ([, name]) => ['user', 'passwd', text(name)]],
  ['DELETE', '/users/{name}/totp', ([, name]) => ['user', 'reset-totp', text(name)]],
  ['POST', '/keys', (_, body, user) => [
    'user', 'key', 'create', user, '--role', text(body.role), '--name', text(body.name),
    ...(typeof body.expires_seconds === 'number' ? ['--expires', `${Math.round(body.expires_seconds / DAY)}d`] : []),
    ...(Array.isArray(body.datasets) ? body.datasets.flatMap((dataset) => ['--dataset', text(dataset)]) : []),
  ]],
  ['DELETE', '/keys/{id}', ([, id]) => ['user', 'key', 'revoke', text(id)]],
  ['POST', '/ssh-keys', (_, body, user) => ['ssh-keys', 'add', text(body.user ?? user), ...text(body.key).trim().split(/\s+/)]],
  ['DELETE', '/ssh-keys/{id}', ([, id]) => ['ssh-keys', 'remove', text(id)]],
  ['POST', '/groups', (_, body) => ['group', 'add', text(body.name), ...(body.role ? ['--role', text(body.role)] : [])]],
  ['DELETE', '/groups/{name}', ([, name]) => ['group', 'delete', text(name)]],
  ['PUT', '/groups/{name}/role', ([, name], body) => ['group', 'role', text(name), text(body.role ?? 'none')]],
  ['PUT', '/groups/{name}/members/{user}', ([, name, , user]) => ['group', 'join', text(name), text(user)]],
  ['DELETE', '/groups/{name}/members/{user}', ([, name, , user]) => ['group', 'leave', text(name), text(user)]],
  ['POST', '/alerts/{id}/acknowledge', ([, id]) => ['alert', 'acknowledge', text(id)]],
  ['POST', '/alerts/{id}/mute', ([, id], body) => ['alert', 'mute', text(id), ...(typeof body.seconds === 'number' ? ['--for', `${Math.round(body.seconds / 3600)}h`] : [])]],
  ['POST', '/alerts/{id}/reopen', ([, id]) => ['alert', 'reopen', text(id)]],
  ['POST', '/alerts/test', (_, body) => ['alert', 'test', ...(body.channel ? [text(body.channel)] : [])]],
  ['POST', '/peers/invitations', (_, body) => [
    'peer', 'invite', ...(body.name ? [text(body.name)] : []),
    ...(Array.isArray(body.datasets) ? body.datasets.flatMap((dataset) => ['--datasets', text(dataset)]) : []),
    ...(body.push ? ['--push'] : []), ...(body.pull ? ['--pull'] : []), ...(body.failover ? ['--failover'] : []),
  ]],
  ['POST', '/jobs/{id}/cancel', ([, id]) => ['job', 'cancel', text(id)]],
  // The console gives these as commands, whose lines it shows before.
  ['POST', '/commands', () => null],
  ['POST', '/jobs/{id}/retry', () => null],
  ['POST', '/peers', () => null],
  ['DELETE', '/peers/{name}', () => null],
  ['POST', '/replications', () => null],
  ['PUT', '/replications/{name}', () => null],
  ['DELETE', '/replications/{name}', () => null],
  ['POST', '/replications/{name}/{action}', () => null],
  ['POST', '/datasets/{name}/takeover', () => null],
  // It changes nothing.
  ['POST', '/pools/plan', () => null],
  ['PUT', '/files/content', () => null],
];

/** The line for a call; none where there is none. */
export function lineOf(method: string, path: string, body: unknown, user: string): string | null {
  const parts = (path.split('?')[0] ?? '').split('/').slice(1);
  const row = LINES.find(([known, pattern]) => {
    const wanted = pattern.split('/').slice(1);
    return known === method && wanted.length === parts.length && wanted.every((part, at) => part.startsWith('{') || part === parts[at]);
  });
  const sent = typeof body === 'object' && body !== null ? (body as Record<string, unknown>) : {};
  const words = row?.[2](parts.map(decodeURIComponent), sent, user) ?? null;
  return words === null ? null : commandLine('sanbox', words.map(text));
}

/** The line for an upload. */
export const uploadLine = (name: string, place: string): string => commandLine('sanbox', ['put', name, place]);

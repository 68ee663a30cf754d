// The REST API (/api/v1/openapi.json describes it): types of what is used here, and one function that asks.

import { lineOf, uploadLine } from './lines';
import { live } from './live.svelte';

export type Role = 'viewer' | 'operator' | 'owner';
export type Session = { name: string; role: Role; csrf: string; idle_seconds: number };
export type Io = { read_ops: number; write_ops: number; read_bytes: number; write_bytes: number };
export type Pool = {
  name: string;
  guid: string | null;
  health: string;
  note: string | null;
  numbers: {
    size_bytes: number;
    allocated_bytes: number;
    fragmentation_percent: number | null;
    data_errors: number;
    readonly: boolean;
    io: Io;
  } | null;
};
export type Vdev = {
  name: string;
  kind: string;
  guid: string;
  path: string | null;
  health: string;
  note: string | null;
  class: string | null;
  read_errors: number;
  write_errors: number;
  checksum_errors: number;
  slow_ios: number;
  size_bytes: number;
  allocated_bytes: number;
  resilvering: boolean;
  children: Vdev[];
};
export type Scan = {
  resilver: boolean;
  running: boolean;
  cancelled: boolean;
  paused: boolean;
  start_time: number;
  end_time: number;
  to_examine_bytes: number;
  issued_bytes: number;
  processed_bytes: number;
  errors: number;
};
export type PoolDetail = Pool & { scan: Scan | null; root: Vdev; caches: Vdev[]; spares: Vdev[] };
export type Property = { name: string; value: number | string; source: string; inherited_from: string | null };
export type Dataset = { name: string; kind: string; guid: string; properties: Property[]; etag?: string };
export type DatasetList = { datasets: Dataset[]; next: string | null; total: number; unanswered: string[] };
export type Snapshot = {
  name: string;
  guid: string;
  creation: number;
  create_txg: number;
  used_bytes: number;
  referenced_bytes: number;
};
export type SnapshotWhy = {
  snapshot: string;
  kept: boolean;
  why: string;
  leaves: number | null;
  immutable_until: number | null;
  holds: string[];
  clones: string[];
  bookmarks: string[];
};
export type SnapshotWhyList = { snapshots: SnapshotWhy[] };
export type SnapshotList = { snapshots: Snapshot[]; next: string | null; total: number };
export type Member = {
  pool: string;
  vdev: string;
  role: string;
  guid: string;
  health: string;
  note: string | null;
  read_errors: number;
  write_errors: number;
  checksum_errors: number;
  slow_ios: number;
  resilvering: boolean;
};
export type Disk = {
  path: string;
  kind: 'disk' | 'file' | null;
  size_bytes: number | null;
  model: string | null;
  serial: string | null;
  rotational: boolean | null;
  free: boolean;
  held: string | null;
  unanswered: boolean;
  member: Member | null;
};
export type DiskList = { disks: Disk[]; unanswered: string[] };
export type PlanRole = 'data' | 'special' | 'dedup' | 'log' | 'cache' | 'spare';
export type PlanLayout = 'single' | 'mirror' | 'raidz1' | 'raidz2' | 'raidz3' | 'draid1' | 'draid2' | 'draid3';
export type PlanVdev = { role: PlanRole; layout: PlanLayout; disks: string[]; data?: number; spares?: number };
export type PlannedVdev = { usable_bytes: number; may_fail: number; unused_bytes: number; ashift: number; rebuild_seconds: number };
export type Plan = {
  arguments: string[];
  forced: boolean;
  command: string;
  size_bytes: number;
  usable_bytes: number;
  slop_bytes: number;
  raw_bytes: number;
  vdevs: PlannedVdev[];
  warnings: { code: string; vdev: number | null }[];
};
export type Share = {
  dataset: string;
  path: string;
  options: string;
  readonly: boolean;
  error: string | null;
  clients: { address: string; requests: number }[];
};
export type ShareList = { port: number; versions: number[]; shares: Share[] };
export type Target = {
  name: string;
  alias: string;
  initiators: string[];
  chap_user: string | null;
  mutual_user: string | null;
  portals: string[];
  luns: { lun: number; volume: string; size_bytes: number; seen_by: string | null }[];
};
export type TargetList = {
  port: number;
  targets: Target[];
  volumes: { name: string; size_bytes: number; used_bytes: number; targets: string[] }[];
  initiator_groups: Record<string, string[]>;
  sessions: { target: string; initiator: string; addresses: string[] }[];
  unanswered: string[];
};
export type DeviceSample = {
  name: string; guid: string; depth: number; role: string; leaf: boolean; health: string;
  read_ops: number; write_ops: number; read_bytes: number; write_bytes: number;
  read_mean_us: number; read_99_us: number; write_mean_us: number; write_99_us: number;
  pending: number; active: number; busy: number;
};
export type DatasetSample = { name: string; reads: number; writes: number; read_bytes: number; write_bytes: number; commits: number };
export type ClientSample = { client: string; dataset: string; requests: number; waited: number; wait_mean_us: number; phase: string | null };
export type CacheSample = {
  bytes: number; limit_bytes: number; limit_set_bytes: number; overhead_bytes: number; uncompressed_bytes: number; compressed_bytes: number;
  list_bytes: number[]; ghost_bytes: number[]; hits: number; misses: number; ghost_hits: number; evicted_bytes: number;
  data_percent: number | null; metadata_percent: number | null; prefetch_percent: number | null;
  what_if: [number, number][];
  l2: { allocated_bytes: number; index_bytes: number; hits: number; misses: number; read_bytes: number; write_bytes: number; errors: number } | null;
};
export type PoolSample = {
  name: string;
  answers: boolean;
  devices: DeviceSample[];
  datasets: DatasetSample[];
  clients: ClientSample[];
  cache: CacheSample | null;
  log: { commits: number; batches: number; normal_bytes: number; separate_bytes: number; fallbacks: number } | null;
  txg: { open: number; synced: number; dirty_bytes: number; dirty_bytes_max: number; transactions: number; delayed: number; throttled: number } | null;
};
export type Sample = { time: number; milliseconds: number; pools: PoolSample[] };
export type File = {
  name: string;
  segment: string;
  kind: 'file' | 'directory' | 'symlink' | 'special';
  size_bytes: number;
  modified: number;
  mode: number;
  uid: number;
  gid: number;
  target: string | null;
};
export type FileAccess = { is_directory: boolean; mode: number; uid: number; gid: number; acltype: 'nfsv4' | 'posix' | 'off'; entries: string[] };
export type AccessReport = {
  user: string;
  uid: number;
  gids: number[];
  path: string;
  answers: { right: 'read' | 'write' | 'execute' | 'delete'; allowed: boolean; in_mount: boolean; because: string }[];
  shares: string[];
};
export type FileList = { files: File[]; next: number | null };
export type User = { name: string; role: Role; created: number; password: boolean; second_factor: boolean; directory: string | null };
export type Group = { name: string; number: number; role: Role | null; members: string[]; created: number };
export type SshKey = { id: number; user: string; kind: string; fingerprint: string; comment: string; created: number };
export type ApiKey = { id: number; user: string; name: string; role: Role; datasets: string[]; created: number; expires: number | null; used: number | null };
export type AuditEntry = { id: number; time: number; user: string; origin: string; event: string; count: number };
export type Severity = 'info' | 'warning' | 'critical';
export type Alert = {
  id: number;
  key: string;
  severity: Severity;
  subject: string;
  fact: string;
  effect: string;
  next_step: string;
  state: 'open' | 'acknowledged' | 'muted' | 'cleared';
  by: string | null;
  muted_until: number | null;
  opened: number;
  seen: number;
  cleared: number | null;
  etag: string;
};
export type Check = { name: string; about: string; on: boolean; interval: number; ran: number | null; took_ms: number; found: number; error: string | null };
export type CheckRuns = { from: number; to: number; runs: number; found: number; error: string | null };
export type Report = { title: string; text: string; picture: string };
export type TrashEntry = { dataset: string; from: string; by: string; until: number | null; used_bytes: number };
export type TrashList = { entries: TrashEntry[]; unanswered: string[] };
export type Channel = { name: string; sent: number; last_sent: number | null; error: string | null; waiting: number; dropped: number };
export type HistoryBy = 'phase' | 'client' | 'dataset' | 'protocol' | 'pool' | 'vdev' | 'disk';
export type Counts = { requests: number; waited: number; wait_ns: number; read_bytes: number; written_bytes: number; p50_us: number; p99_us: number };
export type HistorySeries = { key: string; total: Counts; latency: number[]; points: Counts[] };
export type History = { times: number[]; seconds: number[]; series: HistorySeries[]; unsaved: string | null };
export type Explanation = {
  sentence: string;
  findings: { cause: string; subject: string; weight: number; sentence: string }[];
  seconds: number;
  requests: number;
  waited: number;
  wait_ns: number;
  p50_us: number;
  p99_us: number;
};
export type PolicyView = {
  dataset: string;
  policy: string;
  source: 'local' | 'inherited' | 'received';
  inherited_from: string | null;
  taken: number;
  newest: number | null;
  next: number | null;
  error: string | null;
};
export type HookView = { name: string; timeout_seconds: number; ran: number | null; took_ms: number; error: string | null };
export type PolicyList = { policies: PolicyView[]; hooks: HookView[]; unanswered: string[] };
export type PolicyPreview = {
  policy: string;
  now: number;
  then: number;
  existing: number;
  going: number;
  going_snapshots: { name: string; why: string }[];
  expected: number;
  expected_snapshots: { time: number; classes: string[] }[];
};
export type ReplicationSettings = {
  name: string; from: string; to: string; ssh: string; recursive: boolean; exclude: string[]; select: string[]; newest_only: boolean; take: boolean; continuous: boolean;
  every: string; raw: boolean; without_properties: boolean; set: string[]; not_in_force: string[]; bandwidth: string; compress: string; window: string; keep: string; test_schedule: string;
};
export type ReplicationState = 'running' | 'paused' | 'failed-over' | 'waiting' | 'complete' | 'incomplete';
export type Replication = ReplicationSettings & {
  state: ReplicationState;
  paused: boolean;
  failed_over: boolean;
  running: { snapshot: string; sent_bytes: number; total_bytes: number | null; rate: number; remaining: number | null } | null;
  last_run: number | null;
  as_of: number | null;
  lag: number | null;
  recovery_point: { runs: number; median: number; p99: number; max: number } | null;
  next_in: number | null;
  cause: string | null;
  problem: string | null;
  failing_since: number | null;
  failures: number;
};
export type Peer = { name: string; address: string; certificate: string; datasets: string[]; push: boolean; pull: boolean; failover: boolean };
export type PeerList = { peers: Peer[] };
export type Invitation = { code: string; address: string; certificate: string };
export type ReplicationList = { replications: Replication[] };
export type ReplicationRun = { began: number; ended: number; runs: number; snapshots: number; sent_bytes: number; cause: string | null; problem: string | null };
export type ReplicationDetail = Replication & {
  history: ReplicationRun[];
  in_common: number;
  common: { dataset: string; snapshot: string; creation: number | null }[];
  left_out: { dataset: string; problem: string }[];
  without_snapshots: string[];
  sources_gone: string[];
  testing: { snapshot: string; files: number; read_bytes: number } | null;
  next_test: number | null;
  tests: RestoreReport[];
};
export type RestoreReport = {
  began: number;
  ended: number;
  datasets: { dataset: string; snapshot: string; created: number; files: number; others: number; bytes: number; failed: number; failures: { path: string; why: string }[]; not_compared: string | null }[];
  failure: string | null;
};
export type Tunable = { name: string; effect: string; value: number; default: number; least: number; most: number };
export type Settings = {
  tunables: Tunable[];
  log_levels: string | null;
  log_modules: string[];
  certificate: { fingerprint: string; ends: number | null } | null;
  acme: {
    names: string[];
    contact: string;
    directory: string;
    challenge: string;
    running: boolean;
    next: number;
    failure: { fact: string; next_step: string } | null;
  } | null;
  channels: { name: string; kind: string; to: string; severity: string }[];
  support_made: number | null;
  state_directory: string;
};
export type JobState = 'running' | 'done' | 'failed' | 'cancelled' | 'interrupted';
export type Job = {
  id: number;
  user: string;
  origin: string;
  command: string;
  change: boolean;
  state: JobState;
  exit: number | null;
  started: number;
  ended: number | null;
  output_bytes: number;
  undoable: boolean;
  undone: boolean;
};
export type JobUndo = { commands: string[]; role: Role | null };
export type JobList = { jobs: Job[]; next: number | null };
export type JobOutput = { text: string; offset: number; next: number; job: Job };

/** An answer that is no success: problem details (RFC 9457). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    detail: string,
    /** Which of several causes, for programs. */
    readonly reason = '',
  ) {
    super(detail);
  }
}

let csrf = '';
let user = '';

/** Keeps the value that changes need; an empty one after the end of the session. */
export function useSession(session: Session | null): void {
  csrf = session?.csrf ?? '';
  user = session?.name ?? '';
}

/** Asks the API. Throws ApiError; status 0 when the appliance does not answer. */
export async function ask<T>(method: string, path: string, body?: unknown, more: Record<string, string> = {}): Promise<T> {
  const headers: Record<string, string> = { ...more };
  if (method !== 'GET') headers['X-Sanbox-Csrf'] = csrf;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  let response: Response;
  try {
    response = await fetch(`/api/v1${path}`, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new ApiError(0, 'The appliance does not answer.');
  }
  const text = await response.text();
  let value: unknown = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(response.status, `HTTP ${response.status}`);
  }
  if (!response.ok) {
    const problem = value as { detail?: string; reason?: string } | null;
    throw new ApiError(response.status, problem?.detail ?? `HTTP ${response.status}`, problem?.reason);
  }
  const line = method === 'GET' ? null : lineOf(method, path, body, user);
  if (line) live.line = line;
  // What a resource is at the moment, for a change of it: `If-Match`.
  const etag = response.headers.get('ETag');
  return (etag && value && typeof value === 'object' ? Object.assign(value, { etag }) : value) as T;
}

/** Sends a file; `onprogress` gets the bytes sent so far. Throws ApiError. */
export function upload(path: string, file: Blob, onprogress: (sent: number) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    // Only this way tells how far it is.
    const request = new XMLHttpRequest();
    request.open('PUT', `/api/v1${path}`);
    request.setRequestHeader('X-Sanbox-Csrf', csrf);
    request.setRequestHeader('Content-Type', 'application/octet-stream');
    request.upload.onprogress = (event) => onprogress(event.loaded);
    request.onerror = () => reject(new ApiError(0, 'The appliance does not answer.'));
    request.onload = () => {
      if (request.status < 300) {
        const query = new URLSearchParams(path.split('?')[1]);
        const place = `${query.get('dataset')}:/${decodeURIComponent(query.get('path') ?? '')}`;
        live.line = uploadLine(file instanceof globalThis.File ? file.name : '-', place);
        return resolve();
      }
      let detail: string | undefined;
      try {
        detail = (JSON.parse(request.responseText) as { detail?: string }).detail;
      } catch {
        // Not from the API.
      }
      reject(new ApiError(request.status, detail ?? `HTTP ${request.status}`));
    };
    request.send(file);
  });
}

export const get = <T>(path: string): Promise<T> => ask<T>('GET', path);

/** The path of a name in the API or the console: a dataset is one segment. */
export const segment = encodeURIComponent;

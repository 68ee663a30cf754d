// The REST API (/api/v1/openapi.json describes it): types of what is used here, and one function that asks.

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
export type Dataset = { name: string; kind: string; guid: string; properties: Property[] };
export type DatasetList = { datasets: Dataset[]; next: string | null; unanswered: string[] };
export type Snapshot = {
  name: string;
  guid: string;
  creation: number;
  create_txg: number;
  used_bytes: number;
  referenced_bytes: number;
};
export type SnapshotList = { snapshots: Snapshot[]; next: string | null; total: number };
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
};
export type JobList = { jobs: Job[]; next: number | null };
export type JobOutput = { text: string; offset: number; next: number; job: Job };

/** An answer that is no success: problem details (RFC 9457). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    detail: string,
  ) {
    super(detail);
  }
}

let csrf = '';

/** Keeps the value that changes need; an empty one after the end of the session. */
export function useSession(session: Session | null): void {
  csrf = session?.csrf ?? '';
}

/** Asks the API. Throws ApiError; status 0 when the appliance does not answer. */
export async function ask<T>(method: string, path: string, body?: unknown): Promise<T> {
  const headers: Record<string, string> = {};
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
    const detail = (value as { detail?: string } | null)?.detail;
    throw new ApiError(response.status, detail ?? `HTTP ${response.status}`);
  }
  return value as T;
}

export const get = <T>(path: string): Promise<T> => ask<T>('GET', path);

/** The path of a name in the API or the console: a dataset is one segment. */
export const segment = encodeURIComponent;

// The words of the console. Terms of ZFS are the same in every language.

const en = {
  dashboard: 'Dashboard', pools: 'Pools', pool: 'Pool', datasets: 'Datasets', jobs: 'Jobs', snapshots: 'Snapshots', properties: 'Properties',
  logIn: 'Log in', logOut: 'Log out', name: 'Name', password: 'Password', passwordHint: 'At least 12 characters.',
  setupTitle: 'Set up this appliance', setupText: 'You become its first owner. There is no default password.', setUp: 'Become owner',
  setupBadLink: 'This page needs the whole link that the appliance printed when it started.',
  noOwner: 'There is no owner yet: open the link that the appliance printed when it started.',
  health: 'Health', size: 'Size', allocated: 'Allocated', free: 'Free', used: 'Used', available: 'Available', referenced: 'Referenced',
  fragmentation: 'Fragmentation', errors: 'Errors', readErrors: 'Read', writeErrors: 'Write', checksumErrors: 'Checksum', device: 'Device',
  state: 'State', kind: 'Type', created: 'Created', value: 'Value', source: 'Source', command: 'Command', user: 'User', from: 'From',
  started: 'Started', ended: 'Ended', output: 'Output', cancel: 'Cancel', close: 'Close', run: 'Run', more: 'More', filter: 'Filter',
  noPools: 'There are no pools yet. Make one in a shell, for example:', noDatasets: 'No datasets.', noSnapshots: 'No snapshots.', noJobs: 'No jobs yet.',
  noOutput: 'No output.', takeSnapshot: 'Take snapshot', rollback: 'Roll back', destroy: 'Destroy', clone: 'Clone', scrub: 'Scrub',
  sameCommand: 'The same in a shell:', snapshotName: 'Name of the snapshot', cloneName: 'Name of the clone', typeName: 'To confirm, type',
  rollbackText: 'What was written after this snapshot is lost.', destroyText: 'The snapshot cannot be brought back.',
  scrubText: 'Reads and verifies everything that the pool holds.', language: 'Deutsch', theme: 'Dark or light', skip: 'Skip to the content',
  lastScrub: 'Last scrub', lastResilver: 'Last resilver', scrubRuns: 'Scrub', resilverRuns: 'Resilver', neverScrubbed: 'Never scrubbed.',
  dataErrors: 'damaged files or objects', offline: 'The appliance does not answer. This page tries again.', unanswered: 'These pools do not answer: ',
  running: 'running', done: 'done', failed: 'failed', cancelled: 'cancelled', interrupted: 'interrupted', notFound: 'There is nothing here.',
  note: 'Note', actions: 'Actions',
};
const de: typeof en = {
  dashboard: 'Übersicht', pools: 'Pools', pool: 'Pool', datasets: 'Datasets', jobs: 'Aufträge', snapshots: 'Snapshots', properties: 'Eigenschaften',
  logIn: 'Anmelden', logOut: 'Abmelden', name: 'Name', password: 'Passwort', passwordHint: 'Mindestens 12 Zeichen.',
  setupTitle: 'Gerät einrichten', setupText: 'Sie werden der erste Eigentümer. Es gibt kein voreingestelltes Passwort.', setUp: 'Eigentümer werden',
  setupBadLink: 'Diese Seite braucht den ganzen Link, den das Gerät beim Start ausgegeben hat.',
  noOwner: 'Es gibt noch keinen Eigentümer: Öffnen Sie den Link, den das Gerät beim Start ausgegeben hat.',
  health: 'Zustand', size: 'Größe', allocated: 'Belegt', free: 'Frei', used: 'Belegt', available: 'Verfügbar', referenced: 'Referenziert',
  fragmentation: 'Fragmentierung', errors: 'Fehler', readErrors: 'Lesen', writeErrors: 'Schreiben', checksumErrors: 'Prüfsumme', device: 'Gerät',
  state: 'Zustand', kind: 'Art', created: 'Erstellt', value: 'Wert', source: 'Quelle', command: 'Befehl', user: 'Benutzer', from: 'Von',
  started: 'Begonnen', ended: 'Beendet', output: 'Ausgabe', cancel: 'Abbrechen', close: 'Schließen', run: 'Ausführen', more: 'Mehr', filter: 'Filter',
  noPools: 'Es gibt noch keinen Pool. Legen Sie in einer Shell einen an, zum Beispiel:', noDatasets: 'Keine Datasets.', noSnapshots: 'Keine Snapshots.', noJobs: 'Noch keine Aufträge.',
  noOutput: 'Keine Ausgabe.', takeSnapshot: 'Snapshot anlegen', rollback: 'Zurückrollen', destroy: 'Löschen', clone: 'Klonen', scrub: 'Scrub',
  sameCommand: 'Dasselbe in einer Shell:', snapshotName: 'Name des Snapshots', cloneName: 'Name des Klons', typeName: 'Zur Bestätigung eingeben:',
  rollbackText: 'Was nach diesem Snapshot geschrieben wurde, geht verloren.', destroyText: 'Der Snapshot lässt sich nicht zurückholen.',
  scrubText: 'Liest und prüft alles, was der Pool enthält.', language: 'English', theme: 'Dunkel oder hell', skip: 'Zum Inhalt springen',
  lastScrub: 'Letzter Scrub', lastResilver: 'Letzter Resilver', scrubRuns: 'Scrub', resilverRuns: 'Resilver', neverScrubbed: 'Noch kein Scrub.',
  dataErrors: 'beschädigte Dateien oder Objekte', offline: 'Das Gerät antwortet nicht. Diese Seite versucht es weiter.', unanswered: 'Diese Pools antworten nicht: ',
  running: 'läuft', done: 'fertig', failed: 'fehlgeschlagen', cancelled: 'abgebrochen', interrupted: 'unterbrochen', notFound: 'Hier ist nichts.',
  note: 'Hinweis', actions: 'Aktionen',
};

const chosen = localStorage.getItem('language') ?? navigator.language.slice(0, 2);
export const i18n = $state({ language: chosen === 'de' ? 'de' : 'en' });

/** The word for a key in the chosen language. */
export const t = (key: keyof typeof en): string => (i18n.language === 'de' ? de : en)[key];

export function switchLanguage(): void {
  i18n.language = i18n.language === 'de' ? 'en' : 'de';
  localStorage.setItem('language', i18n.language);
}

//! SMB: Samba's `smbd` on mounts of the datasets whose property `sharesmb` says so.
//!
//! Samba is the distribution's; it is configured, started, watched and ended here, and keeps everything in the directory `smb` of
//! the state directory. Each shared dataset is mounted there once more by FUSE, under its guid, apart from where `zfs mount` mounts
//! it: `zfs unmount` never waits for a client, and a new name of a dataset changes nothing for those that are connected.
//!
//! `smbd` is told of a change, or ended, before a mount goes. When it ends by itself it is started again, later each time.

mod domain;
mod mdns;
mod process;

pub(crate) use domain::{Credentials, domain_of, join, leave};
pub(crate) use process::{COMMAND, main};

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use engine::property::{DatasetKind, Source, Value};
use engine::{DatasetInfo, PoolHandle};
use manage::config::Smb as Settings;
use manage::replication::{FENCED_PROPERTY, fence_of};
use manage::samba::configuration::{self, CONFIGURATION, Service, SharedDataset, USERS};
use manage::samba::mdns as announced;
use manage::samba::share::{self, Encryption, ShareOptions};
use manage::samba::status::{self, SmbDomain, SmbShareView, SmbStatus};
use rustix::mount::{MountFlags as KernelFlags, MountPropagationFlags, UnmountFlags};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::appliance::context::Context;
use crate::appliance::followed::{FollowedDatasets, ServedPool};
use crate::logging::SMB;
use crate::paths;
use crate::redacted::is_redacted;
use crate::serve::fuse::{MountFlags, Mounts};
use mdns::Advertisement;
use process::{MOUNTS, Process, SHARES, Tools};

/// The oldest Samba that tells what is open as JSON.
const VERSION_MIN: (u32, u32) = (4, 17);
/// How long `smbd` may take until it can be connected to.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long it is waited before Samba is started again, at first and at most.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How often groups are looked at for changes.
const GROUPS_EVERY: Duration = Duration::from_secs(2);
/// After so long a run a new end is a first one.
const STEADY: Duration = Duration::from_secs(120);
/// How long clients of a share that goes may keep its mount busy before Samba is started anew without it.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// See the module.
pub(crate) struct Smb {
    context: Weak<Context>,
    settings: Settings,
    /// Addresses the administrator chose; none is up to us.
    chosen: Vec<IpAddr>,
    directory: PathBuf,
    mounts: Mounts,
    /// Mounts of this machine: a dataset that was received redacted is shared while it is among them.
    shown: Arc<Mounts>,
    /// The file systems whose `sharesmb` is not off.
    datasets: FollowedDatasets,
    /// Withdrawn by `zfs unshare`, by guid.
    withdrawn: Mutex<BTreeSet<u64>>,
    /// Pools on their way out.
    leaving: Mutex<BTreeSet<String>>,
    served: tokio::sync::Mutex<Served>,
    report: Arc<Mutex<Report>>,
    advertisement: Arc<Advertisement>,
}

/// What is served now.
#[derive(Default)]
struct Served {
    /// The directory for mounts is there.
    prepared: bool,
    shares: BTreeMap<u64, Wanted>,
    addresses: Vec<IpAddr>,
    supervision: Option<Supervision>,
    /// The machine is a member of the domain that the settings name.
    is_member: bool,
    /// The service has ended.
    closed: bool,
}

/// The task that starts Samba and starts it again, and how it is ended.
struct Supervision {
    end: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// What the log says of the service.
#[derive(Clone, Default)]
struct Report {
    version: String,
    /// Why Samba does not run.
    trouble: Option<String>,
    /// Datasets that are not shared although they should, and why.
    unshared: BTreeMap<String, String>,
    /// Present while Samba runs.
    tools: Option<Tools>,
}

/// A dataset that is to be shared.
#[derive(Clone, PartialEq)]
struct Wanted {
    dataset: String,
    share: SharedDataset,
}

/// The names of shares that have their datasets.
#[derive(Default)]
struct TakenNames {
    /// The datasets by the names in small letters.
    datasets: BTreeMap<String, String>,
    /// The dataset of the home directories.
    homes: Option<String>,
}

impl TakenNames {
    fn insert(&mut self, wanted: &Wanted) {
        let name = wanted.share.name.to_lowercase();
        self.datasets.insert(name, wanted.dataset.clone());
        if wanted.share.options.homes {
            self.homes = Some(wanted.dataset.clone());
        }
    }

    /// The dataset that has the name of a share already.
    fn owner(&self, name: &str, options: &ShareOptions) -> Option<&String> {
        let homes = self.homes.as_ref().filter(|_| options.homes);
        homes.or_else(|| self.datasets.get(&name.to_lowercase()))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Smb {
    pub(crate) fn new(
        context: &Arc<Context>,
        settings: Settings,
        chosen: Vec<IpAddr>,
        shown: Arc<Mounts>,
    ) -> Self {
        let advertisement = Advertisement::new(&settings.avahi_services, settings.port);
        Self {
            context: Arc::downgrade(context),
            settings,
            chosen,
            directory: directory(context.state().path()),
            mounts: Mounts::new(context.config().mount.threads, shown.locks().clone()),
            shown,
            datasets: shared_datasets(),
            withdrawn: Mutex::default(),
            leaving: Mutex::default(),
            served: tokio::sync::Mutex::default(),
            report: Arc::default(),
            advertisement: Arc::new(advertisement),
        }
    }

    /// Withdraws a share until it is restored.
    pub(crate) fn withdraw(&self, guid: u64) {
        locked(&self.withdrawn).insert(guid);
    }

    /// Restores a withdrawn share, or all.
    pub(crate) fn restore(&self, guid: Option<u64>) {
        match guid {
            Some(guid) => drop(locked(&self.withdrawn).remove(&guid)),
            None => locked(&self.withdrawn).clear(),
        }
    }

    /// Withdraws the shares of a pool that is about to go. The next call of [`Self::follow`], which finds it gone or still
    /// there, ends this.
    pub(crate) async fn withdraw_pool(&self, pool: &str) {
        locked(&self.leaving).insert(pool.to_owned());
        self.follow().await;
        locked(&self.leaving).remove(pool);
    }

    /// Withdraws the share of a dataset that is about to go.
    pub(crate) async fn withdraw_dataset(&self, dataset: &str) {
        let mut served = self.served.lock().await;
        let found = served
            .shares
            .iter()
            .find(|(_, share)| share.dataset == dataset);
        if let Some(guid) = found.map(|(guid, _)| *guid) {
            let mut shares = served.shares.clone();
            shares.remove(&guid);
            self.change_to(&mut served, shares).await;
        }
    }

    /// Makes the shares those that the datasets' properties ask for.
    pub(crate) async fn follow(&self) {
        let mut served = self.served.lock().await;
        if served.closed {
            return;
        }
        let wanted = self.wanted().await;
        self.change_to(&mut served, wanted).await;
    }

    /// Ends the service.
    pub(crate) async fn close(&self) {
        let mut served = self.served.lock().await;
        served.closed = true;
        self.change_to(&mut served, BTreeMap::new()).await;
        if served.prepared {
            let mounts = self.directory.join(MOUNTS);
            let _ = paths::call(&self.directory, move || clear(&mounts)).await;
        }
    }

    /// Starts Samba anew after the machine joined a domain, or left it.
    pub(crate) async fn domain_changed(&self) {
        let mut served = self.served.lock().await;
        if served.closed || served.shares.is_empty() {
            return;
        }
        self.end(&mut served).await;
        if let Err(why) = self.write(&mut served).await {
            tracing::error!(target: SMB, "the configuration of Samba cannot be written: {why}");
        }
        self.begin(&mut served);
    }

    /// How it stands with the domain that the settings name.
    async fn domain_status(&self, tools: Option<&Tools>) -> Option<SmbDomain> {
        let domain = domain_of(&self.settings)?;
        let joined = domain::has_joined(&self.directory, &domain).await;
        let problem = match (joined, tools) {
            (false, _) => {
                let text = "this machine has not joined it: 'sanbox smb join --user NAME'";
                Some(text.to_owned())
            }
            (true, Some(tools)) => tools.ping_domain().await.err(),
            (true, None) => Some("Samba does not run".to_owned()),
        };
        Some(SmbDomain {
            realm: domain.realm().to_owned(),
            joined,
            problem,
        })
    }

    /// Returns what clients do now.
    pub(crate) async fn status(&self) -> SmbStatus {
        let report = locked(&self.report).clone();
        let served = self.served.lock().await;
        let shares: BTreeMap<u64, Wanted> = served.shares.clone();
        drop(served);
        let mut status = SmbStatus {
            running: report.tools.is_some(),
            version: report.version,
            problems: report.trouble.into_iter().collect(),
            mdns: self.advertisement.status().await,
            domain: self.domain_status(report.tools.as_ref()).await,
            shares: shares.values().map(Wanted::view).collect(),
            ..SmbStatus::default()
        };
        let unshared = report.unshared.iter();
        status
            .problems
            .extend(unshared.map(|(dataset, why)| format!("'{dataset}' is not shared: {why}")));
        let Some(tools) = report.tools else {
            return status;
        };
        let dataset_at = |path: &str| {
            let number = path
                .strip_prefix(SHARES)?
                .strip_prefix('/')?
                .split('/')
                .next()?;
            let guid = u64::from_str_radix(number, 16).ok()?;
            Some(shares.get(&guid)?.dataset.clone())
        };
        let told = tools.status().await;
        let told =
            told.and_then(|json| status::parse(&json, dataset_at).map_err(|e| e.to_string()));
        match told {
            Ok((sessions, open_files)) => {
                (status.sessions, status.open_files) = (sessions, open_files);
            }
            Err(why) => status.problems.push(why),
        }
        status
    }

    /// The datasets of all open pools that are to be shared, by guid.
    async fn wanted(&self) -> BTreeMap<u64, Wanted> {
        let mut wanted: BTreeMap<u64, Wanted> = BTreeMap::new();
        let mut taken = TakenNames::default();
        let mut unshared = BTreeMap::new();
        let Some(context) = self.context.upgrade() else {
            return wanted;
        };
        for ServedPool { pool, datasets } in self.datasets.read(&context).await {
            if locked(&self.leaving).contains(pool.name()) {
                continue;
            }
            for info in datasets {
                if locked(&self.withdrawn).contains(&info.guid) {
                    continue;
                }
                match wanted_share(&pool, &info, &taken) {
                    Ok(Some(_))
                        if is_redacted(&info) && self.shown.mounted(info.guid).is_none() =>
                    {
                        let why = "received redacted, and not mounted";
                        unshared.insert(info.name.clone(), why.to_owned());
                    }
                    Ok(Some(share)) => {
                        taken.insert(&share);
                        wanted.insert(info.guid, share);
                    }
                    Ok(None) => {}
                    Err(why) => drop(unshared.insert(info.name.clone(), why)),
                }
            }
        }
        self.report_unshared(unshared);
        wanted
    }

    /// Takes note of what is not shared, and logs what was not known.
    fn report_unshared(&self, unshared: BTreeMap<String, String>) {
        let mut report = locked(&self.report);
        for (dataset, why) in &unshared {
            if report.unshared.get(dataset) != Some(why) {
                tracing::warn!(target: SMB, "'{dataset}' is not shared: {why}");
            }
        }
        report.unshared = unshared;
    }

    /// Changes what is served: mounts come before Samba is told of them, and go after it has given them up.
    async fn change_to(&self, served: &mut Served, mut wanted: BTreeMap<u64, Wanted>) {
        if wanted.is_empty() && served.shares.is_empty() && served.supervision.is_none() {
            return;
        }
        let mut unshared = locked(&self.report).unshared.clone();
        if !wanted.is_empty()
            && let Err(why) = self.prepare(served).await
        {
            for share in wanted.values() {
                unshared.insert(share.dataset.clone(), why.clone());
            }
            wanted.clear();
        }
        for (guid, share) in wanted.clone() {
            if let Err(why) = self.mount(guid, &share.dataset).await {
                unshared.insert(share.dataset, why);
                wanted.remove(&guid);
            }
        }
        self.report_unshared(unshared);
        let before = std::mem::replace(&mut served.shares, wanted);
        let addresses = addresses(&self.chosen, &served.shares);
        let moved = std::mem::replace(&mut served.addresses, addresses) != served.addresses;
        let changed = before != served.shares || moved;
        let gone: Vec<u64> = before
            .keys()
            .filter(|guid| !served.shares.contains_key(guid))
            .copied()
            .collect();
        if changed && let Err(why) = self.write(served).await {
            tracing::error!(target: SMB, "the configuration of Samba cannot be written: {why}");
        }
        if changed {
            self.announce(served).await;
        }
        if served.shares.is_empty() || moved {
            self.end(served).await;
        } else if changed {
            self.tell(&before, &gone).await;
        }
        for guid in gone {
            self.unmount(served, guid).await;
        }
        if !served.shares.is_empty() && served.supervision.is_none() {
            self.begin(served);
        }
    }

    /// Makes the service's directories, and the mount that the datasets' mounts lie on: what is mounted there appears in Samba's
    /// namespace, too.
    async fn prepare(&self, served: &mut Served) -> Result<(), String> {
        if served.prepared {
            return Ok(());
        }
        if !rustix::process::geteuid().is_root() {
            return Err("SMB needs root: smbd reaches files as the users who log in".to_owned());
        }
        let directory = self.directory.clone();
        let make = move || -> std::io::Result<()> {
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true).mode(0o700);
            for name in configuration::directories().chain([MOUNTS]) {
                builder.create(directory.join(name))?;
            }
            let mounts = directory.join(MOUNTS);
            // What a killed daemon left.
            clear(&mounts);
            let flags = KernelFlags::NODEV | KernelFlags::NOSUID;
            rustix::mount::mount("sanbox-smb", &mounts, "tmpfs", flags, c"mode=0711")?;
            rustix::mount::mount_change(&mounts, MountPropagationFlags::SHARED)?;
            Ok(())
        };
        let made = paths::call(&self.directory, make).await?;
        made.map_err(|error| format!("{}: {error}", self.directory.display()))?;
        served.prepared = true;
        Ok(())
    }

    async fn mount(&self, guid: u64, dataset: &str) -> Result<(), String> {
        if self.mounts.mounted(guid).is_some() {
            return Ok(());
        }
        let context = self.context.upgrade().ok_or("the daemon is ending")?;
        let pool = context.engine().pool(crate::names::pool_part(dataset));
        let pool = pool.map_err(|error| error.to_string())?;
        let failed = |error: engine::EngineError| error.to_string();
        let fs = pool.open_fs(dataset).await.map_err(failed)?;
        let flags = crate::appliance::mount_flags(&pool, dataset)
            .await
            .map_err(failed)?;
        let flags = MountFlags {
            no_devices: true,
            no_setuid: true,
            no_exec: true,
            for_samba: true,
            ..flags
        };
        let point = self.directory.join(MOUNTS).join(format!("{guid:016x}"));
        self.mounts.mount(fs, dataset, &point, flags).await
    }

    /// Takes a mount away. While clients keep it busy, Samba is asked to let go; then it is started anew.
    async fn unmount(&self, served: &mut Served, guid: u64) {
        let Some(point) = self.mounts.mounted(guid) else {
            return;
        };
        let name = self.mounts.list().into_iter().find(|(_, at)| *at == point);
        let Some((name, _)) = name else { return };
        let deadline = tokio::time::Instant::now() + RELEASE_TIMEOUT;
        while let Err(why) = self.mounts.unmount_name(&name, false).await {
            if tokio::time::Instant::now() >= deadline {
                tracing::warn!(target: SMB, "clients keep '{name}' busy ({why}): Samba is started anew");
                self.end(served).await;
                let _ = self.mounts.unmount_name(&name, true).await;
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let _ = paths::call(&self.directory, move || std::fs::remove_dir(point)).await;
    }

    /// Has Samba read its configuration again, and break the connections to shares that are gone or another dataset's now.
    async fn tell(&self, before: &BTreeMap<u64, Wanted>, gone: &[u64]) {
        let tools = locked(&self.report).tools.clone();
        let Some(tools) = tools else { return };
        let mut told = tools.control(&["reload-config"]).await;
        for guid in gone {
            let name = match &before[guid].share {
                share if share.options.homes => continue,
                share => &share.name,
            };
            told = told.and(tools.control(&["close-share", name]).await);
        }
        if let Err(why) = told {
            tracing::warn!(target: SMB, "Samba was not told of a change: {why}");
        }
    }

    async fn write(&self, served: &mut Served) -> Result<(), String> {
        let domain = domain_of(&self.settings);
        let joined = match domain {
            Some(domain) if domain::has_joined(&self.directory, &domain).await => Some(domain),
            _ => None,
        };
        served.is_member = joined.is_some();
        let service = Service {
            port: self.settings.port,
            addresses: &served.addresses,
            directory: &self.directory,
            workgroup: &self.settings.workgroup,
            signing_required: self.settings.signing_required,
            encryption: match self.settings.encryption {
                manage::config::SmbEncryption::Enabled => Encryption::Enabled,
                manage::config::SmbEncryption::Required => Encryption::Required,
                manage::config::SmbEncryption::Off => Encryption::Off,
            },
            clients_max: self.settings.clients_max,
            asks_real_names: process::has_module(configuration::REAL_NAME_MODULE).await,
            domain: joined.as_ref(),
        };
        let shares: Vec<SharedDataset> = served.shares.values().map(|w| w.share.clone()).collect();
        let text = configuration::text(&service, &shares);
        replace(&self.directory.join(CONFIGURATION), text).await
    }

    /// Has machines nearby told of what other hosts reach.
    async fn announce(&self, served: &Served) {
        let addresses = &served.addresses;
        let is_reached = addresses.is_empty() || addresses.iter().any(|one| !one.is_loopback());
        let shares = served.shares.values();
        let shares: Vec<SharedDataset> = shares
            .filter(|wanted| !is_private(&wanted.share.options))
            .map(|wanted| wanted.share.clone())
            .collect();
        let is_told = is_reached && !shares.is_empty();
        let text = is_told.then(|| announced::text(self.settings.port, &shares));
        self.advertisement.describe(text).await;
    }

    /// Starts the task that keeps Samba running.
    fn begin(&self, served: &mut Served) {
        let (end, ended) = watch::channel(false);
        let addresses = served.addresses.clone();
        let first = addresses.first().copied();
        let supervised = Supervised {
            directory: self.directory.clone(),
            is_member: served.is_member,
            port: self.settings.port,
            listens: if addresses.is_empty() {
                vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED)]
            } else {
                addresses
            },
            connects: first.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            report: self.report.clone(),
            advertisement: self.advertisement.clone(),
        };
        let task = tokio::spawn(supervised.keep_running(ended));
        served.supervision = Some(Supervision { end, task });
    }

    /// Ends Samba.
    async fn end(&self, served: &mut Served) {
        if let Some(Supervision { end, task }) = served.supervision.take() {
            end.send_replace(true);
            let _ = task.await;
        }
    }
}

/// What the task that keeps Samba running knows.
struct Supervised {
    directory: PathBuf,
    is_member: bool,
    port: u16,
    listens: Vec<IpAddr>,
    connects: IpAddr,
    report: Arc<Mutex<Report>>,
    advertisement: Arc<Advertisement>,
}

impl Supervised {
    async fn keep_running(self, mut end: watch::Receiver<bool>) {
        let mut pause = PAUSE_MIN;
        while !*end.borrow() {
            let began = tokio::time::Instant::now();
            let why = match self.run_once(&mut end).await {
                Ok(()) => break,
                Err(why) => why,
            };
            if began.elapsed() >= STEADY {
                pause = PAUSE_MIN;
            }
            let is_new = locked(&self.report).trouble.replace(why.clone()) != Some(why.clone());
            if is_new {
                tracing::error!(target: SMB, "{why}; tried again from time to time");
            }
            let _ = tokio::time::timeout(pause, told_to_end(&mut end)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        locked(&self.report).trouble = None;
    }

    /// Runs Samba until it is to end. An error is why it does not run or ended by itself.
    async fn run_once(&self, end: &mut watch::Receiver<bool>) -> Result<(), String> {
        let version = process::version().await;
        let version = usable(version.as_deref())?;
        self.look_for_others()?;
        let mut groups = String::new();
        process::write_groups(&self.directory, &mut groups).await?;
        let mut process = Process::start(&self.directory, self.is_member).await?;
        let outcome = tokio::select! {
            ready = self.ready() => ready,
            how = process.ended() => Err(self.ended_by_itself(&how).await),
            () = told_to_end(end) => Ok(()),
        };
        if let Err(why) = outcome {
            process.stop().await;
            return Err(why);
        }
        if !*end.borrow() {
            self.report_running(&version, process.tools());
            tracing::info!(
                target: SMB,
                "SMB is served at {} by Samba {version}",
                SocketAddr::new(self.listens[0], self.port)
            );
            self.advertisement.set_running(true).await;
        }
        let outcome = tokio::select! {
            how = process.ended() => Err(self.ended_by_itself(&how).await),
            () = told_to_end(end) => Ok(()),
            () = self.keep_groups(groups) => Ok(()),
        };
        locked(&self.report).tools = None;
        self.advertisement.set_running(false).await;
        process.stop().await;
        outcome
    }

    fn report_running(&self, version: &str, tools: Tools) {
        let mut report = locked(&self.report);
        version.clone_into(&mut report.version);
        report.trouble = None;
        report.tools = Some(tools);
    }

    /// Has `smbd` know groups and their members as they are changed; it reads them as a user logs in. It has no end.
    async fn keep_groups(&self, mut groups: String) {
        loop {
            tokio::time::sleep(GROUPS_EVERY).await;
            // What cannot be written now is tried again.
            let _ = process::write_groups(&self.directory, &mut groups).await;
        }
    }

    async fn ended_by_itself(&self, how: &str) -> String {
        let said = process::last_words(&self.directory).await;
        format!("Samba {how}: {said}")
    }

    /// Finds out whether something else has the port, such as the smbd that the distribution starts.
    fn look_for_others(&self) -> Result<(), String> {
        for address in &self.listens {
            match std::net::TcpListener::bind((*address, self.port)) {
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                    return Err(format!(
                        "port {} of {address} is in use; where it is the distribution's own Samba: systemctl disable --now smbd nmbd",
                        self.port
                    ));
                }
                // Others are Samba's to explain: it does without an address that is not there.
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits until clients can connect.
    async fn ready(&self) -> Result<(), String> {
        let deadline = tokio::time::Instant::now() + START_TIMEOUT;
        while tokio::net::TcpStream::connect((self.connects, self.port))
            .await
            .is_err()
        {
            if tokio::time::Instant::now() >= deadline {
                let said = process::last_words(&self.directory).await;
                return Err(format!(
                    "Samba does not answer at port {}: {said}",
                    self.port
                ));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

/// Waits until the task is told to end, or its other end is gone.
async fn told_to_end(end: &mut watch::Receiver<bool>) {
    let _ = end.wait_for(|end| *end).await;
}

/// Returns the version of Samba that is installed, when it can be used.
fn usable(version: Option<&str>) -> Result<String, String> {
    let Some(version) = version else {
        return Err(
            "Samba is not installed, so nothing is shared by SMB (Debian: apt install samba samba-vfs-modules)"
                .to_owned(),
        );
    };
    let mut numbers = version
        .split('.')
        .map(|word| word.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found < VERSION_MIN {
        let (major, minor) = VERSION_MIN;
        return Err(format!(
            "Samba {version} is too old, so nothing is shared by SMB: {major}.{minor} or newer is needed"
        ));
    }
    Ok(version.to_owned())
}

impl Wanted {
    fn view(&self) -> SmbShareView {
        SmbShareView {
            name: self.share.name.clone(),
            dataset: self.dataset.clone(),
            read_only: self.share.read_only || self.share.options.read_only,
            guest: self.share.options.guest,
        }
    }
}

/// Returns the directory of the service in a state directory.
pub(crate) fn directory(state: &Path) -> PathBuf {
    state.join("smb")
}

/// Replaces a file that only its owner may read.
pub(crate) async fn replace(path: &Path, text: String) -> Result<(), String> {
    let at = path.to_owned();
    let write = move || -> std::io::Result<()> {
        use std::io::Write as _;
        if let Some(parent) = at.parent() {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(parent)?;
        }
        let fresh = at.with_extension("new");
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&fresh, &at)
    };
    let written = paths::call(path, write).await?;
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns where the users with their passwords are, in a state directory.
pub(crate) fn users_file(state: &Path) -> PathBuf {
    directory(state).join(USERS)
}

/// Detaches what is mounted at a place and below. Takes a path.
fn clear(mounts: &Path) {
    for mount in paths::mount_table().iter().rev() {
        if mount.point.starts_with(mounts) {
            let _ = rustix::mount::unmount(&mount.point, UnmountFlags::DETACH);
        }
    }
}

fn shared_datasets() -> FollowedDatasets {
    let properties = [
        "sharesmb",
        "readonly",
        "casesensitivity",
        "quota",
        "refquota",
        "redacted",
        FENCED_PROPERTY,
    ];
    FollowedDatasets::new(&[DatasetKind::Filesystem], &properties, |info| {
        let sharesmb = info.property("sharesmb");
        sharesmb.is_some_and(|property| property.value.text() != Some("off"))
    })
}

/// Returns how a dataset is to be shared, if at all; an error is why it cannot be.
fn wanted_share(
    pool: &PoolHandle,
    info: &DatasetInfo,
    taken: &TakenNames,
) -> Result<Option<Wanted>, String> {
    let property = info.property("sharesmb");
    let value = property.and_then(|property| property.value.text());
    let options = share::parse(value.unwrap_or("off")).map_err(|why| format!("sharesmb: {why}"))?;
    let Some(options) = options.filter(|_| fence_of(info).is_none()) else {
        return Ok(None);
    };
    let inherited = match property.map(|property| &property.source) {
        Some(Source::Inherited(ancestor)) => Some(ancestor.as_str()),
        _ => None,
    };
    let name = share::resource_name(&info.name, &options, inherited);
    if let Some(other) = taken.owner(&name, &options) {
        return Err(format!("'{other}' is shared as '{name}' already"));
    }
    let number = |name: &str| match info.property(name).map(|property| &property.value) {
        Some(Value::Number(number)) => *number,
        _ => 0,
    };
    let limits = [number("quota"), number("refquota")];
    let share = SharedDataset {
        name,
        path: format!("{SHARES}/{:016x}", info.guid),
        read_only: pool.readonly() || number("readonly") == 1,
        // casesensitivity: 1 is insensitive.
        case_insensitive: number("casesensitivity") == 1,
        bytes_max: limits.into_iter().filter(|bytes| *bytes > 0).min(),
        options,
    };
    Ok(Some(Wanted {
        dataset: info.name.clone(),
        share,
    }))
}

/// Returns the addresses to listen at; none is all of the machine. Only this machine's own where each share says that no other machine
/// may connect.
fn addresses(chosen: &[IpAddr], shares: &BTreeMap<u64, Wanted>) -> Vec<IpAddr> {
    if !chosen.is_empty() {
        let everywhere = chosen.iter().any(IpAddr::is_unspecified);
        return if everywhere {
            Vec::new()
        } else {
            chosen.to_vec()
        };
    }
    if shares
        .values()
        .all(|wanted| is_private(&wanted.share.options))
    {
        return vec![
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ];
    }
    Vec::new()
}

/// Whether a share admits this machine alone.
fn is_private(options: &ShareOptions) -> bool {
    let is_local = |host: &String| {
        let address = host.split('/').next().unwrap_or_default();
        let address: Result<IpAddr, _> = address.parse();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    };
    !options.hosts.is_empty() && options.hosts.iter().all(is_local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_can_be_used() {
        assert_eq!(
            usable(Some("4.17.12-Debian")).as_deref(),
            Ok("4.17.12-Debian")
        );
        assert!(usable(Some("5.0.0")).is_ok());
        assert!(usable(Some("4.9.5")).is_err_and(|why| why.contains("too old")));
        assert!(usable(None).is_err_and(|why| why.contains("apt install")));
    }

    #[test]
    fn addresses_follow_shares_and_settings() {
        let wanted = |sharesmb: &str| Wanted {
            dataset: "t".to_owned(),
            share: SharedDataset {
                name: "t".to_owned(),
                path: String::new(),
                options: share::parse(sharesmb).expect("valid").expect("shared"),
                read_only: false,
                case_insensitive: false,
                bytes_max: None,
            },
        };
        let shares = |all: &[&str]| -> BTreeMap<u64, Wanted> {
            (0..)
                .zip(all.iter().map(|sharesmb| wanted(sharesmb)))
                .collect()
        };
        let local: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        assert_eq!(addresses(&[], &shares(&["rw=127.0.0.1:localhost"])), local);
        assert!(addresses(&[], &shares(&["ro=127.0.0.1", "on"])).is_empty());
        assert_eq!(addresses(&local, &shares(&["on"])), local);
        let everywhere = ["::".parse().expect("an address")];
        assert!(addresses(&everywhere, &shares(&["on"])).is_empty());
    }
}

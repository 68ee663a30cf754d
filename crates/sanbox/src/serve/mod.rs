//! `sanbox serve`: the daemon.

mod acme;
mod admission;
mod alerts;
mod connection_workers;
mod console;
pub(crate) mod control;
pub(crate) mod devices;
mod disks;
mod fencing;
pub(crate) mod fuse;
mod history;
pub(crate) mod iscsi;
mod key_rotations;
mod login;
pub(crate) mod management;
pub(crate) mod metrics;
pub(crate) mod nbd;
pub(crate) mod nfs;
mod nfs_callbacks;
mod nfs_clients;
mod nfs_kerberos;
mod nfs_tls;
pub(crate) mod notify;
mod outbox;
pub(crate) mod peers;
mod policies;
pub(crate) mod redirect;
mod replication;
pub(crate) mod reports;
pub(crate) mod resolve;
pub(crate) mod shares;
pub(crate) mod smb;
mod trash;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use manage::api::Api;
use manage::config::{Config, LogFormat};
use manage::state::{StateDirectory, StateLock};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

use crate::appliance::{Appliance, KnownPool};
use crate::cli::declare::COMMANDS;
use crate::cli::getopt::Getopt;
use crate::logging::{self, Levels, NFS, SANBOX};
use crate::otel::OtelExporter;
use crate::tuning;

/// How long after a signal to end a further ^C is still taken for the same one.
const REPEATED_SIGNAL_TIMEOUT: Duration = Duration::from_secs(2);
/// How often an end that takes long says what it waits for.
const AWAITED_EVERY: Duration = Duration::from_secs(3);

fn port(option: &str, text: &str) -> anyhow::Result<u16> {
    text.parse()
        .with_context(|| format!("--{option} {text}: not a port"))
}

/// The settings of a run: the file's, overridden by flags.
pub(crate) fn settings(state: &StateDirectory, arguments: &[String]) -> anyhow::Result<Config> {
    let mut config = Config::read(&state.config())?;
    let command = COMMANDS
        .iter()
        .find(|command| command.name == "serve")
        .context("declared")?;
    let mut options = Getopt::new(arguments, command.flags);
    let mut listen: Vec<IpAddr> = Vec::new();
    let mut devices = Vec::new();
    loop {
        let given = match options.next() {
            Ok(Some(given)) => given,
            Ok(None) => break,
            Err(error) => bail!("{error}\n{}", command.usage_text()),
        };
        let name = command.flags[given.index].long.unwrap_or_default();
        match (name, given.value) {
            ("listen", Some(text)) => {
                listen.push(
                    text.parse()
                        .with_context(|| format!("--listen {text}: not an address"))?,
                );
            }
            ("nfs-port", Some(text)) => {
                config.nfs.port = port("nfs-port", &text)?;
                config.nfs.enabled = config.nfs.port != 0;
            }
            ("iscsi-port", Some(text)) => {
                config.iscsi.port = port("iscsi-port", &text)?;
                config.iscsi.enabled = config.iscsi.port != 0;
            }
            ("nbd-port", Some(text)) => {
                config.nbd.port = port("nbd-port", &text)?;
            }
            ("smb-port", Some(text)) => {
                config.smb.port = text
                    .parse()
                    .with_context(|| format!("--smb-port {text}: not a port"))?;
            }
            ("memory", Some(text)) => {
                config.memory = text;
                config.memory_bytes()?;
            }
            ("metrics-port", Some(text)) => {
                config.metrics.port = port("metrics-port", &text)?;
            }
            ("log-level", Some(text)) => config.log.level = text,
            ("log-format", Some(text)) => {
                config.log.format = LogFormat::parse(&text)
                    .with_context(|| format!("--log-format {text}: neither text nor json"))?;
            }
            ("https-port", Some(text)) => {
                config.console.port = port("https-port", &text)?;
            }
            ("replication-port", Some(text)) => {
                config.replication.port = port("replication-port", &text)?;
            }
            ("devices", Some(directory)) => {
                let directory = std::path::absolute(&directory)
                    .with_context(|| format!("--devices {directory}"))?;
                devices.push(directory);
            }
            ("no-portmap", _) => config.nfs.portmap = false,
            ("mount", _) => config.mount.automatic = true,
            (other, _) => bail!("unexpected option {other}"),
        }
    }
    if let Some(extra) = options.operands().first() {
        bail!("unexpected argument '{extra}'\n{}", command.usage_text());
    }
    if !listen.is_empty() {
        config.listen = listen;
    }
    if !devices.is_empty() {
        config.console.devices = devices;
    }
    Ok(config)
}

/// Returns which versions of NFS the configuration has served.
fn nfs_versions(config: &manage::config::Nfs) -> ::nfs::Versions {
    use manage::config::NfsVersion as V;
    let served = |version| config.versions.contains(&version);
    ::nfs::Versions {
        v3: served(V::V3),
        v4_minors: [V::V40, V::V41, V::V42].map(served),
        lease_seconds: config.lease_seconds.clamp(10, 3600),
        delegations: config.delegations,
    }
}

/// Runs the daemon until it is told to end.
pub(crate) async fn run(appliance: Arc<Appliance>, _lock: StateLock) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("waiting for SIGHUP")?;
    note_start(&appliance);
    let config = appliance.config().clone();
    raise_limits();
    let server = serve_protocols(&appliance, &config).await?;

    // Before the first command, which is a span.
    let exporter = export(&appliance, &config);
    let socket = appliance.state().socket();
    let control = listen_for_commands(&socket, &config)?;
    // Before the first command is answered: who gives it may have a role, and what it changes is in the log of jobs.
    let opened = management::open(&appliance).await;
    let control = tokio::spawn(control::serve(control, appliance.clone()));
    let ticking = tokio::spawn(tick(appliance.clone(), server.clone()));
    let reloading = tokio::spawn({
        let appliance = appliance.clone();
        async move {
            let mut before = Config::read(&appliance.state().config()).unwrap_or_default();
            while hangup.recv().await.is_some() {
                reload(&appliance, &mut before).await;
            }
        }
    });

    let keeping = tokio::spawn(crate::memory::keep(Arc::downgrade(appliance.context())));
    let policies = tokio::spawn(policies::keep(Arc::downgrade(&appliance)));
    let replicating = tokio::spawn(replication::keep(Arc::downgrade(&appliance)));
    let fencing = tokio::spawn(fencing::keep(Arc::downgrade(&appliance)));
    let discarding = tokio::spawn(trash::keep(Arc::downgrade(&appliance)));
    let rotating = tokio::spawn(key_rotations::keep(Arc::downgrade(&appliance)));
    let peers = tokio::spawn(peers::keep(Arc::downgrade(&appliance)));
    let metrics = serve_metrics(&appliance, &config).await;

    // Before the pools: a page says that one is slow to open.
    let managing = tokio::spawn(manage(appliance.clone(), opened));

    // A signal while a pool is slow to open is obeyed all the same.
    let ended_by = tokio::select! {
        () = open_pools(&appliance) => None,
        _ = terminate.recv() => Some("SIGTERM"),
        _ = interrupt.recv() => Some("SIGINT"),
    };
    let ended_by = match ended_by {
        Some(signal) => signal,
        None => {
            server.pools_are_open();
            if let Some(clients) = server.reclaiming_clients() {
                let seconds = nfs_versions(&config.nfs).lease_seconds;
                tracing::info!(
                    target: NFS,
                    "{clients} clients of NFSv4 may reclaim what they had open and locked, for {seconds} s; others wait"
                );
            }
            tracing::info!(target: SANBOX, "ready");
            notify("READY=1");
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        }
    };
    tracing::info!(target: SANBOX, "ending on {ended_by}");
    notify("STOPPING=1");
    control.abort();
    reloading.abort();
    policies.abort();
    discarding.abort();
    rotating.abort();
    replicating.abort();
    fencing.abort();
    peers.abort();
    appliance.replications().cancel_all();
    let _ = std::fs::remove_file(&socket);
    let requests = appliance.stop_sharing();
    log_while_waiting("requests of clients to end", requests).await;
    ticking.abort();
    managing.abort();
    if let Some(api) = appliance.api() {
        history::store(api).await;
    }
    metrics.inspect(|task| task.abort());
    let closed = close_pools(&appliance).await;
    keeping.abort();
    if let Some(api) = appliance.api() {
        api.accounts.database().settle().await;
    }
    if let Some(exporter) = exporter {
        exporter.send_last().await;
    }
    closed?;
    appliance.state().mark_ended();
    tracing::info!(target: SANBOX, "ended");
    Ok(())
}

/// Returns the random numbers of this start.
fn random_secret() -> anyhow::Result<[u64; 2]> {
    let random = || manage::secret::random::<8>().map(u64::from_le_bytes);
    let secret = random().and_then(|first| Ok([first, random()?]));
    secret.context("the kernel gives no random bytes")
}

/// Makes the servers of all protocols that are to be served; their ports open with the first share, target or volume.
async fn serve_protocols(
    appliance: &Arc<Appliance>,
    config: &Config,
) -> anyhow::Result<::nfs::Server> {
    let server = nfs_server(appliance, config)?;
    let limits = nfs::Limits {
        connections_max: config.nfs.connections_max,
        idle: Duration::from_secs(config.nfs.idle_seconds.max(1)),
        memory_bytes: appliance.memory_plan().for_clients(usize::MAX),
    };
    let port = config.nfs.enabled.then_some(config.nfs.port);
    let workers = connection_workers::ConnectionWorkers::start()
        .context("starting the threads that serve connections")?;
    let listeners = nfs::Listeners::new(
        config.listen.clone(),
        port,
        config.nfs.portmap,
        limits,
        workers.clone(),
        nfs_tls(appliance, &config.nfs),
    );
    let mounts = appliance.mounts().clone();
    appliance.enter_daemon(shares::Shares::new(server.clone(), listeners, mounts));

    if config.nbd.enabled {
        let settings = nbd::Settings {
            socket: Some(appliance.state().path().join("nbd.sock")),
            addresses: config.listen.clone(),
            port: (config.nbd.port != 0).then_some(config.nbd.port),
            connections_max: config.nbd.connections_max,
        };
        let server = nbd::Server::new(appliance.context(), settings);
        server.open().await;
        appliance.serve_nbd(server);
    }

    if config.iscsi.enabled {
        let settings = iscsi::Settings {
            addresses: config.listen.clone(),
            port: config.iscsi.port,
            connections_max: config.iscsi.connections_max,
            sessions_max: config.iscsi.sessions_max,
        };
        appliance.serve_iscsi(iscsi::Iscsi::new(
            appliance.context(),
            settings,
            workers.clone(),
        ));
    }

    if config.smb.port != 0 {
        let smb = smb::Smb::new(
            appliance.context(),
            config.smb.clone(),
            config.listen.clone(),
            appliance.mounts().clone(),
        );
        appliance.serve_smb(smb);
    }

    let is_root = rustix::process::geteuid().is_root();
    if config.mount.automatic && is_root {
        appliance.serve_devices(devices::Devices::new(
            appliance.context(),
            appliance.mounts(),
        ));
    }
    Ok(server)
}

/// Makes the NFS service, without sockets; its calls to clients are carried from now on.
fn nfs_server(appliance: &Arc<Appliance>, config: &Config) -> anyhow::Result<::nfs::Server> {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let verifier = u64::try_from(since_epoch.as_nanos()).unwrap_or(0);
    let (client_calls, calls) = nfs_callbacks::queue();
    let server = ::nfs::Server::new(::nfs::ServerConfig {
        nfs_port: config.nfs.port,
        boot_verifier: verifier,
        secret: random_secret()?,
        record: Box::new(nfs_clients::ClientFile(appliance.state().clone())),
        resolver: Box::new(resolve::HostNames::new(appliance.config().listen.clone())),
        versions: nfs_versions(&config.nfs),
        locks: appliance.mounts().locks().clone(),
        // Without NFS no client can come back that would have to be waited for.
        reclaims: match config.nfs.enabled {
            true => appliance.engine().reclaim_grace().clone(),
            false => Arc::default(),
        },
        client_calls: Box::new(client_calls),
        host_name: rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned(),
        kerberos: nfs_kerberos::acceptor(config.nfs.kerberos_keytab.as_deref()),
    });
    tokio::spawn(nfs_callbacks::carry(calls, server.clone()));
    Ok(server)
}

/// What serves NFS with TLS, if it is to be.
fn nfs_tls(appliance: &Appliance, config: &manage::config::Nfs) -> Option<Arc<nfs_tls::NfsTls>> {
    let addresses = appliance.config().listen.iter().copied();
    let names = console::certificate_names(appliance, addresses);
    let directory = appliance.state().path().to_owned();
    config
        .tls
        .then(|| nfs_tls::NfsTls::new(directory, names, config.tls_clients.clone()))
}

/// Opens the socket at which commands are taken; none where the disk of the state directory takes nothing: what is served goes on.
fn listen_for_commands(socket: &Path, config: &Config) -> anyhow::Result<Option<UnixListener>> {
    let control = match manage::control::listen(socket) {
        Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => {
            tracing::error!(
                target: SANBOX,
                "no commands are taken from shells, and no change of settings is kept: {}: {error}",
                socket.display()
            );
            return Ok(None);
        }
        control => control.with_context(|| format!("listening at {}", socket.display()))?,
    };
    if config.control.users {
        manage::control::open_to_users(socket)
            .with_context(|| format!("opening {} to users", socket.display()))?;
    }
    Ok(Some(control))
}

/// Tells the NFS server the time, and the log what it has met.
async fn tick(appliance: Arc<Appliance>, server: ::nfs::Server) {
    let start = tokio::time::Instant::now();
    let mut each = tokio::time::interval(Duration::from_secs(1));
    let mut reclaiming = server.reclaiming_clients();
    let mut revoked = 0;
    loop {
        let now = each.tick().await.duration_since(start);
        server.tick(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
        let still = server.reclaiming_clients();
        if let (Some(missing), None) = (reclaiming, still) {
            tracing::info!(
                target: NFS,
                "clients of NFSv4 reclaim no more; {missing} did not say that they are done"
            );
        }
        reclaiming = still;
        let delegations = server.delegations();
        if delegations.revoked > revoked {
            tracing::warn!(
                target: NFS,
                "clients of NFSv4 have lost {} delegated files that they did not give back; {} are delegated",
                delegations.revoked - revoked,
                delegations.held
            );
        }
        revoked = delegations.revoked;
        note_replays(&appliance);
        for (client, version) in server.take_refused_versions() {
            tracing::warn!(
                target: NFS,
                "{client} asked for NFSv{version}, which is not served (see `versions` under [nfs])"
            );
        }
    }
}

async fn serve_metrics(appliance: &Arc<Appliance>, config: &Config) -> Option<JoinHandle<()>> {
    match config.metrics.port {
        0 => None,
        port => match metrics::listen(port).await {
            Ok(listener) => Some(tokio::spawn(metrics::serve(listener, appliance.clone()))),
            Err(error) => {
                tracing::warn!(target: SANBOX, "no metrics at port {port}: {error}");
                None
            }
        },
    }
}

/// Begins to send metrics and traces where a collector is named.
fn export(appliance: &Arc<Appliance>, config: &Config) -> Option<Arc<OtelExporter>> {
    match OtelExporter::new(&config.otel, appliance.host_name()) {
        Ok(exporter) => {
            let exporter = Arc::new(exporter?);
            let (running, appliance) = (exporter.clone(), Arc::downgrade(appliance));
            tokio::spawn(async move { running.run(appliance).await });
            Some(exporter)
        }
        Err(error) => {
            tracing::error!(target: SANBOX, "no metrics and traces are sent: {error:#}");
            None
        }
    }
}

/// Opens the pools that are known as imported.
async fn open_pools(appliance: &Appliance) {
    appliance.clear_stale_mounts().await;
    for known in appliance.pools().await {
        match known {
            KnownPool::Open(pool) => {
                tracing::info!(target: SANBOX, "pool '{}' is open", pool.name());
            }
            KnownPool::Closed(cached, error) => {
                tracing::error!(
                    target: SANBOX,
                    "pool '{}' cannot be opened: {error}",
                    cached.name
                );
            }
        }
    }
    appliance.context().all_may_be_served().await;
    appliance.datasets_changed().await;
}

/// Closes the pools at the end of the process, unless a second signal ends it first.
async fn close_pools(appliance: &Appliance) -> anyhow::Result<()> {
    let interrupted_again = async {
        // One ^C often arrives as several signals; only one well after the first means it.
        tokio::time::sleep(REPEATED_SIGNAL_TIMEOUT).await;
        match signal(SignalKind::interrupt()) {
            // Listening anew: what came before does not count.
            Ok(mut again) => while again.recv().await.is_none() {},
            Err(_) => std::future::pending().await,
        }
    };
    let pools: Vec<String> = appliance
        .engine()
        .pools()
        .iter()
        .map(|pool| format!("'{}'", pool.name()))
        .collect();
    let awaited = format!(
        "mounts to be released and pools to be written out: {}",
        pools.join(", ")
    );
    tokio::select! {
        closed = log_while_waiting(&awaited, appliance.close()) => closed.context("writing out the pools"),
        () = interrupted_again => bail!("ended before the pools were written out, as a crash would"),
    }
}

/// Keeps the history, reports alerts, and serves the console.
async fn manage(appliance: Arc<Appliance>, opened: anyhow::Result<Arc<Api>>) {
    match opened {
        Ok(api) => {
            let watching = history::watch(Arc::downgrade(&appliance), api.clone());
            let served = api.clone();
            let console = async {
                if appliance.config().console.port != 0 {
                    console::serve(appliance.clone(), served).await;
                }
            };
            let checking = alerts::watch(Arc::downgrade(&appliance), api.clone());
            let host = appliance.host_name().unwrap_or_default();
            let settings = appliance.alert_settings().subscribe();
            let telling = notify::serve(settings, api.alerts.clone(), host);
            let settings = appliance.alert_settings().subscribe();
            let host = appliance.host_name().unwrap_or_default();
            let reporting = reports::send_when_due(settings, api.clone(), host);
            let certifying = acme::keep(Arc::downgrade(&appliance), api.clone());
            tokio::join!(telling, checking, watching, reporting, console, certifying);
        }
        Err(error) => {
            tracing::error!(target: SANBOX, "no console, no users and no log of jobs: {error:#}");
        }
    }
}

/// Logs how the last run ended, when not in order.
fn note_start(appliance: &Appliance) {
    tracing::info!(
        target: SANBOX,
        "version {}, process {}",
        env!("CARGO_PKG_VERSION"),
        std::process::id()
    );
    match appliance.state().mark_running() {
        Ok(false) => {}
        Ok(true) => tracing::warn!(
            target: SANBOX,
            "the last run did not end in order: it was killed, or the machine went down. What was acknowledged is in the pools \
             and their intent logs, which are replayed as datasets are opened"
        ),
        Err(error) => tracing::warn!(target: SANBOX, "{error}"),
    }
}

/// Logs what the intent logs held of datasets that were opened since the last call.
fn note_replays(appliance: &Appliance) {
    for pool in appliance.engine().pools() {
        for replay in pool.take_replays() {
            tracing::info!(
                target: SANBOX,
                "intent log of {}: {} records replayed in {:.1} s",
                replay.dataset,
                replay.records,
                replay.took.as_secs_f64()
            );
        }
    }
}

/// Reads the configuration again: what can change while the daemon runs does, and the log names the rest.
async fn reload(appliance: &Appliance, before: &mut Config) {
    let path = appliance.state().config();
    let config = match tokio::task::spawn_blocking(move || Config::read(&path)).await {
        Ok(Ok(config)) => config,
        Ok(Err(error)) => {
            return tracing::error!(target: SANBOX, "SIGHUP: {error}; nothing is changed");
        }
        Err(_) => return,
    };
    let levels = Levels::default().with(&config.log.level);
    let levels = match levels {
        Ok(levels) => levels,
        Err(why) => {
            return tracing::error!(
                target: SANBOX,
                "SIGHUP: [log] level: {why}; nothing is changed"
            );
        }
    };
    let tunables = match tuning::from_config(&config.tuning) {
        Ok(tunables) => tunables,
        Err(why) => return tracing::error!(target: SANBOX, "SIGHUP: {why}; nothing is changed"),
    };
    if config.log.level != before.log.level
        && let Err(why) = logging::set_levels(levels)
    {
        tracing::error!(target: SANBOX, "SIGHUP: the levels of the log: {why}");
    }
    if config.tuning != before.tuning {
        appliance.set_tunables(tunables).await;
    }
    if config.alerts != before.alerts {
        appliance
            .alert_settings()
            .send_replace(config.alerts.clone());
    }
    if config.acme != before.acme {
        let settings = appliance.acme().settings();
        settings.send_replace(config.acme.clone());
    }
    let waiting: Vec<&str> = [
        ("listen", config.listen != before.listen),
        ("memory", config.memory != before.memory),
        ("[nfs]", config.nfs != before.nfs),
        ("[nbd]", config.nbd != before.nbd),
        ("[iscsi]", config.iscsi != before.iscsi),
        ("[smb]", config.smb != before.smb),
        ("[mount]", config.mount != before.mount),
        ("[metrics]", config.metrics != before.metrics),
        ("[console]", config.console != before.console),
        ("[control]", config.control != before.control),
        ("[policies]", config.policies != before.policies),
        ("[replication]", config.replication != before.replication),
        ("[log] format", config.log.format != before.log.format),
    ]
    .into_iter()
    .filter_map(|(name, changed)| changed.then_some(name))
    .collect();
    *before = config;
    tracing::info!(target: SANBOX, "SIGHUP: the configuration was read again");
    if !waiting.is_empty() {
        tracing::warn!(
            target: SANBOX,
            "changes of {} take effect at the next start",
            waiting.join(", ")
        );
    }
}

/// Waits for the last work of this process, and logs every few seconds what it is that is waited for.
async fn log_while_waiting<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let began = tokio::time::Instant::now();
    loop {
        match tokio::time::timeout(AWAITED_EVERY, &mut work).await {
            Ok(outcome) => return outcome,
            Err(_) => tracing::warn!(
                target: SANBOX,
                "still waiting for {what} ({} s)",
                began.elapsed().as_secs()
            ),
        }
    }
}

/// Takes as many file descriptors as the system allows this process: every connection and disk needs one, and the usual
/// limit of 1024 is for programs that call select(2). Each key that is loaded locks a page.
fn raise_limits() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    for resource in [Resource::Nofile, Resource::Memlock] {
        let mut limit = getrlimit(resource);
        limit.current = limit.maximum;
        // As before, if not.
        let _ = setrlimit(resource, limit);
    }
}

/// Tells the service manager, if there is one (sd_notify(3)).
fn notify(state: &str) {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let Ok(socket) = UnixDatagram::unbound() else {
        return;
    };
    let path = path.to_string_lossy();
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path.as_ref()),
    };
    if let Ok(address) = address {
        let _ = socket.send_to_addr(state.as_bytes(), &address);
    }
}

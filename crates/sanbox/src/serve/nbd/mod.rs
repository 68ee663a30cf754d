//! Volumes by NBD: the sockets, and which volumes are offered at which. The protocol is the crate `nbd`.
//!
//! The socket in the state directory, which only its owner can reach, offers every volume and volume snapshot. The TCP port offers
//! those volumes whose property `org.sanbox:nbd` is `on` or `readonly`, and is open only while there is one. Everything is
//! bounded: connections, requests in flight on each, bytes of requests held in all.
//!
//! Several connections may share a volume: a flush covers what any of them was told is written.

mod connection;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ::nbd::{Export, Exports};
use engine::VolumeHandle;
use engine::property::{DatasetKind, Value};
use manage::replication::{FENCED_PROPERTY, fence_of};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::admission::{Admission, AdmissionLimits};
use crate::appliance::context::Context;
use crate::appliance::followed::FollowedDatasets;
use crate::logging::NBD;

/// The property of a volume that offers it at the TCP port.
pub(crate) const PROPERTY: &str = "org.sanbox:nbd";
/// Bytes of requests held at once over all connections, in KiB (the semaphore's unit).
const REQUEST_KIB_MAX: usize = 256 << 10;

/// Settings of the server.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The socket; `None` for none.
    pub(crate) socket: Option<PathBuf>,
    /// Addresses of the TCP port; empty is this machine only.
    pub(crate) addresses: Vec<IpAddr>,
    /// The TCP port; `None` for none.
    pub(crate) port: Option<u16>,
    /// Connections at once.
    pub(crate) connections_max: usize,
}

/// The server and its sockets.
pub(crate) struct Server {
    settings: Settings,
    shared: Arc<Shared>,
    tasks: tokio::sync::Mutex<Tasks>,
}

#[derive(Default)]
struct Tasks {
    socket: Option<JoinHandle<()>>,
    tcp: Vec<JoinHandle<()>>,
}

/// What connections share.
struct Shared {
    context: Weak<Context>,
    volumes: FollowedDatasets,
    admission: Arc<Admission>,
    /// In KiB.
    memory: Arc<Semaphore>,
}

/// Which volumes are offered at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExportScope {
    /// All, to the owner of the state directory.
    AllVolumes,
    /// Those whose property says so, to every client that reaches the TCP port.
    ByProperty,
}

/// The exports of a connection.
struct OfferedExports {
    shared: Arc<Shared>,
    scope: ExportScope,
}

impl Server {
    pub(crate) fn new(context: &Arc<Context>, settings: Settings) -> Self {
        let shared = Shared {
            context: Arc::downgrade(context),
            volumes: FollowedDatasets::new(
                &[DatasetKind::Volume],
                &[PROPERTY, FENCED_PROPERTY],
                |_| true,
            ),
            admission: Admission::new(AdmissionLimits {
                connections_max: settings.connections_max,
                ..AdmissionLimits::default()
            }),
            memory: {
                let bytes = context.memory_plan().for_clients(REQUEST_KIB_MAX << 10);
                Arc::new(Semaphore::new(bytes >> 10))
            },
        };
        Self {
            settings,
            shared: Arc::new(shared),
            tasks: tokio::sync::Mutex::default(),
        }
    }

    /// Opens the socket in the state directory.
    pub(crate) async fn open(&self) {
        let Some(path) = &self.settings.socket else {
            return;
        };
        let _ = std::fs::remove_file(path);
        let listener = match UnixListener::bind(path) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(
                    target: NBD,
                    "NBD cannot be served at {}: {error}",
                    path.display()
                );
                return;
            }
        };
        // The state directory is its owner's alone already; this is for directories made otherwise.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        if let Err(error) = std::fs::set_permissions(path, mode) {
            tracing::warn!(target: NBD, "{}: {error}", path.display());
            return;
        }
        let shared = self.shared.clone();
        self.tasks.lock().await.socket = Some(tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        shared.serve(stream.into_split(), ExportScope::AllVolumes, None);
                    }
                    Err(error) => pause(&error).await,
                }
            }
        }));
    }

    /// Opens or closes the TCP port as volumes ask for it. Connections that exist go on.
    pub(crate) async fn follow(&self) {
        let Some(port) = self.settings.port else {
            return;
        };
        let wanted = !self
            .shared
            .offered(ExportScope::ByProperty)
            .await
            .is_empty();
        let mut tasks = self.tasks.lock().await;
        if wanted != tasks.tcp.is_empty() {
            return;
        }
        for task in tasks.tcp.drain(..) {
            task.abort();
        }
        if !wanted {
            return;
        }
        let addresses = match self.settings.addresses.as_slice() {
            [] => &[IpAddr::V4(Ipv4Addr::LOCALHOST)],
            chosen => chosen,
        };
        for address in addresses {
            let address = SocketAddr::new(*address, port);
            match TcpListener::bind(address).await {
                Ok(listener) => {
                    tracing::info!(target: NBD, "NBD is served at {address}");
                    let shared = self.shared.clone();
                    tasks.tcp.push(tokio::spawn(async move {
                        loop {
                            match listener.accept().await {
                                Ok((stream, peer)) => {
                                    let _ = stream.set_nodelay(true);
                                    let halves = stream.into_split();
                                    let scope = ExportScope::ByProperty;
                                    shared.serve(halves, scope, Some(peer.ip()));
                                }
                                Err(error) => pause(&error).await,
                            }
                        }
                    }));
                }
                Err(error) => {
                    tracing::error!(target: NBD, "NBD cannot be served at {address}: {error}");
                }
            }
        }
    }

    /// Ends listening.
    pub(crate) async fn close(&self) {
        let mut tasks = self.tasks.lock().await;
        for task in tasks.socket.take().into_iter().chain(tasks.tcp.drain(..)) {
            task.abort();
        }
        if let Some(path) = &self.settings.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

async fn pause(error: &std::io::Error) {
    // Out of descriptors, most likely: existing connections free some.
    tracing::warn!(target: NBD, "an NBD connection could not be accepted: {error}");
    tokio::time::sleep(Duration::from_millis(200)).await;
}

impl Shared {
    /// Serves a connection in a task of its own; one too many is closed, and its client tries again later.
    fn serve<R, W>(self: &Arc<Self>, halves: (R, W), scope: ExportScope, client: Option<IpAddr>)
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let Some(permit) = self.admission.admit(client) else {
            return;
        };
        let exports = OfferedExports {
            shared: self.clone(),
            scope,
        };
        let (reader, writer) = halves;
        tokio::spawn(connection::serve(reader, writer, exports, permit));
    }

    /// The volumes that are offered, by name, and whether only for reading.
    async fn offered(&self, scope: ExportScope) -> Vec<(String, bool)> {
        let Some(context) = self.context.upgrade() else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for served in self.volumes.read(&context).await {
            for info in served.datasets {
                let property = info.property(PROPERTY).map(|property| &property.value);
                let offered = match (scope, property) {
                    (ExportScope::AllVolumes, _) => Some(false),
                    (ExportScope::ByProperty, _) if fence_of(&info).is_some() => None,
                    (ExportScope::ByProperty, Some(Value::Text(text))) => match text.as_str() {
                        "on" => Some(false),
                        "readonly" => Some(true),
                        _ => None,
                    },
                    (ExportScope::ByProperty, _) => None,
                };
                found.extend(offered.map(|read_only| (info.name.clone(), read_only)));
            }
        }
        found
    }
}

impl OfferedExports {
    /// The memory that all requests share, in KiB.
    fn memory(&self) -> Arc<Semaphore> {
        self.shared.memory.clone()
    }
}

impl Exports for OfferedExports {
    type Volume = VolumeHandle;

    async fn names(&self) -> Vec<String> {
        let offered = self.shared.offered(self.scope).await;
        offered.into_iter().map(|(name, _)| name).collect()
    }

    async fn open(&self, name: &str) -> Option<Export<VolumeHandle>> {
        let context = self.shared.context.upgrade()?;
        let read_only = match self.scope {
            ExportScope::AllVolumes => false,
            ExportScope::ByProperty => {
                let offered = self.shared.offered(self.scope).await;
                offered.into_iter().find(|(offered, _)| offered == name)?.1
            }
        };
        let pool = context.engine().pool_of(name).ok()?;
        let volume = pool.open_volume(name).await.ok()?;
        let info = volume.info().await.ok()?;
        Some(Export {
            volume,
            size: info.size,
            block_size: info.block_size,
            volume_read_only: info.read_only,
            read_only,
        })
    }
}

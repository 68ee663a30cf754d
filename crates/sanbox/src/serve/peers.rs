//! The port at which other appliances replicate: open while there is a peer that was invited or an invitation, or where addresses are set.
//!
//! Guarantees: connections at once are bounded, as a whole and for one client; a handshake that takes long ends; who is no peer gets no
//! further than the handshake unless an invitation waits.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use manage::api::InvitationView;
use manage::config::Config;
use manage::database::seconds_since_epoch;
use manage::peer::pairing::Grant;
use manage::peer::{Fingerprint, Host, Peer, PeerServer, Visitor};
use manage::replication::{LocalEndpoint, ReplicationError, Switchover};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::appliance::Appliance;
use crate::logging::REPLICATION;
use crate::peers::{HANDSHAKE_TIMEOUT, OwnIdentity, TRANSFER_BYTES, settled};
use crate::serve::admission::{Admission, AdmissionLimits};

/// How often is looked whether the port is needed, beside when peers change.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How long the port may take to open.
const OPEN_MAX: Duration = Duration::from_secs(5);
/// Connections of one client, as a share of all: a job has one or two.
const CLIENT_SHARE: usize = 2;

/// Invites another appliance to what is granted, once this one can be reached.
///
/// # Errors
/// Why not, in words.
pub(crate) async fn invite(appliance: &Appliance, grant: Grant) -> Result<InvitationView, String> {
    if !appliance.is_daemon() {
        return Err(
            "no daemon runs that a peer could reach: start 'sanbox serve' first".to_owned(),
        );
    }
    if appliance.config().replication.port == 0 {
        return Err("no peer is answered: [replication] port is 0 in sanbox.toml".to_owned());
    }
    for dataset in &grant.datasets {
        let known = appliance.pool_of(dataset).await;
        known.map_err(|error| format!("cannot invite to '{dataset}': {error}"))?;
    }
    let service = appliance.peers();
    let own = service.own().await?;
    let code = service.book().invite(grant, seconds_since_epoch());
    let code = code.map_err(|error| error.to_string())?;
    let mut listening = service.listening.subscribe();
    let waited = timeout(OPEN_MAX, listening.wait_for(Option::is_some)).await;
    let at = match waited {
        Ok(Ok(at)) => at.clone().unwrap_or_else(|| Ok(Vec::new())),
        _ => Ok(Vec::new()),
    };
    let at = at.map_err(|why| format!("no peer can be answered: {why}"))?;
    let first = at
        .first()
        .ok_or("no peer can be answered: the port does not open (see the log)")?;
    let host = appliance
        .host_name()
        .filter(|_| first.ip().is_unspecified());
    let address = match host {
        Some(host) => format!("{host}:{}", first.port()),
        None => first.to_string(),
    };
    Ok(InvitationView {
        code: code.to_string(),
        address,
        certificate: own.fingerprint.to_string(),
    })
}

/// Answers peers until the appliance is gone.
pub(super) async fn keep(appliance: Weak<Appliance>) {
    let mut told: Option<String> = None;
    let mut open: Option<JoinSet<()>> = None;
    let Some(mut changes) = appliance
        .upgrade()
        .map(|appliance| appliance.peers().book().watch())
    else {
        return;
    };
    loop {
        let Some(now) = appliance.upgrade() else {
            return;
        };
        match (is_needed(&now), open.is_some()) {
            (true, false) => match begin(&now).await {
                Ok((listening, accepting)) => {
                    let at: Vec<String> = listening.iter().map(ToString::to_string).collect();
                    tracing::info!(target: REPLICATION, "peers are answered at {}", at.join(", "));
                    now.peers().listening.send_replace(Some(Ok(listening)));
                    open = Some(accepting);
                    told = None;
                }
                Err(why) => {
                    if told.as_ref() != Some(&why) {
                        tracing::error!(target: REPLICATION, "no peer is answered: {why}");
                    }
                    told = Some(why.clone());
                    now.peers().listening.send_replace(Some(Err(why)));
                }
            },
            (false, true) => {
                open = None;
                now.peers().listening.send_replace(None);
                tracing::info!(target: REPLICATION, "no peer is left to be answered: the port is closed");
            }
            (false, false) | (true, true) => {}
        }
        drop(now);
        // The book lives as long as the appliance.
        let _ = timeout(LOOK_EVERY, changes.changed()).await;
    }
}

/// Whether anything may come.
fn is_needed(appliance: &Appliance) -> bool {
    let settings = &appliance.config().replication;
    if settings.port == 0 {
        return false;
    }
    let book = appliance.peers().book();
    let comes = |peer: &Peer| peer.push || peer.pull;
    !settings.listen.is_empty()
        || book.is_inviting(seconds_since_epoch())
        || book.peers().is_ok_and(|peers| peers.peer.iter().any(comes))
}

/// Where to listen: as chosen, or everywhere, since peers are other machines.
fn addresses(config: &Config) -> Vec<SocketAddr> {
    let everywhere = [IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
    let chosen = match (
        config.replication.listen.as_slice(),
        config.listen.as_slice(),
    ) {
        ([], []) => &everywhere,
        ([], chosen) | (chosen, _) => chosen,
    };
    let port = config.replication.port;
    chosen
        .iter()
        .map(|address| SocketAddr::new(*address, port))
        .collect()
}

/// Opens the port. What is returned answers until it is dropped.
async fn begin(appliance: &Arc<Appliance>) -> Result<(Vec<SocketAddr>, JoinSet<()>), String> {
    let own = appliance.peers().own().await?;
    let mut listeners = Vec::new();
    for address in addresses(appliance.config()) {
        let listener = TcpListener::bind(address).await;
        listeners.push(listener.map_err(|error| format!("{address}: {error}"))?);
    }
    let server = Arc::new(Listening::new(appliance, &own)?);
    let at = listeners
        .iter()
        .filter_map(|listener| listener.local_addr().ok());
    let at = at.collect();
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn(accept(listener, server.clone()));
    }
    Ok((at, accepting))
}

/// What the connections share.
struct Listening {
    tls: TlsAcceptor,
    server: Arc<PeerServer>,
    admission: Arc<Admission>,
}

impl Listening {
    fn new(appliance: &Arc<Appliance>, own: &OwnIdentity) -> Result<Self, String> {
        let book = appliance.peers().book();
        let tls = own.server(book).map_err(|error| format!("{error:#}"))?;
        let host = PeerHost(Arc::downgrade(appliance));
        let most = appliance
            .config()
            .replication
            .connections_max
            .max(CLIENT_SHARE);
        Ok(Self {
            tls: TlsAcceptor::from(Arc::new(tls)),
            server: PeerServer::new(book.clone(), Box::new(host), own.fingerprint),
            admission: Admission::new(AdmissionLimits {
                connections_max: most,
                client_max: most / CLIENT_SHARE,
                ..AdmissionLimits::default()
            }),
        })
    }
}

async fn accept(listener: TcpListener, server: Arc<Listening>) {
    // Connections end with the port.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, peer)) => {
                // One too many is turned away.
                if let Some(permit) = server.admission.admit(Some(peer.ip())) {
                    let server = server.clone();
                    connections.spawn(async move {
                        let _permit = permit;
                        connection(stream, peer, &server).await;
                    });
                }
            }
            // No descriptor is left: others may close theirs.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn connection(stream: TcpStream, peer: SocketAddr, server: &Listening) {
    let handshake = server.tls.accept(settled(stream));
    let mut stream = match timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            return tracing::debug!(target: REPLICATION, "{peer}: no handshake: {error}");
        }
        Err(_) => return,
    };
    stream.get_mut().1.set_buffer_limit(Some(TRANSFER_BYTES));
    let shown = stream.get_ref().1.peer_certificates();
    let Some(certificate) = shown.and_then(|chain| chain.first()) else {
        return;
    };
    let visitor = Visitor {
        certificate: Fingerprint::of(certificate),
        address: peer.ip(),
    };
    if let Err(error) = server.server.serve(Box::new(stream), visitor).await {
        tracing::debug!(target: REPLICATION, "{peer}: {error}");
    }
}

/// What the server asks of the appliance.
struct PeerHost(Weak<Appliance>);

impl Host for PeerHost {
    fn side<'a>(
        &'a self,
        pool: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Switchover>, ReplicationError>> {
        async move {
            let unreachable = |why: String| ReplicationError::Unreachable {
                place: format!("pool '{pool}'"),
                why,
            };
            let appliance = self.0.upgrade();
            let appliance = appliance.ok_or_else(|| unreachable("it is ending".to_owned()))?;
            let opened = appliance.pool(pool).await;
            let opened = opened.map_err(|error| unreachable(error.to_string()))?;
            Ok(Box::new(LocalEndpoint::new(opened)) as Box<dyn Switchover>)
        }
        .boxed()
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        async {
            if let Some(appliance) = self.0.upgrade() {
                appliance.datasets_changed().await;
            }
        }
        .boxed()
    }

    fn put_in_use<'a>(&'a self, peer: &'a str, datasets: &'a [String]) -> BoxFuture<'a, ()> {
        async move {
            let Some(appliance) = self.0.upgrade() else {
                return;
            };
            let names = datasets.join(", ");
            tracing::warn!(target: REPLICATION, "peer '{peer}' put in use in place of their sources: {names}");
            if let Some(first) = datasets.first()
                && let Ok(pool) = appliance.pool_of(first).await
            {
                appliance.mount_all_created(&pool, datasets).await;
            }
            appliance.datasets_changed().await;
        }
        .boxed()
    }

    fn note(&self, peer: &str, from: IpAddr, event: &str) {
        tracing::info!(target: REPLICATION, "peer '{peer}' at {from}: {event}");
        if let Some(api) = self.0.upgrade().and_then(|appliance| appliance.api()) {
            api.audit.note(peer, &from.to_string(), event);
        }
    }

    fn now(&self) -> u64 {
        seconds_since_epoch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_answered_everywhere_unless_addresses_are_chosen() {
        let mut config = Config::default();
        let at = |config: &Config| addresses(config)[0].to_string();
        assert_eq!(at(&config), "0.0.0.0:8444");
        config.listen = vec!["192.0.2.1".parse().expect("an address")];
        assert_eq!(at(&config), "192.0.2.1:8444");
        config.replication.listen = vec!["192.0.2.2".parse().expect("an address")];
        assert_eq!(at(&config), "192.0.2.2:8444");
    }
}

//! What manages the appliance beside its pools: users, keys, jobs and the API behind which they are. The console serves it to browsers,
//! commands use it directly.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::UNIX_EPOCH;

use anyhow::Context as _;
use engine::PoolHandle;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use manage::accounts::{Refusal, Role};
use manage::acme::AcmeProgress;
use manage::alerts::channel::Channel;
use manage::api::{
    AccessReport, AcmeView, Api, Backend, CertificateView, ChannelSetting, Delegate, Device,
    DeviceContent, InitiatorSession, InvitationView, OidcProof, Ports, Settings, Share,
};
use manage::config::{Acme, Alerts};
use manage::database::Opened;
use manage::jobs::StartedCommand;
use manage::peer::PeerBook;
use manage::peer::pairing::Grant;
use manage::policy::Hooks;
use manage::replication::Replications;
use manage::samba::status::SmbStatus;
use manage::state::SUPPORT_BUNDLE;
use manage::targets::Targets;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use zeroize::Zeroizing;

use crate::appliance::Appliance;
use crate::cli::Caller;
use crate::cli::input::Input;
use crate::cli::sanbox::access;
use crate::cli::sanbox::remote_path::RemotePath;
use crate::logging::{self, CONSOLE};
use crate::serve::control::{self, GivenCommand, RunningCommand};
use crate::serve::disks::Asked;
use crate::serve::login;
use crate::serve::peers;
use crate::tuning;

fn ending() -> Refusal {
    Refusal::Unavailable("the appliance is ending".to_owned())
}

/// What the API sees of the appliance.
struct ApplianceBackend {
    appliance: Weak<Appliance>,
    asked: Asked,
    replications: Arc<Replications>,
    peers: Arc<PeerBook>,
}

impl Backend for ApplianceBackend {
    fn open_pools(&self) -> Vec<PoolHandle> {
        let appliance = self.appliance.upgrade();
        appliance.map_or_else(Vec::new, |appliance| appliance.open_pools())
    }

    fn closed_pools(&self) -> Vec<String> {
        let Some(appliance) = self.appliance.upgrade() else {
            return Vec::new();
        };
        let open = appliance.open_pools();
        let is_open = |name: &String| open.iter().any(|pool| pool.name() == name);
        let mut names = appliance.remembered_pools();
        names.retain(|name| !is_open(name));
        names
    }

    fn smb_status(&self) -> BoxFuture<'static, Option<SmbStatus>> {
        let appliance = self.appliance.upgrade();
        async move { appliance?.smb_status().await }.boxed()
    }

    fn start(
        &self,
        tool: String,
        arguments: Vec<String>,
        input: Option<Zeroizing<Vec<u8>>>,
        delegate: Option<Delegate>,
    ) -> io::Result<StartedCommand> {
        let ending = || io::Error::other("the appliance is ending");
        let appliance = self.appliance.upgrade().ok_or_else(ending)?;
        let subject = delegate.map(|delegate| control::subject_of(&appliance, delegate));
        let given = GivenCommand {
            caller: Caller {
                directory: PathBuf::from("/"),
                uid: subject.as_ref().map_or(0, |subject| subject.uid),
                ..Caller::default()
            },
            subject,
            tool,
            arguments,
            input: input.map(Input::of),
            stream: None,
        };
        let RunningCommand {
            output,
            exit,
            undo,
            abort,
        } = control::start(appliance, given)?;
        let aborted = abort.clone();
        Ok(StartedCommand {
            output: stream::unfold(output, |mut output| async {
                let (_, bytes) = output.recv().await?;
                Some((bytes, output))
            })
            .boxed(),
            exit: async move {
                match exit.await {
                    Ok(exit) => Some(exit.0),
                    Err(_) if aborted.is_aborted() => None,
                    // A command that panicked is reported as an error; the daemon goes on.
                    Err(_) => Some(1),
                }
            }
            .boxed(),
            undo: async move { undo.await.ok() }.boxed(),
            cancel: Box::new(move || abort.abort()),
        })
    }

    fn devices(&self) -> BoxFuture<'_, Result<Vec<Device>, String>> {
        async {
            let Some(appliance) = self.appliance.upgrade() else {
                return Ok(Vec::new());
            };
            let directories = &appliance.config().console.devices;
            self.asked
                .devices(appliance.state().path(), directories)
                .await
        }
        .boxed()
    }

    fn contents(&self, paths: Vec<String>) -> BoxFuture<'_, Vec<DeviceContent>> {
        async {
            match self.appliance.upgrade() {
                Some(appliance) => self.asked.contents(appliance.engine(), paths).await,
                None => vec![DeviceContent::Unanswered; paths.len()],
            }
        }
        .boxed()
    }

    fn shares(&self) -> Vec<Share> {
        let appliance = self.appliance.upgrade();
        appliance.map_or_else(Vec::new, |appliance| appliance.shares())
    }

    fn targets(&self) -> BoxFuture<'_, Result<Targets, String>> {
        async {
            let Some(appliance) = self.appliance.upgrade() else {
                return Ok(Targets::default());
            };
            let read = move || appliance.state().read_targets();
            match tokio::task::spawn_blocking(read).await {
                Ok(read) => read.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            }
        }
        .boxed()
    }

    fn initiator_sessions(&self) -> Vec<InitiatorSession> {
        let sessions = self.appliance.upgrade();
        let sessions = sessions.map_or_else(Vec::new, |appliance| appliance.iscsi_sessions());
        let known = sessions.into_iter().filter(|s| !s.target.is_empty());
        let view = |session: iscsi::SessionInfo| InitiatorSession {
            target: session.target,
            initiator: session.initiator,
            addresses: session.peers.iter().map(ToString::to_string).collect(),
        };
        known.map(view).collect()
    }

    fn settings(&self) -> BoxFuture<'_, Settings> {
        async {
            let Some(appliance) = self.appliance.upgrade() else {
                return Settings::default();
            };
            let directory = appliance.state().path().to_owned();
            let set = appliance.acme().settings().borrow().clone();
            let running = appliance.acme().is_trying();
            let read = tokio::task::spawn_blocking(move || {
                let acme = acme(&directory, set, running);
                (
                    certificate(&directory),
                    Some(acme),
                    support_made(&directory),
                )
            });
            let (certificate, acme, support_made) = read.await.unwrap_or_default();
            Settings {
                tunables: tuning::views(&appliance.tunables()),
                log_levels: logging::levels().map(|levels| levels.to_string()),
                log_modules: logging::MODULES,
                certificate,
                acme,
                support_made,
                channels: channels(&appliance.alert_settings().borrow()),
                report_every: {
                    let every = appliance.alert_settings().borrow().report.every;
                    every.as_str().to_owned()
                },
                state_directory: appliance.state().path().to_string_lossy().into_owned(),
            }
        }
        .boxed()
    }

    fn replications(&self) -> Arc<Replications> {
        self.replications.clone()
    }

    fn peers(&self) -> Arc<PeerBook> {
        self.peers.clone()
    }

    fn invite(&self, grant: Grant) -> BoxFuture<'_, Result<InvitationView, String>> {
        async {
            match self.appliance.upgrade() {
                Some(appliance) => peers::invite(&appliance, grant).await,
                None => Err("the appliance is ending".to_owned()),
            }
        }
        .boxed()
    }

    fn host_name(&self) -> String {
        let appliance = self.appliance.upgrade();
        let name = appliance.and_then(|appliance| appliance.host_name());
        name.unwrap_or_default()
    }

    fn asks_directory(&self) -> bool {
        let appliance = self.appliance.upgrade();
        appliance.is_some_and(|appliance| appliance.config().login.ldap.is_on())
    }

    fn ask_directory(
        &self,
        name: String,
        password: Zeroizing<String>,
    ) -> BoxFuture<'_, Result<Role, Refusal>> {
        async move {
            let appliance = self.appliance.upgrade().ok_or_else(ending)?;
            login::ask_directory(&appliance.config().login.ldap, &name, &password).await
        }
        .boxed()
    }

    fn provider(&self) -> Option<String> {
        let appliance = self.appliance.upgrade()?;
        let oidc = &appliance.config().login.oidc;
        oidc.is_on().then(|| oidc.name.clone())
    }

    fn provider_address(&self, proof: OidcProof) -> BoxFuture<'_, Result<String, String>> {
        async move {
            let appliance = self.appliance.upgrade().ok_or("the appliance is ending")?;
            login::provider_address(&appliance.config().login.oidc, proof).await
        }
        .boxed()
    }

    fn ask_provider(
        &self,
        code: String,
        proof: OidcProof,
    ) -> BoxFuture<'_, Result<(String, Option<Role>), Refusal>> {
        async move {
            let appliance = self.appliance.upgrade().ok_or_else(ending)?;
            login::ask_provider(&appliance.config().login.oidc, &code, proof).await
        }
        .boxed()
    }

    fn support_bundle(&self) -> BoxFuture<'_, io::Result<Vec<u8>>> {
        async {
            let ending = || io::Error::other("the appliance is ending");
            let appliance = self.appliance.upgrade().ok_or_else(ending)?;
            let path = appliance.state().path().join(SUPPORT_BUNDLE);
            let read = tokio::task::spawn_blocking(move || std::fs::read(path));
            read.await.map_err(io::Error::other)?
        }
        .boxed()
    }

    fn access(
        &self,
        user: String,
        dataset: String,
        path: Vec<String>,
    ) -> BoxFuture<'_, Result<AccessReport, String>> {
        async move {
            let appliance = self.appliance.upgrade().ok_or("the appliance is ending")?;
            access::report(&appliance, &user, &RemotePath { dataset, path }).await
        }
        .boxed()
    }

    fn hooks(&self) -> Hooks {
        let appliance = self.appliance.upgrade();
        appliance.map_or_else(Hooks::default, |appliance| appliance.hooks().clone())
    }

    fn ports(&self) -> Ports {
        let Some(appliance) = self.appliance.upgrade() else {
            return Ports::default();
        };
        let config = appliance.config();
        let on = |enabled, port| if enabled { port } else { 0 };
        Ports {
            nfs: on(config.nfs.enabled, config.nfs.port),
            iscsi: on(config.iscsi.enabled, config.iscsi.port),
        }
    }
}

/// Returns the fingerprint of the first certificate of a file.
pub(crate) fn fingerprint_of(pem: &[u8]) -> Option<String> {
    let der = CertificateDer::from_pem_slice(pem).ok()?;
    Some(manage::certificate::fingerprint(&der))
}

/// Reads what is told of the console's certificate.
fn certificate(state: &Path) -> Option<CertificateView> {
    let pem = std::fs::read(state.join("console-cert.pem")).ok()?;
    let der = CertificateDer::from_pem_slice(&pem).ok()?;
    Some(CertificateView {
        fingerprint: fingerprint_of(&pem)?,
        ends: manage::certificate::end_of_validity(&der),
    })
}

/// Reads what became of a certificate by ACME.
fn acme(state: &Path, set: Acme, running: bool) -> AcmeView {
    let progress = AcmeProgress::read(state);
    let in_use = crate::acme::fingerprint_in(state);
    AcmeView {
        next: progress.next_attempt(&set, in_use.as_deref()),
        names: set.names,
        contact: set.contact,
        directory: set.directory,
        challenge: set.challenge.as_str(),
        running,
        failure: progress.failure,
    }
}

/// When the archive of `sanbox support` was made.
fn support_made(state: &Path) -> Option<u64> {
    let data = std::fs::metadata(state.join(SUPPORT_BUNDLE)).ok()?;
    let since = data.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(since.as_secs())
}

/// The channels of alerts, by names without what lets in there.
fn channels(settings: &Alerts) -> Vec<ChannelSetting> {
    let channels = Channel::all(settings).into_iter();
    let told = channels.map(|channel| {
        let name = channel.name();
        let (_, to) = name.split_once(' ').unwrap_or_default();
        ChannelSetting {
            kind: channel.kind(),
            to: to.replace(',', ", "),
            severity: channel.severity().as_str().to_owned(),
            name,
        }
    });
    told.collect()
}

/// Opens what manages the appliance, once in a process. A state directory that cannot be written is logged.
///
/// # Errors
/// Its database can be neither read nor made.
pub(crate) async fn open(appliance: &Arc<Appliance>) -> anyhow::Result<Arc<Api>> {
    if let Some(api) = appliance.api() {
        return Ok(api);
    }
    let backend = ApplianceBackend {
        appliance: Arc::downgrade(appliance),
        asked: Asked::default(),
        replications: appliance.replications().clone(),
        peers: appliance.peers().book().clone(),
    };
    let database = appliance.state().path().join("state.db");
    let opened = Api::open(database, Box::new(backend)).await;
    let (api, how) = opened.context("opening the database of users and jobs")?;
    match how {
        Opened::Whole => {}
        Opened::Replaced(aside) => tracing::error!(
            target: CONSOLE,
            "the database of users and sessions was damaged and is kept as {}: set up the console anew",
            aside.display()
        ),
        Opened::ReadOnly(why) => tracing::warn!(
            target: CONSOLE,
            "users cannot be changed, and sessions end with this process: the state directory cannot be written ({why})"
        ),
    }
    appliance.keep_api(api.clone());
    Ok(api)
}

/// The name under which is noted when the settings were exported.
pub(crate) const EXPORTED: &str = "config-export";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_told_without_what_lets_in_there() {
        let config = manage::config::Config::parse(
            "[[alerts.mail]]\nserver = 'mail:25'\nto = ['a@b', 'c@d']\nseverity = 'critical'\n\
             [[alerts.webhook]]\nurl = 'https://user:secret@hooks.example.org/services/TOKEN?key=KEY'\n",
        );
        let told = channels(&config.expect("parses").alerts);
        let told: Vec<_> = told
            .iter()
            .map(|one| (one.kind, one.to.as_str(), one.severity.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                ("mail", "a@b, c@d", "critical"),
                ("webhook", "hooks.example.org", "info")
            ]
        );
    }
}

//! The REST API `/api/v1`, and the files of the console: requests in, answers out, without sockets.
//!
//! Guarantees: a call that [`CALLS`] does not name is refused; each call is checked for the role that it needs before its handler runs; a
//! change needs the session's own header besides its cookie; no request waits for a disk without a bound (see `asking`). Which
//! sockets and which certificate there are, it does not know.

mod access;
mod alerts;
mod asking;
mod assets;
mod commands;
mod datasets;
mod disks;
mod files;
mod groups;
mod history;
mod keys;
mod live;
mod login;
mod peers;
mod policies;
mod pools;
mod problem;
mod replications;
mod report;
mod session;
mod settings;
mod shares;
mod smb;
mod ssh_keys;
mod support;
mod trash;
mod unread_body;
mod versions;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::{Json, Router};
use engine::PoolHandle;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use utoipa::OpenApi as _;
use utoipa::openapi::RefOr;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use zeroize::Zeroizing;

pub use access::{Access, CALLS};
pub use disks::{Device, DeviceContent, DeviceKind};
pub use files::{AccessAnswer, AccessReport};
pub use groups::machine_groups;
pub use login::OidcProof;
pub use peers::InvitationView;
pub use problem::Problem;
pub use session::{COOKIE, CSRF_HEADER};
pub use settings::{AcmeView, CertificateView, ChannelSetting, Settings, Tunable};
pub use shares::{InitiatorSession, Ports, Share};

use crate::accounts::{AccountError, Accounts, Refusal, Role, SessionUser};
use crate::alerts::Alerts;
use crate::audit::Audit;
use crate::commands as command_rules;
use crate::database::{Opened, seconds_since_epoch};
use crate::history::History;
use crate::jobs::{JobOrigin, JobView, Jobs, StartedCommand};
use crate::peer::PeerBook;
use crate::peer::pairing::Grant;
use crate::policy::Hooks;
use crate::replication::Replications;
use crate::samba::status::SmbStatus;
use crate::targets::Targets;
use asking::Asking;
use live::Sampler;

/// Bytes of a request's body.
const BODY_BYTES_MAX: usize = 64 << 10;
/// How long a request may take, its body included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Streams of events that are open at a time.
const EVENT_STREAMS_MAX: usize = 100;

/// A user who has not the role for a command, and gives it all the same: for what was delegated (`zfs allow`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegate {
    /// Name.
    pub user: String,
    /// Numbers of the groups that the user is in.
    pub groups: Vec<u32>,
}

/// What the API asks of the appliance.
pub trait Backend: Send + Sync + 'static {
    /// Returns the pools that are open.
    fn open_pools(&self) -> Vec<PoolHandle>;

    /// Returns the names of the pools that are known as imported and are not open; as far as known without waiting.
    fn closed_pools(&self) -> Vec<String>;

    /// Returns what is shared by SMB and what its clients do; `None` where SMB is not served.
    fn smb_status(&self) -> BoxFuture<'static, Option<SmbStatus>>;

    /// Starts a command: `zpool`, `zfs` or `sanbox`, and what follows the tool's name. `input` is what it reads. With a `delegate` it does
    /// only what was delegated to that user and those groups.
    ///
    /// # Errors
    /// No thread is left, or the appliance is ending.
    fn start(
        &self,
        tool: String,
        arguments: Vec<String>,
        input: Option<Zeroizing<Vec<u8>>>,
        delegate: Option<Delegate>,
    ) -> io::Result<StartedCommand>;

    /// Lists the disks of the machine and the files that serve as such.
    ///
    /// # Errors
    /// The machine does not answer, in words.
    fn devices(&self) -> BoxFuture<'_, Result<Vec<Device>, String>>;

    /// Says what some devices, which no open pool has, hold; each within a second.
    fn contents(&self, paths: Vec<String>) -> BoxFuture<'_, Vec<DeviceContent>>;

    /// Lists the datasets that are to be shared by NFS.
    fn shares(&self) -> Vec<Share>;

    /// Returns the definitions of the iSCSI targets.
    ///
    /// # Errors
    /// They cannot be read, in words.
    fn targets(&self) -> BoxFuture<'_, Result<Targets, String>>;

    /// Lists the sessions of iSCSI initiators.
    fn initiator_sessions(&self) -> Vec<InitiatorSession>;

    /// Says what is set for the whole appliance.
    fn settings(&self) -> BoxFuture<'_, Settings>;

    /// Returns the jobs of replication.
    fn replications(&self) -> Arc<Replications>;

    /// Returns the other appliances that are known.
    fn peers(&self) -> Arc<PeerBook>;

    /// Invites another appliance.
    ///
    /// # Errors
    /// Why not, in words.
    fn invite(&self, grant: Grant) -> BoxFuture<'_, Result<InvitationView, String>>;

    /// Returns the name of the appliance; empty where it has none.
    fn host_name(&self) -> String;

    /// Whether an LDAP directory is asked for users who have no password here.
    fn asks_directory(&self) -> bool;

    /// Asks the LDAP directory for the role of a user with this password.
    fn ask_directory(
        &self,
        name: String,
        password: Zeroizing<String>,
    ) -> BoxFuture<'_, Result<Role, Refusal>>;

    /// Returns what the OpenID Connect provider is called; none where there is none.
    fn provider(&self) -> Option<String>;

    /// Returns where a browser is sent to log in at the provider.
    ///
    /// # Errors
    /// The provider does not answer, or not as it should, in words.
    fn provider_address(&self, proof: OidcProof) -> BoxFuture<'_, Result<String, String>>;

    /// Asks the provider whose code this is: the user's name, and the role where the user has one here.
    fn ask_provider(
        &self,
        code: String,
        proof: OidcProof,
    ) -> BoxFuture<'_, Result<(String, Option<Role>), Refusal>>;

    /// Reads the archive that `sanbox support` made last.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    fn support_bundle(&self) -> BoxFuture<'_, io::Result<Vec<u8>>>;

    /// Says what a user may do with a file; the path is names below the root of the dataset.
    ///
    /// # Errors
    /// There is no such user or file, in words.
    fn access(
        &self,
        user: String,
        dataset: String,
        path: Vec<String>,
    ) -> BoxFuture<'_, Result<AccessReport, String>>;

    /// Returns the hooks of snapshot policies.
    fn hooks(&self) -> Hooks;

    /// Returns the ports of the services.
    fn ports(&self) -> Ports;
}

/// The client of a request: the server puts it among the request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// What the calls share.
pub struct Api {
    /// Users, sessions and keys.
    pub accounts: Accounts,
    /// The log of accounts.
    pub audit: Arc<Audit>,
    /// Commands that run and ran.
    pub jobs: Arc<Jobs>,
    /// What is wrong now, and was before.
    pub alerts: Arc<Alerts>,
    /// Where the time of requests went.
    pub history: Arc<History>,
    event_streams: Arc<Semaphore>,
    backend: Box<dyn Backend>,
    asking: Asking,
    sampler: Sampler,
}

impl Api {
    /// Opens what the API keeps in the database at `path`, and the history beside it, making them if need be.
    ///
    /// # Errors
    /// The database can be neither read nor made.
    pub async fn open(
        path: PathBuf,
        backend: Box<dyn Backend>,
    ) -> Result<(Arc<Self>, Opened), AccountError> {
        let history = History::open(path.with_file_name("history.db")).await;
        let (accounts, how) = Accounts::open(path, seconds_since_epoch()).await?;
        let database = accounts.database().clone();
        let jobs = Jobs::open(database.clone()).await?;
        backend.replications().keep_in(database.clone()).await?;
        let api = Self {
            audit: Audit::open(database.clone()).await?,
            alerts: Alerts::open(database, jobs.clone()).await?,
            jobs,
            history,
            accounts,
            event_streams: Arc::new(Semaphore::new(EVENT_STREAMS_MAX)),
            backend,
            asking: Asking::default(),
            sampler: Sampler::default(),
        };
        Ok((Arc::new(api), how))
    }

    /// Writes into the log of accounts what a user did.
    fn note(&self, user: &SessionUser, peer: SocketAddr, event: impl Into<String>) {
        let origin = peer.ip().to_canonical().to_string();
        self.audit.note(&user.shown(), &origin, event);
    }

    /// Starts a command that the appliance gives itself, as a job of `who`.
    ///
    /// # Errors
    /// No thread is left, or the appliance is ending.
    pub fn start_own(&self, tool: &str, arguments: Vec<String>, who: &str) -> io::Result<JobView> {
        let given = JobOrigin {
            user: who.to_owned(),
            origin: who.to_owned(),
            line: command_rules::line(tool, &arguments),
            change: command_rules::is_change(tool, &arguments),
        };
        let started = self.backend.start(tool.to_owned(), arguments, None, None)?;
        Ok(self.jobs.start(given, started))
    }

    /// Returns an open pool.
    fn pool(&self, name: &str) -> Result<PoolHandle, Problem> {
        let mut open = self.backend.open_pools().into_iter();
        match open.find(|pool| pool.name() == name) {
            Some(pool) => Ok(pool),
            None if self
                .backend
                .closed_pools()
                .iter()
                .any(|known| known == name) =>
            {
                let detail = format!("pool '{name}' is not open: 'zpool status {name}' says why");
                Err(Problem::new(StatusCode::CONFLICT, detail))
            }
            None => Err(Problem::not_found(format!("no such pool '{name}'"))),
        }
    }
}

#[derive(utoipa::OpenApi)]
#[openapi(info(
    title = "sanbox",
    description = "The API of a sanbox storage appliance. Sizes are in bytes, times in seconds since 1970 (UTC). Errors are problem details \
                   (RFC 9457). What people set has a tag (`ETag`); a change with it as `If-Match` \
                   is refused (412) when it was changed meanwhile. Lists take `limit`, `cursor` and `filter`; a list goes on while it gives \
                   a `next` cursor. Changes need the \
                   header `X-Sanbox-Csrf` with the value that the session tells. Scripts show an API key as `Authorization: Bearer KEY` \
                   in place of a session, and need no such header.",
    license(name = "MIT OR Apache-2.0")
))]
struct Description;

/// The calls about users, sessions and keys.
fn calls_of_accounts() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(session::setup_state, session::set_up))
        .routes(routes!(
            session::who_am_i,
            session::log_in,
            session::log_out
        ))
        .routes(routes!(login::list_ways))
        .routes(routes!(login::begin_oidc))
        .routes(routes!(login::finish_oidc))
        .routes(routes!(session::change_password))
        .routes(routes!(session::list_users, session::add_user))
        .routes(routes!(session::remove_user))
        .routes(routes!(groups::list_groups, groups::add_group))
        .routes(routes!(groups::remove_group))
        .routes(routes!(groups::change_group_role))
        .routes(routes!(groups::add_member, groups::remove_member))
        .routes(routes!(keys::change_role))
        .routes(routes!(keys::reset_password))
        .routes(routes!(keys::reset_totp))
        .routes(routes!(keys::list_keys, keys::make_key))
        .routes(routes!(keys::revoke_key))
        .routes(routes!(ssh_keys::list_ssh_keys, ssh_keys::add_ssh_key))
        .routes(routes!(ssh_keys::remove_ssh_key))
        .routes(routes!(
            keys::show_totp,
            keys::enrol_totp,
            keys::confirm_totp
        ))
        .routes(routes!(keys::remove_totp))
        .routes(routes!(keys::list_audit))
}

fn calls() -> OpenApiRouter<Arc<Api>> {
    calls_of_accounts()
        .routes(routes!(alerts::list_alerts))
        .routes(routes!(alerts::acknowledge_alert))
        .routes(routes!(alerts::mute_alert))
        .routes(routes!(alerts::reopen_alert))
        .routes(routes!(alerts::test_alerts))
        .routes(routes!(alerts::list_checks))
        .routes(routes!(alerts::check_history))
        .routes(routes!(history::show_history))
        .routes(routes!(history::explain))
        .routes(routes!(pools::version))
        .routes(routes!(pools::list_pools))
        .routes(routes!(pools::show_pool))
        .routes(routes!(disks::list_disks))
        .routes(routes!(disks::plan_pool))
        .routes(routes!(datasets::list_datasets))
        .routes(routes!(datasets::show_dataset))
        .routes(routes!(datasets::list_snapshots))
        .routes(routes!(policies::list_policies))
        .routes(routes!(policies::preview_policy))
        .routes(routes!(policies::why_snapshots))
        .routes(routes!(
            replications::list_replications,
            replications::create_replication
        ))
        .routes(routes!(
            replications::show_replication,
            replications::change_replication,
            replications::remove_replication
        ))
        .routes(routes!(replications::act_on_replication))
        .routes(routes!(replications::take_over_dataset))
        .routes(routes!(peers::list_peers, peers::add_peer))
        .routes(routes!(peers::invite_peer))
        .routes(routes!(peers::remove_peer))
        .routes(routes!(trash::list_trash))
        .routes(routes!(report::show_report))
        .routes(routes!(settings::show_settings))
        .routes(routes!(support::download_support))
        .routes(routes!(files::list_files))
        .routes(routes!(files::permissions))
        .routes(routes!(files::explain_access))
        .routes(routes!(files::download, files::upload))
        .routes(routes!(smb::show_smb))
        .routes(routes!(commands::give_command))
        .routes(routes!(commands::list_jobs))
        .routes(routes!(commands::show_job))
        .routes(routes!(commands::cancel_job))
        .routes(routes!(commands::retry_job))
        .routes(routes!(commands::show_undo))
        .routes(routes!(commands::job_output))
        .routes(routes!(commands::follow_events))
        .routes(routes!(commands::follow_samples))
        .routes(routes!(shares::list_shares))
        .routes(routes!(shares::list_targets))
}

/// Returns the description of the API: OpenAPI 3.1, as JSON.
///
/// # Panics
/// Never: the description has no value that JSON cannot hold.
#[must_use]
pub fn description() -> String {
    let (_, mut description) = calls().split_for_parts();
    for path in description.paths.paths.values_mut() {
        let PathItem {
            get,
            put,
            post,
            delete,
            patch,
            ..
        } = path;
        for call in [get, put, post, delete, patch].into_iter().flatten() {
            describe_answers(call);
        }
    }
    description
        .to_pretty_json()
        .expect("a description is plain data")
}

/// Says of each answer of a call what its status means, where nothing else is said: an answer has a description (OpenAPI 3.1.0, 4.8.17.1).
fn describe_answers(call: &mut Operation) {
    for (status, answer) in &mut call.responses.responses {
        if let RefOr::T(answer) = answer
            && answer.description.is_empty()
        {
            let status = status.parse::<StatusCode>().ok();
            let meaning = status.and_then(|status| status.canonical_reason());
            answer.description = meaning.unwrap_or("An answer").to_owned();
        }
    }
}

/// Returns the service. Every request carries a [`Peer`].
pub fn router(api: Arc<Api>) -> Router {
    let (router, _) = calls().split_for_parts();
    let text: Arc<str> = description().into();
    let openapi = move || async move {
        let kind = [(header::CONTENT_TYPE, "application/json")];
        (kind, text.to_string())
    };
    router
        .route("/api/v1/openapi.json", axum::routing::get(openapi))
        .route("/healthz", axum::routing::get(|| async { "ok\n" }))
        .layer(from_fn_with_state(api.clone(), versions::conditional))
        .layer(from_fn_with_state(api.clone(), access::authorise))
        .fallback(assets::serve)
        .method_not_allowed_fallback(|| async {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "not with this method")
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn(within_time))
        .layer(from_fn(unread_body::read_to_end))
        .layer(from_fn(secured))
        .with_state(api)
}

/// Ends requests that take too long: bodies that do not come. Uploads watch theirs by themselves.
async fn within_time(request: Request, next: Next) -> Result<Response, Problem> {
    if request.method() == Method::PUT && request.uri().path() == files::CONTENT {
        return Ok(next.run(request).await);
    }
    let answer = tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await;
    answer.map_err(|_| Problem::new(StatusCode::REQUEST_TIMEOUT, "the request took too long"))
}

/// Headers of each answer. There is no Strict-Transport-Security: with a certificate of our own it would lock people out.
const HEADERS: &[(&str, &str)] = &[
    (
        "content-security-policy",
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    (
        "permissions-policy",
        "camera=(), geolocation=(), microphone=()",
    ),
];

async fn secured(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

/// The body of a request, as JSON. Its type of content is asked for: pages of other sites cannot send it without being asked first.
struct Body<T>(T);

impl<T: DeserializeOwned> FromRequest<Arc<Api>> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, Problem> {
        match Json::from_request(request, api).await {
            Ok(Json(value)) => Ok(Self(value)),
            Err(rejection) => Err(bad_body(&rejection)),
        }
    }
}

fn bad_body(rejection: &JsonRejection) -> Problem {
    Problem::new(rejection.status(), rejection.body_text())
}

/// What the calls share, as handlers take it.
type Shared = State<Arc<Api>>;

#[cfg(test)]
mod tests;

//! Calls about other appliances that this one replicates with. What is changed is a command, as in a shell, but for an invitation: its code is in
//! the answer alone, and in no log.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path};
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::commands::give;
use super::{Api, Body, Peer as Client, Problem, Shared};
use crate::accounts::SessionUser;
use crate::jobs::JobView;
use crate::peer::pairing::{Code, Grant};
use crate::peer::{Peer, PeerError, check_address, check_name};

/// An invitation, as it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct InvitationView {
    /// What is given to the other appliance; good once, for 15 minutes.
    pub code: String,
    /// Where this one is reached, as `HOST:PORT`.
    pub address: String,
    /// The SHA-256 of this one's certificate.
    pub certificate: String,
}

/// Another appliance.
#[derive(Serialize, ToSchema)]
pub(super) struct PeerView {
    name: String,
    /// Where it is reached; empty where it comes here.
    address: String,
    /// The SHA-256 of its certificate.
    certificate: String,
    /// Datasets here that it reaches, with those below.
    datasets: Vec<String>,
    /// It may send there.
    push: bool,
    /// It may take what is there.
    pull: bool,
    /// It may put what it sent in use in place of the source, and take back what was written there.
    failover: bool,
}

impl From<&Peer> for PeerView {
    fn from(peer: &Peer) -> Self {
        Self {
            name: peer.name.clone(),
            address: peer.address.clone(),
            certificate: peer.certificate.to_string(),
            datasets: peer.datasets.clone(),
            push: peer.push,
            pull: peer.pull,
            failover: peer.failover,
        }
    }
}

/// Other appliances.
#[derive(Serialize, ToSchema)]
pub(super) struct PeerList {
    peers: Vec<PeerView>,
}

/// The code of an invitation that was made on another appliance.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PeerCode {
    /// What the other appliance is to be called here.
    name: String,
    /// Where it is reached, as `HOST:PORT`.
    address: String,
    /// The code.
    code: String,
}

/// Whom to invite, and to what.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PeerInvitation {
    /// What the peer is to be called here; empty: as it calls itself.
    #[serde(default)]
    name: String,
    /// Datasets here that it reaches, with those below.
    datasets: Vec<String>,
    /// It may send there.
    #[serde(default)]
    push: bool,
    /// It may take what is there.
    #[serde(default)]
    pull: bool,
    /// It may put what it sent in use in place of the source, and take back what was written there.
    #[serde(default)]
    failover: bool,
}

fn refused(error: &PeerError) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
}

fn peers(api: &Api) -> Result<std::sync::Arc<crate::peer::Peers>, Problem> {
    let unavailable =
        |error: PeerError| Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string());
    api.backend.peers().peers().map_err(unavailable)
}

/// Lists other appliances, in the order in which they were paired.
#[utoipa::path(get, path = "/api/v1/peers", responses((status = 200, body = PeerList), (status = 503, body = Problem)))]
pub(super) async fn list_peers(State(api): Shared) -> Result<Json<PeerList>, Problem> {
    let peers = peers(&api)?;
    Ok(Json(PeerList {
        peers: peers.peer.iter().map(PeerView::from).collect(),
    }))
}

/// Redeems the code of an invitation: `sanbox peer add`.
#[utoipa::path(post, path = "/api/v1/peers", request_body = PeerCode,
    responses((status = 202, body = JobView), (status = 403, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn add_peer(
    State(api): Shared,
    Extension(Client(client)): Extension<Client>,
    Extension(user): Extension<SessionUser>,
    Body(PeerCode {
        name,
        address,
        code,
    }): Body<PeerCode>,
) -> Result<Response, Problem> {
    check_name(&name).map_err(|error| refused(&error))?;
    check_address(&address).map_err(|error| refused(&error))?;
    let Some(code) = Code::parse(&code) else {
        let detail = "that is no code of an invitation (24 letters and digits)";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    };
    let words = ["peer", "add", &name, &address, &code.to_string()];
    let words = words.map(str::to_owned).to_vec();
    give(&api, client, user, ("sanbox".to_owned(), words))
}

/// Invites another appliance: `sanbox peer invite`. The code is shown once.
#[utoipa::path(post, path = "/api/v1/peers/invitations", request_body = PeerInvitation,
    responses((status = 200, body = InvitationView), (status = 403, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn invite_peer(
    State(api): Shared,
    Extension(Client(client)): Extension<Client>,
    Extension(user): Extension<SessionUser>,
    Body(wanted): Body<PeerInvitation>,
) -> Result<Json<InvitationView>, Problem> {
    let unprocessable = |why: String| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, why);
    if wanted.datasets.is_empty() || !wanted.push && !wanted.pull {
        let why =
            "what the peer reaches, and whether it sends there or takes from there, is missing";
        return Err(unprocessable(why.to_owned()));
    }
    if wanted.failover && !wanted.push {
        let why = "a peer that sends nothing there has nothing to fail over to";
        return Err(unprocessable(why.to_owned()));
    }
    let event = format!("invited a peer to {}", wanted.datasets.join(", "));
    let invited = api.backend.invite(Grant {
        name: wanted.name,
        datasets: wanted.datasets,
        push: wanted.push,
        pull: wanted.pull,
        failover: wanted.failover,
    });
    let invited = invited.await.map_err(unprocessable)?;
    api.audit
        .note(&user.shown(), &client.ip().to_string(), event);
    Ok(Json(invited))
}

/// Forgets another appliance: `sanbox peer remove`. It is cut off at once; what it sent stays.
#[utoipa::path(delete, path = "/api/v1/peers/{name}", params(("name" = String, Path)),
    responses((status = 202, body = JobView), (status = 403, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn remove_peer(
    State(api): Shared,
    Extension(Client(client)): Extension<Client>,
    Extension(user): Extension<SessionUser>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let name = name
        .map_err(|error| Problem::bad_request(error.body_text()))?
        .0;
    if peers(&api)?.named(&name).is_err() {
        return Err(Problem::not_found(format!("there is no peer '{name}'")));
    }
    let words = vec!["peer".to_owned(), "remove".to_owned(), name];
    give(&api, client, user, ("sanbox".to_owned(), words))
}

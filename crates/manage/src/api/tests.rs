//! The API without sockets: who may make which call, and what protects the calls.

use axum::body::Body as HttpBody;
use axum::http::{Method, Request as HttpRequest};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tower::ServiceExt as _;

use super::*;
use crate::accounts::Role;
use crate::database::seconds_since_epoch;

struct NoPools;

impl Backend for NoPools {
    fn open_pools(&self) -> Vec<PoolHandle> {
        Vec::new()
    }

    fn closed_pools(&self) -> Vec<String> {
        vec!["away".to_owned()]
    }

    /// A command that says its words, and ends with 0 unless it is `zpool wait`, which has to be cancelled.
    fn start(&self, tool: String, arguments: Vec<String>) -> io::Result<StartedCommand> {
        let (cancel, cancelled) = oneshot::channel::<()>();
        let waits = arguments[0] == "wait";
        let said = format!("{tool} {}\n", arguments.join(" ")).into_bytes();
        Ok(StartedCommand {
            output: stream::iter([said]).boxed(),
            exit: async move {
                match waits {
                    true => {
                        let _ = cancelled.await;
                        None
                    }
                    false => Some(0),
                }
            }
            .boxed(),
            cancel: Box::new(move || drop(cancel)),
        })
    }
}

const PASSWORD: &str = "correct horse battery";

/// An appliance with a user of each role.
struct World {
    _directory: tempfile::TempDir,
    router: Router,
    api: Arc<Api>,
}

struct Answer {
    status: u16,
    headers: axum::http::HeaderMap,
    body: Value,
}

/// What a client shows: cookie, and header of changes.
#[derive(Clone, Default)]
struct Shown {
    cookie: Option<String>,
    csrf: Option<String>,
}

impl World {
    async fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("state.db");
        let opened = Accounts::open(path, seconds_since_epoch()).await;
        let accounts = opened.expect("opens").0;
        let jobs = Jobs::open(accounts.database().clone()).await;
        let api = Api::new(accounts, jobs.expect("read"), Box::new(NoPools));
        for role in [Role::Owner, Role::Operator, Role::Viewer] {
            let now = seconds_since_epoch();
            let added = api.accounts.add_user(role.as_str(), PASSWORD, role, now);
            added.await.expect("added");
        }
        Self {
            _directory: directory,
            router: router(api.clone()),
            api,
        }
    }

    async fn ask(
        &self,
        method: &Method,
        path: &str,
        shown: &Shown,
        body: Option<&Value>,
    ) -> Answer {
        let mut request = HttpRequest::builder().method(method).uri(path);
        if let Some(cookie) = &shown.cookie {
            request = request.header("cookie", format!("theme=dark; {COOKIE}={cookie}"));
        }
        if let Some(csrf) = &shown.csrf {
            request = request.header(CSRF_HEADER, csrf);
        }
        let content = match body {
            Some(body) => {
                request = request.header("content-type", "application/json");
                HttpBody::from(body.to_string())
            }
            None => HttpBody::empty(),
        };
        let peer = Peer("127.0.0.1:9".parse().expect("an address"));
        let request = request.extension(peer).body(content).expect("a request");
        let response = self.router.clone().oneshot(request).await.expect("answers");
        let (parts, body) = response.into_parts();
        // A stream of events has no end.
        let bytes = match parts.headers.get("content-type") {
            Some(kind) if kind == "text/event-stream" => Default::default(),
            _ => body.collect().await.expect("a body").to_bytes(),
        };
        Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        }
    }

    async fn session(&self, role: Role) -> Shown {
        let now = seconds_since_epoch();
        let address = "127.0.0.1".parse().expect("an address");
        let new = self
            .api
            .accounts
            .log_in(role.as_str(), PASSWORD, address, now);
        let new = new.await.expect("in");
        Shown {
            cookie: Some(new.secret),
            csrf: Some(new.session.csrf),
        }
    }
}

/// Each role times each call: refused without a session, refused below the role, and otherwise let through to the handler.
#[tokio::test]
async fn each_role_makes_the_calls_it_may() {
    let world = World::new().await;
    for (method, path, access) in CALLS {
        let path = path.replace("{name}", "nothing").replace("{id}", "0");
        let shown = Shown::default();
        let status = world.ask(method, &path, &shown, None).await.status;
        match access {
            Access::Public => assert!(!matches!(status, 401 | 403), "{method} {path}: {status}"),
            Access::Role(_) => assert_eq!(status, 401, "{method} {path} without a session"),
        }
        for role in [Role::Viewer, Role::Operator, Role::Owner] {
            let shown = world.session(role).await;
            let status = world.ask(method, &path, &shown, None).await.status;
            match access {
                Access::Role(least) if role < *least => {
                    assert_eq!(status, 403, "{method} {path} as {role:?}");
                }
                _ => assert!(
                    !matches!(status, 401 | 403 | 405 | 500),
                    "{method} {path} as {role:?}: {status}"
                ),
            }
            if matches!(access, Access::Role(_)) && !method.is_safe() {
                let shown = world.session(role).await;
                for csrf in [None, Some("nonsense".to_owned())] {
                    let shown = Shown {
                        csrf,
                        ..shown.clone()
                    };
                    let status = world.ask(method, &path, &shown, None).await.status;
                    assert_eq!(status, 403, "{method} {path} without the header");
                }
            }
        }
    }
}

/// What is described is in the table of calls, and the other way round.
#[test]
fn the_description_names_every_call() {
    let description: Value = serde_json::from_str(&description()).expect("JSON");
    assert_eq!(description["openapi"], "3.1.0");
    let mut described = Vec::new();
    for (path, calls) in description["paths"].as_object().expect("paths") {
        for method in calls.as_object().expect("methods").keys() {
            described.push((method.to_uppercase(), path.clone()));
        }
    }
    let undescribed = ["/healthz", "/api/v1/openapi.json"];
    let mut listed: Vec<(String, String)> = CALLS
        .iter()
        .filter(|(_, path, _)| !undescribed.contains(path))
        .map(|(method, path, _)| (method.to_string(), (*path).to_owned()))
        .collect();
    described.sort();
    listed.sort();
    assert_eq!(described, listed);
}

#[tokio::test]
async fn cookies_and_headers_protect_the_session() {
    let world = World::new().await;
    let nobody = Shown::default();
    let credentials = json!({"name": "viewer", "password": PASSWORD});
    let path = "/api/v1/session";
    let begun = world
        .ask(&Method::POST, path, &nobody, Some(&credentials))
        .await;
    assert_eq!(begun.status, 201);
    let cookie = begun.headers["set-cookie"].to_str().expect("text");
    for part in ["; Secure", "; HttpOnly", "; SameSite=Strict", "; Path=/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let secret = cookie.split(['=', ';']).nth(1).expect("a value").to_owned();
    assert!(!begun.body.to_string().contains(&secret));
    let shown = Shown {
        cookie: Some(secret),
        csrf: begun.body["csrf"].as_str().map(str::to_owned),
    };
    let mine = world.ask(&Method::GET, path, &shown, None).await;
    assert_eq!(mine.body["name"], "viewer");
    for (name, value) in HEADERS {
        assert_eq!(mine.headers[*name], *value);
    }
    assert_eq!(mine.headers["cache-control"], "no-store");
    assert_eq!(
        world.ask(&Method::DELETE, path, &shown, None).await.status,
        204
    );
    assert_eq!(
        world.ask(&Method::GET, path, &shown, None).await.status,
        401
    );
}

#[tokio::test]
async fn bad_requests_are_problems() {
    let world = World::new().await;
    let nobody = Shown::default();
    let viewer = world.session(Role::Viewer).await;
    let long = json!({"name": "a".repeat(BODY_BYTES_MAX), "password": ""});
    let extra = json!({"name": "viewer", "password": PASSWORD, "role": "owner"});
    let wrong = json!({"name": "viewer", "password": "not the password"});
    let session = "/api/v1/session";
    let get = &Method::GET;
    let post = &Method::POST;
    for (method, path, shown, body, status) in [
        (post, session, &nobody, None, 415),
        (post, session, &nobody, Some(&long), 413),
        (post, session, &nobody, Some(&extra), 422),
        (post, session, &nobody, Some(&wrong), 401),
        (get, "/api/v1/nothing", &nobody, None, 404),
        (&Method::PATCH, "/api/v1/pools", &viewer, None, 405),
        (get, "/api/v1/pools/none", &viewer, None, 404),
        (get, "/api/v1/pools/away", &viewer, None, 409),
        (get, "/api/v1/datasets?limit=0", &viewer, None, 400),
        (get, "/api/v1/datasets?sort=size", &viewer, None, 400),
        (get, "/api/v1/snapshots", &viewer, None, 400),
        (
            get,
            "/api/v1/snapshots?dataset=away/x&cursor=1",
            &viewer,
            None,
            400,
        ),
    ] {
        let answer = world.ask(method, path, shown, body).await;
        assert_eq!(answer.status, status, "{method} {path}");
        assert_eq!(
            answer.headers["content-type"], "application/problem+json",
            "{path}"
        );
        assert!(answer.body["detail"].is_string(), "{path}");
    }
}

#[tokio::test]
async fn too_many_failures_have_to_wait() {
    let world = World::new().await;
    let wrong = json!({"name": "viewer", "password": "not the password"});
    let nobody = Shown::default();
    let mut statuses = Vec::new();
    for _ in 0..8 {
        let answer = world
            .ask(&Method::POST, "/api/v1/session", &nobody, Some(&wrong))
            .await;
        if answer.status == 429 {
            assert!(answer.headers.contains_key("retry-after"));
        }
        statuses.push(answer.status);
    }
    assert_eq!(statuses[..5], [401; 5]);
    assert!(statuses.contains(&429), "{statuses:?}");
}

#[tokio::test]
async fn commands_are_jobs_of_those_who_may() {
    let world = World::new().await;
    let post = &Method::POST;
    let commands = "/api/v1/commands";
    let give = |tool: &str, words: &str| {
        let words: Vec<_> = words.split(' ').collect();
        json!({"tool": tool, "arguments": words})
    };
    let (viewer, operator) = (
        world.session(Role::Viewer).await,
        world.session(Role::Operator).await,
    );
    for (shown, command, status) in [
        (&viewer, give("zfs", "list tank"), 202),
        (&viewer, give("zfs", "snapshot tank@a"), 403),
        (&operator, give("zfs", "snapshot tank@a"), 202),
        (&operator, give("zfs", "set mountpoint=/etc tank"), 403),
        (&operator, give("zpool", "wait tank"), 403),
        (&operator, give("zfs", "send tank@a"), 422),
        (&operator, give("rm", "-rf /"), 422),
        (
            &operator,
            json!({"tool": "zfs", "arguments": ["list", "a\0b"]}),
            400,
        ),
        (&operator, json!({"tool": "zfs"}), 422),
    ] {
        let answer = world.ask(post, commands, shown, Some(&command)).await;
        assert_eq!(answer.status, status, "{command}: {}", answer.body);
    }
    let list = world
        .ask(&Method::GET, "/api/v1/jobs?limit=1", &viewer, None)
        .await
        .body;
    assert_eq!(list["jobs"][0]["command"], "zfs snapshot tank@a");
    assert_eq!(list["jobs"][0]["user"], "operator");
    let older = format!("/api/v1/jobs?cursor={}", list["next"]);
    let older = world.ask(&Method::GET, &older, &viewer, None).await.body;
    assert_eq!(older["jobs"][0]["command"], "zfs list tank");
    let output = "/api/v1/jobs/2/output?wait=5&offset=4";
    assert_eq!(
        world.ask(&Method::GET, output, &viewer, None).await.status,
        403
    );
    let said = world.ask(&Method::GET, output, &operator, None).await.body;
    assert_eq!(
        (&said["text"], &said["next"]),
        (&json!("snapshot tank@a\n"), &json!(20))
    );
    let owner = world.session(Role::Owner).await;
    let waits = world
        .ask(post, commands, &owner, Some(&give("zpool", "wait tank")))
        .await;
    let at = waits.headers["location"].to_str().expect("text").to_owned();
    let cancel = format!("{at}/cancel");
    assert_eq!(world.ask(post, &cancel, &operator, None).await.status, 403);
    assert_eq!(world.ask(post, &cancel, &owner, None).await.status, 204);
    let mut progress = world.api.jobs.progress(3).expect("a job");
    while world.ask(&Method::GET, &at, &viewer, None).await.body["state"] == "running" {
        progress.changed().await.expect("kept");
    }
    assert_eq!(
        world.ask(&Method::GET, &at, &viewer, None).await.body["state"],
        "cancelled"
    );
    assert_eq!(world.ask(post, &cancel, &owner, None).await.status, 409);
}

#[tokio::test]
async fn events_reach_an_open_session_and_no_ended_one() {
    let world = World::new().await;
    let shown = world.session(Role::Viewer).await;
    let cookie = format!("{COOKIE}={}", shown.cookie.as_deref().expect("one"));
    let request = HttpRequest::get("/api/v1/events").header("cookie", cookie);
    let peer = Peer("127.0.0.1:9".parse().expect("an address"));
    let request = request
        .extension(peer)
        .body(HttpBody::empty())
        .expect("a request");
    let response = world
        .router
        .clone()
        .oneshot(request)
        .await
        .expect("answers");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    let event = |data: &str| crate::jobs::Notice {
        event: "pool",
        data: data.to_owned(),
    };
    world.api.jobs.publish(event("{\"a\":1}"));
    let frame = body.frame().await.expect("an event").expect("whole");
    let bytes = frame.into_data().expect("data");
    assert_eq!(&bytes[..], b"event: pool\ndata: {\"a\":1}\n\n");
    assert_eq!(
        world
            .ask(&Method::DELETE, "/api/v1/session", &shown, None)
            .await
            .status,
        204
    );
    world.api.jobs.publish(event("{\"a\":2}"));
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn the_console_is_there_without_a_session_and_is_kept_by_browsers() {
    let world = World::new().await;
    let nobody = Shown::default();
    let page = world
        .ask(&Method::GET, "/datasets/tank%2Ffs", &nobody, None)
        .await;
    assert_eq!(page.status, 200);
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    assert_eq!(page.headers["cache-control"], "no-cache");
    for (name, value) in HEADERS {
        assert_eq!(page.headers[*name], *value);
    }
    let etag = page.headers["etag"].to_str().expect("text");
    let request = HttpRequest::get("/").header("if-none-match", format!("\"x\", {etag}"));
    let peer = Peer("127.0.0.1:9".parse().expect("an address"));
    let request = request
        .extension(peer)
        .body(HttpBody::empty())
        .expect("a request");
    let response = world
        .router
        .clone()
        .oneshot(request)
        .await
        .expect("answers");
    assert_eq!(response.status(), 304);
    assert_eq!(
        world.ask(&Method::POST, "/", &nobody, None).await.status,
        405
    );
    assert_eq!(
        world
            .ask(&Method::GET, "/api/v2/pools", &nobody, None)
            .await
            .status,
        404
    );
}

//! The API without sockets: who may make which call, and what protects the calls.

use axum::body::Body as HttpBody;
use axum::http::{Method, Request as HttpRequest};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tower::ServiceExt as _;

use super::*;
use crate::accounts::{NewKey, Role};
use crate::config::Hook;
use crate::replication::{CommonState, Job, ReplicationError, Report};

struct NoPools {
    replications: Arc<Replications>,
    peers: Arc<PeerBook>,
    /// There are an LDAP directory and a provider.
    knows_others: bool,
}

impl Backend for NoPools {
    fn host_name(&self) -> String {
        "box".to_owned()
    }

    fn open_pools(&self) -> Vec<PoolHandle> {
        Vec::new()
    }

    fn closed_pools(&self) -> Vec<String> {
        vec!["away".to_owned()]
    }

    fn smb_status(&self) -> BoxFuture<'static, Option<SmbStatus>> {
        let status = SmbStatus {
            version: "4.17.12".to_owned(),
            ..SmbStatus::default()
        };
        std::future::ready(Some(status)).boxed()
    }

    /// A command that says its words, and for which groups it is given, and ends with 0 unless it is `zpool wait`, which has to be cancelled.
    fn start(
        &self,
        tool: String,
        arguments: Vec<String>,
        input: Option<Zeroizing<Vec<u8>>>,
        delegate: Option<Delegate>,
    ) -> io::Result<StartedCommand> {
        let (cancel, cancelled) = oneshot::channel::<()>();
        let waits = arguments[0] == "wait";
        let read = input.map_or_else(String::new, |input| format!(" < {} bytes", input.len()));
        let groups = delegate.map_or_else(String::new, |delegate| {
            format!(" for {} {:?}", delegate.user, delegate.groups)
        });
        let said = format!("{tool} {}{read}{groups}\n", arguments.join(" ")).into_bytes();
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
            undo: async { None }.boxed(),
            cancel: Box::new(move || drop(cancel)),
        })
    }

    fn devices(&self) -> BoxFuture<'_, Result<Vec<Device>, String>> {
        async { Ok(Vec::new()) }.boxed()
    }

    fn contents(&self, paths: Vec<String>) -> BoxFuture<'_, Vec<DeviceContent>> {
        async move { paths.iter().map(|_| DeviceContent::Free).collect() }.boxed()
    }

    fn shares(&self) -> Vec<Share> {
        Vec::new()
    }

    fn targets(&self) -> BoxFuture<'_, Result<Targets, String>> {
        async { Ok(Targets::default()) }.boxed()
    }

    fn initiator_sessions(&self) -> Vec<InitiatorSession> {
        Vec::new()
    }

    fn settings(&self) -> BoxFuture<'_, Settings> {
        std::future::ready(Settings::default()).boxed()
    }

    fn replications(&self) -> Arc<Replications> {
        self.replications.clone()
    }

    fn peers(&self) -> Arc<PeerBook> {
        self.peers.clone()
    }

    fn invite(&self, grant: Grant) -> BoxFuture<'_, Result<InvitationView, String>> {
        let code = self.peers.invite(grant, seconds_since_epoch());
        let invited = code.map(|code| InvitationView {
            code: code.to_string(),
            address: "box:8444".to_owned(),
            certificate: String::new(),
        });
        std::future::ready(invited.map_err(|error| error.to_string())).boxed()
    }

    fn asks_directory(&self) -> bool {
        self.knows_others
    }

    /// Who is called as the password says has the role that the name says.
    fn ask_directory(
        &self,
        name: String,
        password: Zeroizing<String>,
    ) -> BoxFuture<'_, Result<Role, Refusal>> {
        let answer = match (password.as_str(), Role::from_name(&name)) {
            ("down", _) => Err(Refusal::Unavailable("no route to 10.0.0.1".to_owned())),
            ("right", role) => role.or(Some(Role::Operator)).ok_or(Refusal::NoRole),
            _ => Err(Refusal::Credentials),
        };
        std::future::ready(answer).boxed()
    }

    fn provider(&self) -> Option<String> {
        self.knows_others.then(|| "Example".to_owned())
    }

    fn provider_address(&self, proof: OidcProof) -> BoxFuture<'_, Result<String, String>> {
        let address = format!("https://id.example.org/?state={}", proof.state);
        std::future::ready(Ok(address)).boxed()
    }

    /// The code is the user's name; the proof has to be of the log-in that began.
    fn ask_provider(
        &self,
        code: String,
        proof: OidcProof,
    ) -> BoxFuture<'_, Result<(String, Option<Role>), Refusal>> {
        assert_ne!(proof.verifier.as_str(), proof.state);
        let answer = match code.as_str() {
            "wrong" => Err(Refusal::Credentials),
            "down" => Err(Refusal::Unavailable("no route to 10.0.0.1".to_owned())),
            "stranger" => Ok((code, None)),
            _ => Ok((code, Some(Role::Viewer))),
        };
        std::future::ready(answer).boxed()
    }

    fn support_bundle(&self) -> BoxFuture<'_, io::Result<Vec<u8>>> {
        std::future::ready(Ok(b"archive".to_vec())).boxed()
    }

    fn access(
        &self,
        user: String,
        _dataset: String,
        _path: Vec<String>,
    ) -> BoxFuture<'_, Result<AccessReport, String>> {
        std::future::ready(Err(format!("'{user}' is no user"))).boxed()
    }

    fn hooks(&self) -> Hooks {
        let defined = [("db".to_owned(), Hook::default())];
        Hooks::new(defined.into())
    }

    fn ports(&self) -> Ports {
        Ports::default()
    }
}

const PASSWORD: &str = "correct horse battery";

/// An appliance with a user of each role.
struct World {
    _directory: tempfile::TempDir,
    router: Router,
    api: Arc<Api>,
    replications: Arc<Replications>,
    begun: std::sync::Mutex<std::collections::BTreeMap<Role, Shown>>,
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
    key: Option<String>,
    /// What was seen of what is changed.
    if_match: Option<String>,
}

impl World {
    async fn new() -> Self {
        Self::with(false).await
    }

    /// A world with an LDAP directory and a provider, or without.
    async fn with(knows_others: bool) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("state.db");
        let replications = Replications::new(directory.path());
        let backend = NoPools {
            replications: replications.clone(),
            peers: PeerBook::new(directory.path()),
            knows_others,
        };
        let opened = Api::open(path, Box::new(backend)).await;
        let api = opened.expect("opens").0;
        for role in [Role::Owner, Role::Operator, Role::Viewer] {
            let now = seconds_since_epoch();
            let added = api
                .accounts
                .add_user(role.as_str(), Some(PASSWORD), role, now);
            added.await.expect("added");
        }
        Self {
            _directory: directory,
            router: router(api.clone()),
            api,
            replications,
            begun: std::sync::Mutex::default(),
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
        if let Some(key) = &shown.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        if let Some(tag) = &shown.if_match {
            request = request.header("if-match", tag);
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

    /// A session of the user with this role: one that was begun before, or a new one.
    async fn session(&self, role: Role) -> Shown {
        if let Some(begun) = self.begun.lock().expect("whole").get(&role)
            && let Some(cookie) = &begun.cookie
            && self
                .api
                .accounts
                .session(cookie, seconds_since_epoch())
                .is_some()
        {
            return begun.clone();
        }
        let now = seconds_since_epoch();
        let address = "127.0.0.1".parse().expect("an address");
        let new = self
            .api
            .accounts
            .log_in(role.as_str(), PASSWORD, None, address, now);
        let new = new.await.expect("in");
        let shown = Shown {
            cookie: Some(new.secret),
            csrf: Some(new.session.csrf),
            ..Shown::default()
        };
        let mut begun = self.begun.lock().expect("whole");
        begun.insert(role, shown.clone());
        shown
    }

    /// A key of the owner with this role, for these datasets.
    async fn key(&self, role: Role, datasets: &[&str]) -> Shown {
        let new = NewKey {
            name: "test".to_owned(),
            role: Some(role),
            datasets: datasets.iter().map(|name| (*name).to_owned()).collect(),
            expires: None,
        };
        let now = seconds_since_epoch();
        let made = self.api.accounts.make_key("owner", new, Role::Owner, now);
        Shown {
            key: Some(made.await.expect("made").1),
            ..Shown::default()
        }
    }
}

/// Each role times each call, with a session, a key, and a key for one dataset: refused without any, refused below the role, and
/// otherwise let through to the handler.
#[tokio::test]
async fn each_role_makes_the_calls_it_may() {
    let world = World::new().await;
    let mut keys = Vec::new();
    for role in [Role::Viewer, Role::Operator, Role::Owner] {
        let (all, one) = (world.key(role, &[]), world.key(role, &["tank/ci"]));
        keys.push((role, all.await, one.await));
    }
    for (method, path, access) in CALLS {
        let path = path
            .replace("{name}", "nothing")
            .replace("{action}", "run")
            .replace("{user}", "nobody")
            .replace("{id}", "0");
        let nobody = Shown::default();
        let wrong = Shown {
            key: Some("sanbox_0".to_owned()),
            ..Shown::default()
        };
        for shown in [&nobody, &wrong] {
            let status = world.ask(method, &path, shown, None).await.status;
            match access {
                Access::Public => {
                    assert!(!matches!(status, 401 | 403), "{method} {path}: {status}");
                }
                _ => assert_eq!(status, 401, "{method} {path} without a session"),
            }
        }
        for (role, key, key_for_dataset) in &keys {
            let role = *role;
            let within = access.role().is_none_or(|least| role >= least);
            let is_session = matches!(access, Access::Session(_));
            let is_of_datasets = matches!(access, Access::Public | Access::Datasets(_));
            for (how, allowed) in [
                ("session", within),
                ("key", within && !is_session),
                ("key for a dataset", within && is_of_datasets),
            ] {
                let shown = match how {
                    "session" => world.session(role).await,
                    "key" => key.clone(),
                    _ => key_for_dataset.clone(),
                };
                let answer = world.ask(method, &path, &shown, None).await;
                let refused = matches!(answer.status, 401 | 403 | 405 | 500);
                // What the handler of a call says about a dataset that the key does not reach.
                let beyond = answer.body["detail"]
                    .as_str()
                    .is_some_and(|why| why.contains("does not reach"));
                assert_eq!(
                    !refused || beyond,
                    allowed,
                    "{method} {path} as {role:?} by {how}: {} {}",
                    answer.status,
                    answer.body
                );
            }
            if access.role().is_some() && !method.is_safe() {
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

/// A key is made, used and revoked; one for a dataset reaches that alone.
#[tokio::test]
async fn keys_open_what_they_are_for() {
    let world = World::new().await;
    let (get, post, delete) = (&Method::GET, &Method::POST, &Method::DELETE);
    let operator = world.session(Role::Operator).await;
    let too_much = json!({"name": "ci", "role": "owner"});
    let refused = world
        .ask(post, "/api/v1/keys", &operator, Some(&too_much))
        .await;
    assert_eq!(refused.status, 422, "{}", refused.body);
    let wanted = json!({"name": "ci", "datasets": ["tank/ci"], "expires_seconds": 3600});
    let made = world
        .ask(post, "/api/v1/keys", &operator, Some(&wanted))
        .await;
    assert_eq!(made.status, 201, "{}", made.body);
    let shown = Shown {
        key: made.body["secret"].as_str().map(str::to_owned),
        ..Shown::default()
    };
    let command = |words: &str| {
        let words: Vec<_> = words.split(' ').collect();
        json!({"tool": "zfs", "arguments": words})
    };
    for (method, path, body, status) in [
        (get, "/api/v1/datasets?root=tank/ci", None, 404),
        (get, "/api/v1/datasets", None, 403),
        (get, "/api/v1/datasets/tank%2Fother", None, 403),
        (get, "/api/v1/snapshots?dataset=tank/cid", None, 403),
        (
            post,
            "/api/v1/commands",
            Some(command("snapshot tank/ci@a")),
            202,
        ),
        (
            post,
            "/api/v1/commands",
            Some(command("snapshot tank/b@a")),
            403,
        ),
        (
            post,
            "/api/v1/commands",
            Some(command("set exec=on tank/ci")),
            403,
        ),
        (get, "/api/v1/jobs/1", None, 200),
    ] {
        let answer = world.ask(method, path, &shown, body.as_ref()).await;
        assert_eq!(answer.status, status, "{path} {body:?}: {}", answer.body);
    }
    let job = world.ask(get, "/api/v1/jobs/1", &operator, None).await;
    assert_eq!(job.body["user"], "operator (key ci)");
    let other = world.key(Role::Owner, &["tank"]).await;
    assert_eq!(
        world.ask(get, "/api/v1/jobs/1", &other, None).await.status,
        403
    );
    let listed = world.ask(get, "/api/v1/keys", &operator, None).await.body;
    assert_eq!(listed.as_array().map(Vec::len), Some(1));
    assert!(
        !listed
            .to_string()
            .contains(shown.key.as_deref().expect("a key"))
    );
    let path = format!("/api/v1/keys/{}", listed[0]["id"]);
    let viewer = world.session(Role::Viewer).await;
    assert_eq!(world.ask(delete, &path, &viewer, None).await.status, 404);
    assert_eq!(world.ask(delete, &path, &operator, None).await.status, 204);
    let ended = world.ask(get, "/api/v1/version", &shown, None).await;
    assert_eq!(ended.status, 401);
    assert!(ended.headers.contains_key("www-authenticate"));
    let owner = world.session(Role::Owner).await;
    let audit = world
        .ask(get, "/api/v1/audit?filter=key", &owner, None)
        .await
        .body;
    assert_eq!(
        audit["entries"][0]["event"],
        "revoked key 1 'ci' of 'operator'"
    );
    assert_eq!(audit["entries"][1]["event"], "made key 1 'ci' (operator)");
}

/// Log-ins with a second factor, and what the log of accounts says of them.
#[tokio::test]
async fn a_second_factor_is_asked_for_behind_the_password() {
    let world = World::new().await;
    let nobody = Shown::default();
    let (post, put) = (&Method::POST, &Method::PUT);
    let viewer = world.session(Role::Viewer).await;
    let totp = "/api/v1/session/totp";
    let enrolment = world.ask(post, totp, &viewer, None).await;
    assert_eq!(enrolment.status, 201);
    assert!(
        enrolment.body["uri"]
            .as_str()
            .is_some_and(|uri| uri.starts_with("otpauth://totp/"))
    );
    let wrong = world
        .ask(put, totp, &viewer, Some(&json!({"code": "12"})))
        .await;
    assert_eq!(
        (wrong.status, &wrong.body["reason"]),
        (422, &json!("second-factor-wrong"))
    );
    let now = seconds_since_epoch();
    let secret = enrolment.body["secret"].as_str().expect("text");
    let code = crate::accounts::code_of_base32(secret, now).expect("a secret");
    let confirmed = world
        .ask(put, totp, &viewer, Some(&json!({"code": code})))
        .await;
    assert_eq!(confirmed.status, 200, "{}", confirmed.body);
    let recovery = confirmed.body["recovery_codes"][0].clone();
    let mut credentials = json!({"name": "viewer", "password": PASSWORD});
    let session = "/api/v1/session";
    let needed = world.ask(post, session, &nobody, Some(&credentials)).await;
    assert_eq!(
        (needed.status, &needed.body["reason"]),
        (401, &json!("second-factor-needed"))
    );
    credentials["code"] = json!("000000");
    let wrong = world.ask(post, session, &nobody, Some(&credentials)).await;
    assert_eq!(wrong.status, 422);
    credentials["code"] = recovery;
    let begun = world.ask(post, session, &nobody, Some(&credentials)).await;
    assert_eq!(begun.status, 201);
    let owner = world.session(Role::Owner).await;
    let reset = "/api/v1/users/viewer/totp";
    assert_eq!(
        world.ask(&Method::DELETE, reset, &owner, None).await.status,
        204
    );
    world.session(Role::Viewer).await;
    let events = world
        .ask(&Method::GET, "/api/v1/audit", &owner, None)
        .await
        .body;
    let events: Vec<_> = events["entries"]
        .as_array()
        .expect("entries")
        .iter()
        .map(|entry| entry["event"].as_str().expect("text").to_owned())
        .collect();
    assert_eq!(
        events,
        [
            "removed the second factor of 'viewer'",
            "logged in",
            "log-in failed: wrong code behind the right password",
            "turned the second factor on",
        ]
    );
}

/// Who is in a group has its role, and without the role for a command does what was delegated to the group; keys do not.
#[tokio::test]
async fn groups_give_roles_and_what_is_delegated_to_them() {
    let world = World::new().await;
    let (post, put, delete) = (&Method::POST, &Method::PUT, &Method::DELETE);
    let owner = world.session(Role::Owner).await;
    let viewer = world.session(Role::Viewer).await;
    let command = json!({"tool": "zfs", "arguments": ["snapshot", "tank/a@b"]});
    let pool = json!({"tool": "zpool", "arguments": ["scrub", "tank"]});
    let refused = world.ask(post, "/api/v1/commands", &viewer, Some(&command));
    assert_eq!(refused.await.status, 403);
    let group = json!({"name": "studio", "number": 4711});
    let made = world
        .ask(post, "/api/v1/groups", &owner, Some(&group))
        .await;
    assert_eq!((made.status, &made.body["number"]), (201, &json!(4711)));
    let twice = world
        .ask(post, "/api/v1/groups", &owner, Some(&group))
        .await;
    assert_eq!(twice.status, 409);
    let join = "/api/v1/groups/studio/members/viewer";
    assert_eq!(world.ask(put, join, &owner, None).await.status, 204);
    for (body, status) in [(&command, 202), (&pool, 403)] {
        let answer = world
            .ask(post, "/api/v1/commands", &viewer, Some(body))
            .await;
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
    }
    let output = "/api/v1/jobs/1/output?wait=10";
    let said = world.ask(&Method::GET, output, &viewer, None).await.body;
    assert_eq!(said["text"], "zfs snapshot tank/a@b for viewer [4711]\n");
    let new = NewKey {
        name: "viewers".to_owned(),
        role: None,
        datasets: Vec::new(),
        expires: None,
    };
    let now = seconds_since_epoch();
    let key = world
        .api
        .accounts
        .make_key("viewer", new, Role::Viewer, now);
    let key = Shown {
        key: Some(key.await.expect("made").1),
        ..Shown::default()
    };
    let by_key = world.ask(post, "/api/v1/commands", &key, Some(&command));
    assert_eq!(by_key.await.status, 403);
    let role = json!({"role": "operator"});
    let path = "/api/v1/groups/studio/role";
    assert_eq!(world.ask(put, path, &owner, Some(&role)).await.status, 204);
    let me = world
        .ask(&Method::GET, "/api/v1/session", &viewer, None)
        .await;
    assert_eq!(me.body["role"], "operator", "a session has it at once");
    let given = world
        .ask(post, "/api/v1/commands", &viewer, Some(&pool))
        .await;
    assert_eq!(given.status, 202);
    let stale = Shown {
        if_match: Some("\"old\"".to_owned()),
        ..owner.clone()
    };
    assert_eq!(world.ask(delete, join, &stale, None).await.status, 412);
    assert_eq!(world.ask(delete, join, &owner, None).await.status, 204);
    assert_eq!(world.ask(delete, join, &owner, None).await.status, 422);
    let again = world.ask(post, "/api/v1/commands", &viewer, Some(&command));
    assert_eq!(again.await.status, 403);
}

/// Who has no password here is asked for in the directory; what it says is told apart, and no more of it than is anybody's.
#[tokio::test]
async fn a_directory_lets_its_users_in() {
    let world = World::with(true).await;
    let nobody = Shown::default();
    let (get, post) = (&Method::GET, &Method::POST);
    let ways = world.ask(get, "/api/v1/login", &nobody, None).await.body;
    assert_eq!(ways, json!({"ldap": true, "oidc": "Example"}));
    for (name, password, status, said) in [
        ("viewer", PASSWORD, 201, ""),
        // A user of the appliance is never asked for elsewhere.
        ("viewer", "right", 401, "wrong name or password"),
        ("bob", "right", 201, ""),
        ("bob", "wrong", 401, "wrong name or password"),
        ("bob", "down", 503, "password of the appliance itself"),
        ("Not A Name", "right", 401, "wrong name or password"),
    ] {
        let body = json!({"name": name, "password": password});
        let answer = world
            .ask(post, "/api/v1/session", &nobody, Some(&body))
            .await;
        assert_eq!(answer.status, status, "{name} {password}: {}", answer.body);
        let detail = answer.body["detail"].as_str().unwrap_or_default();
        assert!(
            detail.contains(said) && !detail.contains("10.0.0.1"),
            "{detail}"
        );
    }
    let owner = world.session(Role::Owner).await;
    let users = world.ask(get, "/api/v1/users", &owner, None).await.body;
    assert_eq!(
        (&users[0]["name"], &users[0]["directory"]),
        (&json!("bob"), &json!("ldap"))
    );
    let log = "/api/v1/audit?filter=10.0.0.1";
    let log = world.ask(get, log, &owner, None).await.body;
    assert_eq!(
        log["entries"].as_array().map(Vec::len),
        Some(1),
        "an owner sees why: {log}"
    );
}

/// The browser that began a log-in by the provider ends it, with the code of that one, and nobody else.
#[tokio::test]
async fn a_provider_lets_in_the_browser_that_began() {
    let world = World::with(true).await;
    let nobody = Shown::default();
    let get = &Method::GET;
    let begin = || world.ask(get, "/api/v1/login/oidc", &nobody, None);
    let begun = begin().await;
    assert_eq!(begun.status, 303);
    let cookie = begun.headers["set-cookie"].to_str().expect("text");
    for part in [
        "__Host-",
        "; Secure",
        "; HttpOnly",
        "; SameSite=Lax",
        "; Path=/",
    ] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let secret = cookie.split(['=', ';']).nth(1).expect("a value").to_owned();
    let location = begun.headers["location"].to_str().expect("text");
    let state = location.split_once("state=").expect("a state").1.to_owned();
    assert!(
        !location.contains(&secret),
        "nothing there leads to the cookie"
    );
    // The other cookie of a request stands behind that of a session.
    let shown = Shown {
        cookie: Some(format!("x; __Host-sanbox-login={secret}")),
        ..Shown::default()
    };
    let other = begin().await;
    let other = other.headers["location"].to_str().expect("text").to_owned();
    let other = other.split_once("state=").expect("a state").1;
    let callback = "/api/v1/login/oidc/callback";
    for (shown, query, status) in [
        (&nobody, format!("code=ann&state={state}"), 403),
        (&shown, format!("code=ann&state={other}"), 403),
        (&shown, "code=ann".to_owned(), 403),
        (&shown, format!("state={state}&error=access_denied"), 401),
        (&shown, format!("state={state}"), 401),
        (&shown, format!("code=wrong&state={state}"), 401),
        (&shown, format!("code=down&state={state}"), 503),
        (&shown, format!("code=stranger&state={state}"), 403),
        // An owner of the appliance.
        (&shown, format!("code=owner&state={state}"), 403),
        (&shown, format!("code=ann&state={state}"), 200),
    ] {
        let path = format!("{callback}?{query}");
        let answer = world.ask(get, &path, shown, None).await;
        assert_eq!(answer.status, status, "{query}: {}", answer.body);
        let cookies: Vec<_> = answer.headers.get_all("set-cookie").iter().collect();
        let begins = |cookie: &&&axum::http::HeaderValue| {
            let cookie = cookie.to_str().expect("text");
            cookie.starts_with(COOKIE) && cookie.contains("SameSite=Strict")
        };
        assert_eq!(
            cookies.iter().filter(begins).count() == 1,
            status == 200,
            "{query}"
        );
    }
    let without = World::new().await;
    for path in ["/api/v1/login/oidc", callback] {
        assert_eq!(without.ask(get, path, &nobody, None).await.status, 404);
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
        ..Shown::default()
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
    let again = "/api/v1/jobs/2/retry";
    assert_eq!(world.ask(post, again, &viewer, None).await.status, 403);
    let given = world.ask(post, again, &operator, None).await;
    assert_eq!(
        (given.status, &given.body["command"]),
        (202, &json!("zfs snapshot tank@a"))
    );
    let chap = give(
        "sanbox",
        "target chap iqn.x --user a --secret topsecretwords",
    );
    let with_secret = world.ask(post, commands, &operator, Some(&chap)).await;
    let id = with_secret.body["id"].as_u64().expect("a number");
    let again = format!("/api/v1/jobs/{id}/retry");
    let refused = world.ask(post, &again, &operator, None).await;
    assert_eq!(refused.status, 409, "{}", refused.body);
    let owner = world.session(Role::Owner).await;
    let waits = world
        .ask(post, commands, &owner, Some(&give("zpool", "wait tank")))
        .await;
    let at = waits.headers["location"].to_str().expect("text").to_owned();
    let cancel = format!("{at}/cancel");
    assert_eq!(world.ask(post, &cancel, &operator, None).await.status, 403);
    assert_eq!(world.ask(post, &cancel, &owner, None).await.status, 204);
    let mut progress = world.api.jobs.progress(id + 1).expect("a job");
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

/// Codes of invitations are given to owners in a session, and are in no log.
#[tokio::test]
async fn peers_are_invited_added_and_removed_by_owners() {
    let world = World::new().await;
    let (get, post) = (&Method::GET, &Method::POST);
    let owner = world.session(Role::Owner).await;
    let operator = world.session(Role::Operator).await;
    let all = "/api/v1/peers";
    let invitations = "/api/v1/peers/invitations";
    let none = json!({"peers": []});
    assert_eq!(world.ask(get, all, &operator, None).await.body, none);
    let wanted = json!({"datasets": ["tank/vm"], "push": true});
    let invited = world.ask(post, invitations, &owner, Some(&wanted)).await;
    let code = invited.body["code"].as_str().expect("a code").to_owned();
    assert_eq!((invited.status, code.len()), (200, 29), "{}", invited.body);
    let redeem = |code: &str| json!({"name": "vault", "address": "vault:8444", "code": code});
    let added = world.ask(post, all, &owner, Some(&redeem(&code))).await;
    assert_eq!(added.status, 202, "{}", added.body);
    assert!(!added.body["command"].to_string().contains(&code[5..9]));
    let log = world.ask(get, "/api/v1/audit", &owner, None).await.body;
    assert!(
        log.to_string().contains("invited a peer to tank/vm"),
        "{log}"
    );
    assert!(!log.to_string().contains(&code));
    let nowhere = json!({"name": "vault", "address": "vault", "code": code});
    for (path, shown, body, status) in [
        (invitations, &operator, wanted.clone(), 403),
        (invitations, &owner, json!({"datasets": ["tank/vm"]}), 422),
        (
            invitations,
            &owner,
            json!({"datasets": [], "push": true}),
            422,
        ),
        (
            invitations,
            &owner,
            json!({"datasets": ["tank@s"], "push": true}),
            422,
        ),
        (all, &operator, redeem(&code), 403),
        (all, &owner, redeem("1234"), 422),
        (all, &owner, nowhere, 422),
    ] {
        let answer = world.ask(post, path, shown, Some(&body)).await;
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.body);
    }
    let gone = world
        .ask(&Method::DELETE, "/api/v1/peers/none", &owner, None)
        .await;
    assert_eq!(gone.status, 404);
}

/// A job of replication is shown as it stands, and what is done with it is the command that does it in a shell.
#[tokio::test]
async fn jobs_of_replication_are_shown_and_their_changes_are_commands() {
    let world = World::new().await;
    let (get, post, put) = (&Method::GET, &Method::POST, &Method::PUT);
    let owner = world.session(Role::Owner).await;
    let operator = world.session(Role::Operator).await;
    let all = "/api/v1/replications";
    let vm = "/api/v1/replications/vm";
    assert_eq!(
        world.ask(get, all, &operator, None).await.body,
        json!({"replications": []})
    );
    let wanted = json!({"name": "vm", "from": "tank/vm", "to": "back/vm", "recursive": true, "keep": "daily=30"});
    let made = world.ask(post, all, &owner, Some(&wanted)).await;
    assert_eq!(
        (made.status, &made.body["command"]),
        (
            202,
            &json!(
                "sanbox replication create vm --from=tank/vm --to=back/vm --recursive --keep=daily=30"
            )
        ),
        "{}",
        made.body
    );
    let job = Job {
        name: "vm".to_owned(),
        from: "tank/vm".to_owned(),
        to: "back/vm".to_owned(),
        recursive: true,
        keep: "daily=30".to_owned(),
        ..Job::default()
    };
    let added = world.replications.change(|jobs| jobs.add(job.clone()));
    added.expect("added");
    let bad = |key: &str, value: Value| {
        let mut bad = wanted.clone();
        bad[key] = value;
        bad
    };
    for (method, path, shown, body, status) in [
        (post, all, &owner, wanted.clone(), 409),
        (post, all, &owner, bad("name", json!("-n")), 422),
        (post, all, &owner, bad("name", json!("<b>")), 422),
        (post, all, &owner, bad("name", json!("a\nb")), 422),
        (post, all, &owner, bad("every", json!("often")), 422),
        (
            post,
            all,
            &owner,
            bad("from", json!("-oProxyCommand=x:tank")),
            422,
        ),
        (post, all, &owner, bad("paused", json!(true)), 422),
        (post, all, &operator, bad("name", json!("b")), 403),
        (put, vm, &owner, wanted.clone(), 409),
        (put, vm, &owner, bad("to", json!("back/other")), 422),
        (put, vm, &owner, bad("every", json!("1m")), 202),
        (
            put,
            "/api/v1/replications/none",
            &owner,
            wanted.clone(),
            404,
        ),
        (
            post,
            "/api/v1/replications/vm/run",
            &operator,
            json!({}),
            202,
        ),
        (
            post,
            "/api/v1/replications/vm/dance",
            &owner,
            json!({}),
            404,
        ),
        (
            post,
            "/api/v1/replications/none/run",
            &owner,
            json!({}),
            404,
        ),
        (
            post,
            "/api/v1/replications/vm/run?rollback=true",
            &owner,
            json!({}),
            422,
        ),
        (
            post,
            "/api/v1/replications/vm/failover",
            &operator,
            json!({}),
            403,
        ),
        (
            post,
            "/api/v1/replications/vm/failover?preview=true",
            &owner,
            json!({}),
            202,
        ),
        (
            post,
            "/api/v1/replications/vm/pause?preview=true",
            &owner,
            json!({}),
            422,
        ),
        (
            post,
            "/api/v1/replications/vm/adopt?rollback=true",
            &owner,
            json!({}),
            202,
        ),
    ] {
        let answer = world.ask(method, path, shown, Some(&body)).await;
        assert_eq!(
            answer.status, status,
            "{method} {path} {body}: {}",
            answer.body
        );
    }
    let bare = world
        .ask(post, "/api/v1/replications/vm/pause", &operator, None)
        .await;
    assert_eq!(bare.status, 202, "{}", bare.body);
    assert_eq!(
        world.ask(&Method::DELETE, vm, &owner, None).await.body["command"],
        "sanbox replication remove vm"
    );
    let common = CommonState {
        source: "tank/vm".to_owned(),
        snapshot: "back/vm@<b>".to_owned(),
        creation: Some(1_700_000_000),
    };
    let report = Report {
        sent: vec!["back/vm@<b>".to_owned()],
        datasets: 1,
        as_of: jiff::Timestamp::from_second(1_700_000_000).ok(),
        common: vec![common],
        ..Report::default()
    };
    let run = world
        .replications
        .run(&job, |_| std::future::ready(Ok(report)));
    assert!(run.await.is_some());
    let shown = world.ask(get, vm, &operator, None).await.body;
    assert_eq!(shown["state"], "complete");
    assert_eq!(shown["as_of"], 1_700_000_000);
    assert!(shown["lag"].as_i64().expect("known") > 0);
    assert_eq!(shown["common"][0]["snapshot"], "back/vm@<b>");
    assert_eq!(shown["history"][0]["snapshots"], 1);
    let failed = world.replications.run(&job, |_| {
        std::future::ready(Err(ReplicationError::Unreachable {
            place: "pool 'back'".to_owned(),
            why: "it is not imported".to_owned(),
        }))
    });
    assert!(failed.await.is_some());
    let listed = world.ask(get, all, &operator, None).await.body;
    let row = &listed["replications"][0];
    assert_eq!(
        (&row["state"], &row["cause"]),
        (&json!("incomplete"), &json!("unreachable"))
    );
    assert_eq!(row["as_of"], 1_700_000_000, "what the copy has stays known");
}

#[tokio::test]
async fn the_hooks_that_policies_can_name_are_listed_without_their_programs() {
    let world = World::new().await;
    let viewer = world.session(Role::Viewer).await;
    let found = world
        .ask(&Method::GET, "/api/v1/policies", &viewer, None)
        .await;
    let hook =
        json!({"name": "db", "timeout_seconds": 10, "ran": null, "took_ms": 0, "error": null});
    assert_eq!(
        found.body,
        json!({"policies": [], "hooks": [hook], "unanswered": []})
    );
}

/// Changes of what two people may change, each with what shows it: path of that, method and path of the change, its body, and what it is about.
const SHARED: &[(&str, Method, &str, &str)] = &[
    (
        "/api/v1/users",
        Method::POST,
        "/api/v1/users",
        r#"{"name": "ben", "role": "viewer"}"#,
    ),
    (
        "/api/v1/users",
        Method::PUT,
        "/api/v1/users/ben/role",
        r#"{"role": "operator"}"#,
    ),
    (
        "/api/v1/users",
        Method::PUT,
        "/api/v1/users/ben/password",
        r#"{"password": "another good password"}"#,
    ),
    (
        "/api/v1/users",
        Method::DELETE,
        "/api/v1/users/ben/totp",
        "{}",
    ),
    ("/api/v1/users", Method::DELETE, "/api/v1/users/ben", "{}"),
    (
        "/api/v1/groups",
        Method::POST,
        "/api/v1/groups",
        r#"{"name": "studio"}"#,
    ),
    (
        "/api/v1/groups",
        Method::PUT,
        "/api/v1/groups/studio/role",
        r#"{"role": "viewer"}"#,
    ),
    (
        "/api/v1/groups",
        Method::PUT,
        "/api/v1/groups/studio/members/ann",
        "{}",
    ),
    (
        "/api/v1/groups",
        Method::DELETE,
        "/api/v1/groups/studio/members/ann",
        "{}",
    ),
    (
        "/api/v1/groups",
        Method::DELETE,
        "/api/v1/groups/studio",
        "{}",
    ),
    (
        "/api/v1/replications",
        Method::POST,
        "/api/v1/replications",
        r#"{"name": "new", "from": "tank/a", "to": "back/a"}"#,
    ),
    (
        "/api/v1/replications/vm",
        Method::PUT,
        "/api/v1/replications/vm",
        r#"{"name": "vm", "from": "tank/vm", "to": "back/vm", "every": "1m"}"#,
    ),
    (
        "/api/v1/replications/vm",
        Method::POST,
        "/api/v1/replications/vm/pause",
        "{}",
    ),
    (
        "/api/v1/replications/vm",
        Method::DELETE,
        "/api/v1/replications/vm",
        "{}",
    ),
    ("", Method::POST, "/api/v1/alerts/1/acknowledge", "{}"),
    ("", Method::POST, "/api/v1/alerts/1/reopen", "{}"),
    (
        "",
        Method::POST,
        "/api/v1/alerts/1/mute",
        r#"{"seconds": 60}"#,
    ),
    (
        "/api/v1/targets",
        Method::POST,
        "/api/v1/commands",
        r#"{"tool": "sanbox", "arguments": ["target", "create", "iqn.x"], "about": "/api/v1/targets"}"#,
    ),
    (
        "/api/v1/settings",
        Method::POST,
        "/api/v1/commands",
        r#"{"tool": "sanbox", "arguments": ["tune", "x=1"], "about": "/api/v1/settings"}"#,
    ),
    (
        "/api/v1/checks",
        Method::POST,
        "/api/v1/commands",
        r#"{"tool": "sanbox", "arguments": ["checks", "off", "clock"], "about": "/api/v1/checks"}"#,
    ),
    (
        "/api/v1/peers",
        Method::POST,
        "/api/v1/commands",
        r#"{"tool": "sanbox", "arguments": ["peer", "remove", "vault"], "about": "/api/v1/peers"}"#,
    ),
];

/// Changes that need no tag: of the session itself, or such as make something of the own, or whose thing does something and is
/// not changed.
const NOT_SHARED: &[&str] = &[
    "/api/v1/setup",
    "/api/v1/session",
    "/api/v1/session/password",
    "/api/v1/session/totp",
    "/api/v1/session/totp/remove",
    "/api/v1/keys",
    "/api/v1/keys/{id}",
    "/api/v1/ssh-keys",
    "/api/v1/ssh-keys/{id}",
    "/api/v1/alerts/test",
    "/api/v1/pools/plan",
    "/api/v1/files/content",
    "/api/v1/jobs/{id}/cancel",
    "/api/v1/jobs/{id}/retry",
    // They add peers, with codes of their own; removing one is in the table.
    "/api/v1/peers",
    "/api/v1/peers/invitations",
    "/api/v1/peers/{name}",
    // The tag is the dataset's, of which there is none here.
    "/api/v1/datasets/{name}/takeover",
];

async fn tag_of(world: &World, shown: &Shown, at: &str) -> String {
    let (path, alert) = match at {
        "" => ("/api/v1/alerts", true),
        path => (path, false),
    };
    let answer = world.ask(&Method::GET, path, shown, None).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    let tag = match alert {
        true => answer.body[0]["etag"].as_str().map(str::to_owned),
        false => answer
            .headers
            .get("etag")
            .map(|tag| tag.to_str().expect("text").to_owned()),
    };
    tag.unwrap_or_else(|| panic!("{path} has no tag"))
}

/// Each change is refused with the tag of another time, and made with that of now; what it changed has another tag afterwards.
#[tokio::test]
async fn what_was_changed_meanwhile_is_not_changed_again() {
    let world = World::new().await;
    let owner = world.session(Role::Owner).await;
    let job = Job {
        name: "vm".to_owned(),
        from: "tank/vm".to_owned(),
        to: "back/vm".to_owned(),
        ..Job::default()
    };
    let added = world.replications.change(|jobs| jobs.add(job.clone()));
    added.expect("added");
    let wrong = crate::alerts::rules::clock(0, 86_400).expect("behind");
    let result = crate::alerts::CheckResult::default();
    world.api.alerts.checked("clock", result, vec![wrong], 1);
    for (at, method, path, body) in SHARED {
        let body: Value = serde_json::from_str(body).expect("JSON");
        let with = |tag: &str| Shown {
            if_match: Some(tag.to_owned()),
            ..owner.clone()
        };
        let before = tag_of(&world, &owner, at).await;
        for stale in ["\"0123456789abcdef0123456789abcdef\"", "nonsense"] {
            let answer = world.ask(method, path, &with(stale), Some(&body)).await;
            assert_eq!(answer.status, 412, "{method} {path}: {}", answer.body);
            let detail = answer.body["detail"].as_str().unwrap_or_default();
            assert!(detail.contains("was changed meanwhile"), "{detail}");
        }
        assert_eq!(tag_of(&world, &owner, at).await, before, "{method} {path}");
        let several = format!("\"x\", {before}");
        let answer = world.ask(method, path, &with(&several), Some(&body)).await;
        // 'ben' has no second factor: what is answered is the handler's.
        let expected = if path.ends_with("/totp") {
            409..=409
        } else {
            200..=204
        };
        assert!(
            expected.contains(&answer.status),
            "{method} {path}: {} {}",
            answer.status,
            answer.body
        );
        // Of what commands change, the commands of this test change nothing.
        let is_command = path.contains("commands") || path.contains("replications");
        let same = is_command || path.ends_with("/totp");
        assert_eq!(
            tag_of(&world, &owner, at).await == before,
            same,
            "{method} {path}"
        );
    }
}

/// A call that changes something has a tag, or is named as one that needs none.
#[test]
fn every_change_has_a_tag_or_needs_none() {
    for (method, path, _) in CALLS.iter().filter(|(method, ..)| !method.is_safe()) {
        let as_given = |given: &str| {
            let mut parts = path.split('/').zip(given.split('/'));
            path.split('/').count() == given.split('/').count()
                && parts.all(|(known, given)| known == given || known.starts_with('{'))
        };
        let in_table = SHARED
            .iter()
            .any(|(_, known, given, _)| known == method && as_given(given));
        let listed = NOT_SHARED.contains(path);
        assert!(in_table || listed, "{method} {path}");
    }
}

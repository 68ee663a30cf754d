//! The appliance's end of the control socket: runs commands for clients.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use engine::Subject;
use futures_util::future::{AbortHandle, abortable};
use manage::accounts::Role;
use manage::api::Delegate;
use manage::commands;
use manage::control::{self, Frame, Request};
use manage::descriptor::{self, Descriptor, Direction};
use manage::jobs::{JobOrigin, Jobs};
use manage::undo::Plan;
use tokio::io::AsyncWrite;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::appliance::{Appliance, as_subject};
use crate::cli::input::Input;
use crate::cli::out::{Out, Stream};
use crate::cli::{Caller, Exit, Session, user_name};
use crate::logging::CONTROL;
use crate::names;
use crate::otel::message::SpanKind;
use crate::otel::span::{self, BegunSpan};
use crate::undo;

/// Output on its way to a client.
const CHUNKS_MAX: usize = 16;

/// Commands of users without privileges at a time: they must not use up what the services of all need.
static OF_USERS: Semaphore = Semaphore::const_new(32);
/// How long such a user may take to send a command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Accepts clients until the task is ended; there are none without a listener.
pub(crate) async fn serve(listener: Option<UnixListener>, appliance: Arc<Appliance>) {
    let Some(listener) = listener else {
        return;
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(client(stream, appliance.clone()));
            }
            Err(error) => {
                tracing::warn!(target: CONTROL, "a command could not be accepted: {error}");
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        }
    }
}

/// How long a process that works for commands waits for the first of them.
const FIRST_CLIENT: Duration = Duration::from_secs(10);

/// Accepts clients until the last one has been served. The socket is gone when this returns.
pub(crate) async fn serve_while_used(
    mut listener: UnixListener,
    socket: std::path::PathBuf,
    appliance: Arc<Appliance>,
) {
    let mut clients = tokio::task::JoinSet::new();
    let first = tokio::time::timeout(FIRST_CLIENT, listener.accept()).await;
    if let Ok(Ok((stream, _))) = first {
        clients.spawn(client(stream, appliance.clone()));
    }
    loop {
        while !clients.is_empty() {
            tokio::select! {
                accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                    clients.spawn(client(stream, appliance.clone()));
                },
                _ = clients.join_next() => {}
            }
        }
        // A client from now on finds no socket; one that has connected already is still served.
        let _ = std::fs::remove_file(&socket);
        if let Ok(listener) = listener.into_std() {
            while let Ok((stream, _)) = listener.accept() {
                let stream = stream.set_nonblocking(true).map(|()| stream);
                if let Ok(stream) = stream.and_then(UnixStream::from_std) {
                    clients.spawn(client(stream, appliance.clone()));
                }
            }
        }
        if clients.is_empty() {
            return;
        }
        // It may be one end of a pipe, and wait for what the other end does: that has to find a socket, too.
        listener = match manage::control::listen(&socket) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!(target: CONTROL, "no further command can be accepted: {error}");
                while clients.join_next().await.is_some() {}
                return;
            }
        };
    }
}

/// The user at the other end; `None` for root and for the user that runs the appliance.
fn subject(stream: &UnixStream) -> Option<Subject> {
    let nobody = Subject {
        uid: Subject::NOBODY,
        groups: Vec::new(),
    };
    let Ok(peer) = stream.peer_cred() else {
        return Some(nobody);
    };
    let own = rustix::process::geteuid().as_raw();
    if peer.uid() == 0 || peer.uid() == own {
        return None;
    }
    let mut groups = vec![peer.gid()];
    // Without an answer the peer has only its own group: less is allowed then, never more.
    groups.extend(runtime::host::peer_groups(stream.as_fd()).unwrap_or_default());
    Some(Subject {
        uid: peer.uid(),
        groups,
    })
}

/// As [`subject`], with the appliance's own groups that have a user of that name.
fn subject_in_groups(stream: &UnixStream, appliance: &Appliance) -> Option<Subject> {
    let mut subject = subject(stream)?;
    let name = user_name(u64::from(subject.uid));
    if let (Some(name), Some(api)) = (name, appliance.api()) {
        subject.groups.extend(api.accounts.group_numbers(&name));
    }
    Some(subject)
}

/// The user in whose name a command of a browser runs that does only what was delegated. Where users of this machine are the appliance's,
/// it is the one of the same name, too.
pub(super) fn subject_of(appliance: &Appliance, delegate: Delegate) -> Subject {
    let control = &appliance.config().control;
    let list = match control.users && control.roles {
        true => names::users(),
        false => String::new(),
    };
    let uid = names::ids_of(&list, &delegate.user).find_map(|id| id.parse().ok());
    Subject {
        uid: uid.filter(|uid| *uid != 0).unwrap_or(Subject::NOBODY),
        groups: delegate.groups,
    }
}

/// Whether a user of this machine has the role for a command, and gives it as over the API; to others the rights apply that were
/// delegated to them.
fn has_role(appliance: &Appliance, uid: u32, request: &Request) -> bool {
    is_enough(appliance, role_of(appliance, uid), request)
}

/// Whether a role is enough for a command.
fn is_enough(appliance: &Appliance, role: Option<Role>, request: &Request) -> bool {
    let (tool, arguments) = (&request.tool, &request.arguments);
    let needed = match appliance.jobs() {
        Some(jobs) => jobs.role_needed(tool, arguments),
        None => None,
    };
    let needed = needed.or_else(|| commands::role_at_socket(tool, arguments));
    role.zip(needed)
        .is_some_and(|(role, needed)| role >= needed)
}

/// In whose name a command is given.
struct Actor {
    /// The user, where only what was delegated is done.
    subject: Option<Subject>,
    /// As the log of jobs has it.
    name: String,
    /// How the command came.
    origin: &'static str,
}

/// Finds out in whose name a command is given: of the user at the other end, or of a user of the appliance whom a trusted one names.
/// `None`: that user does not exist, or is not theirs to name.
fn actor(appliance: &Appliance, peer: Option<Subject>, request: &Request) -> Option<Actor> {
    let uid = peer.as_ref().map_or(request.uid, |known| known.uid);
    let own = user_name(u64::from(uid)).unwrap_or_else(|| uid.to_string());
    let Some(named) = &request.on_behalf else {
        return Some(Actor {
            subject: peer.filter(|known| !has_role(appliance, known.uid, request)),
            name: own,
            origin: "shell",
        });
    };
    if let Some(peer) = peer {
        // No other name than its own is taken: the rights are the same.
        let is_own = named.is_empty() || *named == own;
        return is_own.then(|| Actor {
            subject: Some(peer).filter(|known| !has_role(appliance, known.uid, request)),
            name: own,
            origin: "ssh",
        });
    }
    let accounts = &appliance.api()?.accounts;
    let role = accounts.role(named)?;
    let delegate = Delegate {
        user: named.clone(),
        groups: accounts.group_numbers(named),
    };
    let is_enough = is_enough(appliance, Some(role), request);
    Some(Actor {
        subject: (!is_enough).then(|| subject_of(appliance, delegate)),
        name: named.clone(),
        origin: "ssh",
    })
}

/// The role of a user of this machine who is taken for the appliance's user of the same name.
fn role_of(appliance: &Appliance, uid: u32) -> Option<Role> {
    let control = &appliance.config().control;
    let name = user_name(u64::from(uid)).filter(|_| control.users && control.roles)?;
    appliance.api()?.accounts.role(&name)
}

async fn refuse(writer: &mut (impl AsyncWrite + Unpin), message: &str) {
    let _ = Frame::Err(message.as_bytes().to_vec()).send(writer).await;
    let _ = Frame::Exit(1).send(writer).await;
}

/// Runs a command on a thread of its own. Commands open, stat and list what users name, which may lie on a mount of ours:
/// the threads that answer for the mounts must not be theirs.
fn on_own_thread<T: Send + 'static>(
    tool: &str,
    command: impl Future<Output = T> + Send + 'static,
) -> std::io::Result<(oneshot::Receiver<T>, AbortHandle)> {
    let (command, abort) = abortable(Box::pin(command));
    let (sender, outcome) = oneshot::channel();
    let runtime = tokio::runtime::Handle::current();
    std::thread::Builder::new()
        .name(format!("command {tool}"))
        .spawn(move || {
            if let Ok(exit) = runtime.block_on(command) {
                let _ = sender.send(exit);
            }
        })?;
    Ok((outcome, abort))
}

/// A command, and the user that gave it.
pub(crate) struct GivenCommand {
    /// Where, and by which user.
    pub(crate) caller: Caller,
    /// The user, if it is not the one that runs the appliance: only what was delegated is done.
    pub(crate) subject: Option<Subject>,
    /// `zpool`, `zfs` or `sanbox`.
    pub(crate) tool: String,
    /// What follows the tool's name.
    pub(crate) arguments: Vec<String>,
    /// Standard input, if it has one.
    pub(crate) input: Option<Input>,
    /// What its standard output is written to, where that is not what hands on the rest of what it says.
    pub(crate) stream: Option<Descriptor>,
}

/// A command that runs.
pub(crate) struct RunningCommand {
    /// Its output, to its end.
    pub(crate) output: mpsc::Receiver<(Stream, Vec<u8>)>,
    /// Its exit code, after the output; dropped when it was aborted, or panicked.
    pub(crate) exit: oneshot::Receiver<Exit>,
    /// What undoes it, before the exit code; dropped where there is nothing.
    pub(crate) undo: oneshot::Receiver<Plan>,
    /// Aborts it.
    pub(crate) abort: AbortHandle,
}

/// Starts a command.
///
/// # Errors
/// No thread is left.
pub(crate) fn start(
    appliance: Arc<Appliance>,
    given: GivenCommand,
) -> std::io::Result<RunningCommand> {
    let GivenCommand {
        caller,
        subject,
        tool,
        arguments,
        input,
        stream,
    } = given;
    let (sender, output) = mpsc::channel(CHUNKS_MAX);
    let out = Out::channel(sender, stream);
    let uid = caller.uid;
    let session = Session::new(appliance.clone(), out, caller, &tool, &arguments, input);
    let span = span_of(&tool, &arguments, uid);
    let thread = tool.clone();
    let (keep, undo) = oneshot::channel();
    let command = async move {
        let is_kept = appliance.jobs().is_some() && commands::is_change(&tool, &arguments);
        let observed = match is_kept {
            true => undo::look(&appliance, &tool, &arguments).await,
            false => Vec::new(),
        };
        // The session, and with it the sender of output, goes when the command ends.
        let run = crate::cli::run(session, &tool, &arguments);
        let exit = as_subject(subject, run).await;
        end_span(span, exit.0);
        if let Some(plan) = undo::changes(&appliance, observed, exit.0).await {
            let _ = keep.send(plan);
        }
        exit
    };
    let (exit, abort) = on_own_thread(&thread, command)?;
    Ok(RunningCommand {
        output,
        exit,
        undo,
        abort,
    })
}

/// Begins the span of a command.
fn span_of(tool: &str, arguments: &[String], uid: u32) -> BegunSpan {
    if !span::are_kept() {
        return BegunSpan::default();
    }
    let verb = arguments.first().map_or("", String::as_str);
    let mut span = BegunSpan::new(SpanKind::Internal, &format!("{tool} {verb}"), None);
    span.text("process.command_line", &commands::line(tool, arguments));
    span.number("sanbox.uid", i64::from(uid));
    span
}

fn end_span(mut span: BegunSpan, code: u8) {
    span.number("process.exit.code", i64::from(code));
    let error = (code != 0).then(|| format!("exit code {code}"));
    span.end(error.as_deref());
}

/// The job that a change by a shell's command is in the log of the console; cancelled unless its end is reported.
struct ShellJob(Option<(Arc<Jobs>, u64)>);

impl ShellJob {
    fn finish(&self, code: u8, undo: Option<Plan>) {
        if let Some((jobs, id)) = &self.0 {
            if let Some(plan) = undo {
                jobs.keep_undo(*id, plan);
            }
            jobs.finish(*id, Some(code));
        }
    }
}

impl Drop for ShellJob {
    fn drop(&mut self) {
        if let Some((jobs, id)) = self.0.take() {
            jobs.finish(id, None);
        }
    }
}

fn job_of_shell(appliance: &Appliance, actor: &Actor, request: &Request) -> ShellJob {
    let (tool, arguments) = (request.tool.as_str(), &request.arguments[..]);
    let change = commands::is_change(tool, arguments);
    let jobs = appliance.jobs().filter(|_| change);
    ShellJob(jobs.map(|jobs| {
        let id = jobs.begin(JobOrigin {
            user: actor.name.clone(),
            origin: actor.origin.to_owned(),
            line: commands::line(tool, arguments),
            change,
        });
        (jobs, id)
    }))
}

/// Hands the input of a command on until the connection is closed.
async fn take_input(reader: &mut OwnedReadHalf, feed: mpsc::Sender<Vec<u8>>) {
    while let Ok(Some(Frame::In(bytes))) = Frame::receive(reader).await {
        // A command that has ended takes no more; its answer is on the way.
        let _ = feed.send(bytes).await;
    }
}

/// The command that a client gives, and the descriptor that comes with it; a client without privileges has a bounded time to give it.
async fn receive(stream: &mut UnixStream, bounded: bool) -> Option<(Request, Option<OwnedFd>)> {
    let receiving = control::receive_request(stream);
    let received = match bounded {
        true => tokio::time::timeout(COMMAND_TIMEOUT, receiving).await,
        false => Ok(receiving.await),
    };
    received.ok()?.ok()?
}

/// The command's stream on the client's own descriptor. Without one, or with one that cannot be used, it goes over the connection.
fn taken_over(
    request: &Request,
    given: Option<OwnedFd>,
    trusted: bool,
) -> Option<(Direction, Descriptor)> {
    let direction = descriptor::taken_over(&request.tool, &request.arguments)?;
    let taken = Descriptor::new(given?, direction, trusted).ok()?;
    Some((direction, taken))
}

/// Hands on what a command says and asks for, to its end.
async fn relay_output(
    output: &mut mpsc::Receiver<(Stream, Vec<u8>)>,
    demands: &mut mpsc::UnboundedReceiver<u32>,
    writer: &mut OwnedWriteHalf,
) -> std::io::Result<()> {
    loop {
        let frame = tokio::select! {
            Some(bytes) = demands.recv() => Frame::Demand(bytes),
            said = output.recv() => match said {
                Some((Stream::Out, bytes)) => Frame::Out(bytes),
                Some((Stream::Err, bytes)) => Frame::Err(bytes),
                Some((Stream::Title, bytes)) => Frame::Title(bytes),
                None => return Ok(()),
            },
        };
        frame.send(writer).await?;
    }
}

/// Input that is read as the command wants it, and what it wants.
fn demanded(input: Input) -> (Input, mpsc::UnboundedReceiver<u32>) {
    let (demanding, demands) = mpsc::unbounded_channel();
    let input = input.on_demand(move |wanted| {
        let _ = demanding.send(wanted);
    });
    (input, demands)
}

/// Says how a command ended, after all that it said.
async fn finish(
    (exit, undo): (oneshot::Receiver<Exit>, oneshot::Receiver<Plan>),
    job: ShellJob,
    asked: String,
    began: tokio::time::Instant,
    writer: &mut OwnedWriteHalf,
) -> std::io::Result<()> {
    // A command that panicked is reported as an error; the daemon goes on.
    let code = exit.await.map_or(1, |exit| exit.0);
    job.finish(code, undo.await.ok());
    let took_ms = began.elapsed().as_millis();
    tracing::debug!(target: CONTROL, "{asked}: exit code {code} after {took_ms} ms");
    Frame::Exit(code).send(writer).await
}

/// Puts the client's own descriptor in place of what goes over the connection: input, or the stream. `None`: the client is gone.
async fn take_over(
    input: Input,
    descriptor: Option<(Direction, Descriptor)>,
    writer: &mut OwnedWriteHalf,
) -> Option<(Input, Option<Descriptor>)> {
    match descriptor {
        Some((Direction::In, descriptor)) => {
            Frame::TakenOver.send(writer).await.ok()?;
            Some((Input::of_descriptor(descriptor), None))
        }
        Some((Direction::Out, descriptor)) => Some((input, Some(descriptor))),
        None => Some((input, None)),
    }
}

async fn client(mut stream: UnixStream, appliance: Arc<Appliance>) {
    let subject = subject_in_groups(&stream, &appliance);
    let peer = subject.as_ref().map(|known| known.uid);
    let permit = subject.as_ref().map(|_| OF_USERS.try_acquire());
    if matches!(permit, Some(Err(_))) {
        return refuse(&mut stream, "sanbox: too many commands at once\n").await;
    }
    let Some((request, given)) = receive(&mut stream, subject.is_some()).await else {
        return;
    };
    let descriptor = taken_over(&request, given, subject.is_none());
    let (mut reader, mut writer) = stream.into_split();
    let Some(actor) = actor(&appliance, subject, &request) else {
        let refusal = format!("{}: permission denied\n", request.tool);
        return refuse(&mut writer, &refusal).await;
    };
    if actor.subject.is_some() && !commands::is_delegable(&request.tool, &request.arguments) {
        let refusal = format!("{}: permission denied\n", request.tool);
        return refuse(&mut writer, &refusal).await;
    }
    let uid = peer.unwrap_or(request.uid);
    let job = job_of_shell(&appliance, &actor, &request);
    let (tool, arguments) = (request.tool, request.arguments);
    let asked = format!(
        "{} by {} ({uid})",
        commands::line(&tool, &arguments),
        actor.name
    );
    let (feed, input) = Input::channel();
    let (input, mut demands) = match request.on_demand && descriptor.is_none() {
        true => demanded(input),
        false => (input, mpsc::unbounded_channel().1),
    };
    let Some((input, stream)) = take_over(input, descriptor, &mut writer).await else {
        return;
    };
    let given = GivenCommand {
        caller: Caller {
            directory: request.directory,
            environment: request.environment,
            uid,
            terminal: request.terminal,
        },
        subject: actor.subject,
        input: request.input.then_some(input),
        stream,
        tool,
        arguments,
    };
    let began = tokio::time::Instant::now();
    let Ok(running) = start(appliance, given) else {
        return refuse(&mut writer, "sanbox: no thread is left\n").await;
    };
    let RunningCommand {
        mut output,
        exit,
        undo,
        abort,
    } = running;
    let relay = async {
        relay_output(&mut output, &mut demands, &mut writer).await?;
        finish((exit, undo), job, asked, began, &mut writer).await
    };
    tokio::select! {
        _ = relay => {}
        // The client closed the connection: interrupted, or gone.
        () = take_input(&mut reader, feed) => abort.abort(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream as Client;

    use super::*;

    /// The two ends of a pipe are two clients: each waits for the other. The second one must be able to come when the first came just as the
    /// last one before it went.
    #[tokio::test]
    async fn who_comes_as_the_last_one_goes_is_not_alone() {
        let pause = || tokio::time::sleep(Duration::from_millis(20));
        for round in 0..24 {
            let state = tempfile::tempdir().expect("temporary directory");
            let socket = state.path().join("control.sock");
            let listener = manage::control::listen(&socket).expect("listen");
            let engine = engine::Engine::new(engine::Threads::default());
            let appliance = Appliance::detached(engine, state.path());
            let served = tokio::spawn(serve_while_used(listener, socket.clone(), appliance));
            let first = Client::connect(&socket).expect("the first client");
            pause().await;
            drop(first);
            let late = Client::connect(&socket).expect("a late client");
            pause().await;
            let other = Client::connect(&socket);
            assert!(other.is_ok(), "round {round}: {other:?}");
            drop((late, other));
            let ended = tokio::time::timeout(Duration::from_secs(20), served).await;
            assert!(matches!(ended, Ok(Ok(()))), "round {round}");
            assert!(!socket.exists(), "round {round}");
        }
    }
}

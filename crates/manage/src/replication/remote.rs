//! A side on another host, reached by ssh: `zfs` of OpenZFS or of this program does there what is asked.
//!
//! The command (`ssh` where the job says nothing) gets its own words, then the host and one line for the shell there, in which every name is
//! quoted. Its exit code 255 is ssh's own: the host cannot be reached. A run that is dropped kills it.

use std::process::Stdio;
use std::time::Duration;

use engine::DatasetKind;
use engine::stream::unpack_token;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};

use super::upkeep::full_name;
use crate::commands::quoted;
use crate::vectored::write_all_parts;

use super::{
    ByteStream, Endpoint, FENCED_PROPERTY, Fence, IDENTITY_PROPERTY, Interrupted,
    KEPT_READONLY_PROPERTY, MARK_PROPERTY, Point, Reached, ReceiveSpec, ReplicaDataset,
    ReplicationError, StreamSpec, Switchover, take_over,
};

/// What is run where the job names no command: no questions are asked, and a link that is gone is noticed within a minute.
const SSH: &[&str] = &[
    "ssh",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=20",
    "-o",
    "ServerAliveInterval=15",
    "-o",
    "ServerAliveCountMax=4",
];
/// How long a command that carries no stream may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes of an answer, at most: a list of some million snapshots.
const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// Bytes of messages that are kept.
const MESSAGE_BYTES_MAX: u64 = 64 << 10;
/// Bytes read of a stream at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// Commands in one line for the shell.
const AT_ONCE: usize = 100;
/// The exit code of ssh when it is not that of the command.
const SSH_FAILED: i32 = 255;

/// See the module.
#[derive(Clone, Debug)]
pub struct RemoteEndpoint {
    host: String,
    command: Vec<String>,
}

/// What a command said.
struct Answer {
    code: Option<i32>,
    output: Vec<u8>,
    messages: String,
}

impl RemoteEndpoint {
    /// Returns the side on a host; `command` is run in place of `ssh`, its words separated by spaces, where it is not empty.
    #[must_use]
    pub fn new(host: &str, command: &str) -> Self {
        let mut words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        if words.is_empty() {
            words = SSH.iter().map(|word| (*word).to_owned()).collect();
        }
        Self {
            host: host.to_owned(),
            command: words,
        }
    }

    fn spawn(&self, line: &str, input: Stdio) -> Result<Child, ReplicationError> {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).arg(&self.host).arg(line);
        command
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command.spawn().map_err(|error| {
            ReplicationError::Failed(format!("cannot run '{}': {error}", self.command[0]))
        })
    }

    fn unreachable(&self, messages: &str) -> ReplicationError {
        let last = messages.lines().rev().find(|line| !line.trim().is_empty());
        ReplicationError::Unreachable {
            place: self.host.clone(),
            why: last.unwrap_or("the connection ended").trim().to_owned(),
        }
    }

    /// The error of a command that failed.
    fn failed(&self, code: Option<i32>, messages: &str) -> ReplicationError {
        if code == Some(SSH_FAILED) || code.is_none() {
            return self.unreachable(messages);
        }
        if messages.contains("out of space") {
            return ReplicationError::OutOfSpace {
                target: self.host.clone(),
            };
        }
        let told = messages
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or("no message");
        ReplicationError::Failed(format!("{}: {}", self.host, told.trim()))
    }

    async fn answer(&self, line: &str) -> Result<Answer, ReplicationError> {
        let mut child = self.spawn(line, Stdio::null())?;
        let (output, messages) = (child.stdout.take(), child.stderr.take());
        let read = async {
            let (output, messages) = tokio::join!(
                read_all(output, ANSWER_BYTES_MAX),
                read_all(messages, MESSAGE_BYTES_MAX)
            );
            (output, messages, child.wait().await)
        };
        let Ok((output, messages, status)) = tokio::time::timeout(ANSWER_TIMEOUT, read).await
        else {
            return Err(self.unreachable("no answer"));
        };
        if output.len() as u64 > ANSWER_BYTES_MAX {
            return Err(ReplicationError::Failed(format!(
                "{}: the answer is too long",
                self.host
            )));
        }
        Ok(Answer {
            code: status.ok().and_then(|status| status.code()),
            output,
            messages: String::from_utf8_lossy(&messages).into_owned(),
        })
    }

    /// Runs a command, and returns its output; `None` when a dataset does not exist.
    async fn ask(&self, line: &str) -> Result<Option<String>, ReplicationError> {
        let answer = self.answer(line).await?;
        match answer.code {
            Some(0) => Ok(Some(String::from_utf8_lossy(&answer.output).into_owned())),
            Some(_) if answer.messages.contains("does not exist") => Ok(None),
            code => Err(self.failed(code, &answer.messages)),
        }
    }

    /// Runs commands that do not depend on each other; messages with one of the harmless phrases are of no consequence.
    async fn each(&self, lines: Vec<String>, harmless: &[&str]) -> Result<(), ReplicationError> {
        for part in lines.chunks(AT_ONCE) {
            let answer = self.answer(&format!("{}; exit 0", part.join("; "))).await?;
            let is_harmless = |line: &str| harmless.iter().any(|phrase| line.contains(phrase));
            let serious = answer
                .messages
                .lines()
                .find(|line| line.starts_with("cannot ") && !is_harmless(line));
            match (answer.code, serious) {
                (Some(0), None) => {}
                (Some(0), Some(message)) => return Err(self.failed(Some(1), message)),
                (code, _) => return Err(self.failed(code, &answer.messages)),
            }
        }
        Ok(())
    }

    async fn listed(&self, root: &str) -> Result<Option<Vec<ReplicaDataset>>, ReplicationError> {
        let root = quoted(root);
        let list = format!(
            "zfs list -Hp -r -t filesystem,volume,snapshot,bookmark \
             -o name,type,guid,createtxg,creation,userrefs,written,receive_resume_token {root} && echo && \
             zfs get -Hp -r -s local,received -t filesystem,volume -o name,property,value,received,source \
             {MARK_PROPERTY},{IDENTITY_PROPERTY},{FENCED_PROPERTY},{KEPT_READONLY_PROPERTY},readonly {root}"
        );
        let Some(text) = self.ask(&list).await? else {
            return Ok(None);
        };
        let datasets = parse_list(&text);
        datasets.map(Some).ok_or_else(|| {
            ReplicationError::Failed(format!(
                "{}: the list of datasets cannot be read",
                self.host
            ))
        })
    }

    fn begin(&self, spec: &StreamSpec) -> Result<ByteStream, ReplicationError> {
        let mut child = self.spawn(&send_line(spec), Stdio::null())?;
        let (output, messages) = (child.stdout.take(), child.stderr.take());
        let messages = tokio::spawn(read_all(messages, MESSAGE_BYTES_MAX));
        let own = self.clone();
        let stream = stream::unfold(Some((child, output, messages)), move |reading| {
            let own = own.clone();
            async move {
                let (mut child, mut output, messages) = reading?;
                let mut chunk = vec![0; CHUNK_BYTES];
                let read = match &mut output {
                    Some(output) => output.read(&mut chunk).await,
                    None => Ok(0),
                };
                if let Ok(bytes) = read
                    && bytes > 0
                {
                    chunk.truncate(bytes);
                    return Some((Ok(chunk.into()), Some((child, output, messages))));
                }
                // The end is one only if the command says so.
                let code = child.wait().await.ok().and_then(|status| status.code());
                if code == Some(0) && read.is_ok() {
                    return None;
                }
                let messages = messages.await.unwrap_or_default();
                Some((
                    Err(own.failed(code, &String::from_utf8_lossy(&messages))),
                    None,
                ))
            }
        });
        Ok(stream.boxed())
    }

    async fn take_in(
        &self,
        spec: ReceiveSpec,
        mut stream: ByteStream,
    ) -> Result<(), ReplicationError> {
        let mut child = self.spawn(&receive_line(&spec), Stdio::piped())?;
        let (input, output, messages) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let messages = tokio::spawn(read_all(messages, MESSAGE_BYTES_MAX));
        let output = tokio::spawn(read_all(output, MESSAGE_BYTES_MAX));
        let mut broken = None;
        if let Some(mut input) = input {
            while let Some(chunk) = stream.next().await {
                match chunk {
                    // The command has ended early, and says why below.
                    Ok(chunk) => {
                        let parts: Vec<&[u8]> = chunk.parts().collect();
                        if write_all_parts(&mut input, &parts).await.is_err() {
                            break;
                        }
                    }
                    Err(error) => {
                        broken = Some(error);
                        break;
                    }
                }
            }
        }
        // Its input is closed now: it keeps what came of the stream.
        let status = tokio::time::timeout(ANSWER_TIMEOUT, child.wait()).await;
        let code = status.ok().and_then(|status| status.ok()?.code());
        output.abort();
        let messages = messages.await.unwrap_or_default();
        match (broken, code) {
            (Some(error), _) => Err(error),
            (None, Some(0)) => Ok(()),
            (None, code) => Err(self.failed(code, &String::from_utf8_lossy(&messages))),
        }
    }
}

fn send_line(spec: &StreamSpec) -> String {
    if let Some(token) = &spec.token {
        return format!("zfs send -t {}", quoted(token));
    }
    let mut line = "zfs send".to_owned();
    line.push_str(if spec.raw { " -w" } else { " -Lec" });
    if spec.properties {
        line.push_str(" -p");
    }
    if let Some(from) = &spec.from {
        line.push_str(&format!(" -i {}", quoted(&full_name(&spec.dataset, from))));
    }
    line.push_str(&format!(
        " {}",
        quoted(&format!("{}@{}", spec.dataset, spec.snapshot))
    ));
    line
}

fn receive_line(spec: &ReceiveSpec) -> String {
    let mut line = "zfs receive -s -u".to_owned();
    for (name, value) in &spec.set {
        line.push_str(&format!(" -o {}", quoted(&format!("{name}={value}"))));
    }
    for name in &spec.excluded {
        line.push_str(&format!(" -x {}", quoted(name)));
    }
    line.push_str(&format!(" {}", quoted(&spec.dataset)));
    line
}

async fn read_all(source: Option<impl AsyncRead + Unpin>, max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut source) = source {
        // One more byte than allowed tells a long answer. What comes behind is read, so that the other side is not blocked.
        let _ = (&mut source).take(max + 1).read_to_end(&mut bytes).await;
        let _ = tokio::io::copy(&mut source, &mut tokio::io::sink()).await;
    }
    bytes
}

/// Reads what `zfs list` and, behind an empty line, `zfs get` printed. `None` when it is something else.
fn parse_list(text: &str) -> Option<Vec<ReplicaDataset>> {
    let (list, marks) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut datasets: Vec<ReplicaDataset> = Vec::new();
    for line in list.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [
            name,
            kind,
            guid,
            create_txg,
            creation,
            holds,
            written,
            token,
        ] = fields[..]
        else {
            return None;
        };
        let guid = guid.parse().ok()?;
        let kind = match kind {
            "filesystem" => DatasetKind::Filesystem,
            "volume" => DatasetKind::Volume,
            "snapshot" | "bookmark" => {
                let (head, short) = name.split_once(['@', '#'])?;
                let point = Point {
                    name: short.to_owned(),
                    guid,
                    create_txg: create_txg.parse().ok()?,
                    holds: holds.parse().unwrap_or(0),
                    creation: creation.parse().unwrap_or(0),
                };
                // A dataset's own points follow it, or those of its snapshots.
                let dataset = datasets
                    .iter_mut()
                    .rev()
                    .find(|dataset| dataset.name == head)?;
                let points = if kind == "snapshot" {
                    &mut dataset.snapshots
                } else {
                    &mut dataset.bookmarks
                };
                points.push(point);
                continue;
            }
            _ => return None,
        };
        datasets.push(ReplicaDataset {
            written_bytes: written.parse().unwrap_or(0),
            interrupted: interrupted(token),
            ..ReplicaDataset::new(name.to_owned(), guid, kind)
        });
    }
    for line in marks.lines().filter(|line| !line.is_empty()) {
        let (name, property) = line.split_once('\t')?;
        let Some(dataset) = datasets.iter_mut().find(|dataset| dataset.name == name) else {
            continue;
        };
        let fields: Vec<&str> = property.split('\t').collect();
        let [property, value, received, source] = fields[..] else {
            return None;
        };
        let own = Some(value).filter(|_| source == "local");
        let received = Some(received).filter(|value| *value != "-");
        put_property(dataset, property, own, received)?;
    }
    datasets.iter_mut().for_each(ReplicaDataset::sort);
    Some(datasets)
}

/// Puts down a property that was set on the dataset, or came with a stream. `None` when it is none that was asked for.
fn put_property(
    dataset: &mut ReplicaDataset,
    property: &str,
    own: Option<&str>,
    received: Option<&str>,
) -> Option<()> {
    let readonly = &mut dataset.readonly;
    match property {
        MARK_PROPERTY => dataset.mark = own.and_then(|value| value.parse().ok()),
        IDENTITY_PROPERTY => {
            dataset.identity = own.and_then(|value| value.parse().ok());
            dataset.source_identity = received.and_then(|value| value.parse().ok());
        }
        FENCED_PROPERTY => {
            dataset.fence = own.and_then(|value| value.parse().ok());
            readonly.at_source = received.map(|_| false);
        }
        // Asked for behind the fence.
        KEPT_READONLY_PROPERTY => {
            readonly.is_kept = own == Some("on");
            readonly.at_source = readonly.at_source.map(|_| received == Some("on"));
        }
        "readonly" => readonly.is_on = own == Some("on"),
        _ => return None,
    }
    Some(())
}

fn interrupted(token: &str) -> Option<Interrupted> {
    let list = unpack_token(token).ok()?;
    Some(Interrupted {
        token: token.to_owned(),
        from_guid: list.u64("fromguid").filter(|guid| *guid != 0),
        to_guid: list.u64("toguid")?,
    })
}

const GONE: &[&str] = &["does not exist", "could not find any"];

impl Endpoint for RemoteEndpoint {
    fn list<'a>(&'a self, root: &'a str) -> Reached<'a, Option<Vec<ReplicaDataset>>> {
        self.listed(root).boxed()
    }

    fn write_out(&self) -> Reached<'_, ()> {
        // `zpool sync` asks for rights that the user of a sending side need not have.
        async { Ok(()) }.boxed()
    }

    fn unchanged_since(&self) -> Reached<'_, Option<u64>> {
        async { Ok(None) }.boxed()
    }

    fn exists<'a>(&'a self, dataset: &'a str) -> Reached<'a, bool> {
        async move {
            Ok(self
                .ask(&format!("zfs list -H -o name {}", quoted(dataset)))
                .await?
                .is_some())
        }
        .boxed()
    }

    fn find<'a>(&'a self, dataset: &'a str, guid: u64) -> Reached<'a, Option<String>> {
        async move {
            let pool = quoted(dataset.split('/').next().unwrap_or_default());
            let listed = self
                .ask(&format!(
                    "zfs list -Hp -r -t filesystem,volume -o guid,name {pool}"
                ))
                .await?;
            let listed = listed.unwrap_or_default();
            let guid = guid.to_string();
            let mut found = listed.lines().filter_map(|line| line.split_once('\t'));
            Ok(found
                .find(|(known, _)| *known == guid)
                .map(|(_, name)| name.to_owned()))
        }
        .boxed()
    }

    fn snapshot(&self, names: Vec<String>) -> Reached<'_, ()> {
        async move {
            let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
            let line = format!("zfs snapshot {}", names.join(" "));
            let answer = self.answer(&line).await?;
            match answer.code {
                Some(0) => Ok(()),
                code => Err(self.failed(code, &answer.messages)),
            }
        }
        .boxed()
    }

    fn size(&self, _spec: StreamSpec) -> Reached<'_, Option<u64>> {
        // A question for each stream would take longer than many of the streams.
        async { Ok(None) }.boxed()
    }

    fn send(&self, spec: StreamSpec) -> Reached<'_, ByteStream> {
        async move { self.begin(&spec) }.boxed()
    }

    fn receive(&self, spec: ReceiveSpec, stream: ByteStream) -> Reached<'_, ()> {
        self.take_in(spec, stream).boxed()
    }

    fn discard_interrupted<'a>(&'a self, dataset: &'a str) -> Reached<'a, ()> {
        let line = format!("zfs receive -A {}", quoted(dataset));
        async move {
            self.each(vec![line], &["does not have any resumable"])
                .await
        }
        .boxed()
    }

    fn bookmark(&self, pairs: Vec<(String, String)>) -> Reached<'_, ()> {
        let line = |(bookmark, snapshot): &(String, String)| {
            format!("zfs bookmark {} {}", quoted(snapshot), quoted(bookmark))
        };
        let lines = pairs.iter().map(line).collect();
        async move { self.each(lines, &["exists", "does not exist"]).await }.boxed()
    }

    fn destroy_bookmarks(&self, names: Vec<String>) -> Reached<'_, ()> {
        let lines = names
            .iter()
            .map(|name| format!("zfs destroy {}", quoted(name)))
            .collect();
        async move { self.each(lines, GONE).await }.boxed()
    }

    fn destroy_snapshots(&self, names: Vec<String>) -> Reached<'_, ()> {
        let lines = names
            .iter()
            .map(|name| format!("zfs destroy {}", quoted(name)))
            .collect();
        let harmless = [GONE, &["busy", "dependent clones", "is immutable until"]].concat();
        async move { self.each(lines, &harmless).await }.boxed()
    }

    fn rename_snapshot<'a>(
        &'a self,
        dataset: &'a str,
        from: &'a str,
        to: &'a str,
    ) -> Reached<'a, ()> {
        let [from, to] = [from, to].map(|name| quoted(&format!("{dataset}@{name}")));
        async move {
            self.each(vec![format!("zfs rename {from} {to}")], &[])
                .await
        }
        .boxed()
    }

    fn hold<'a>(&'a self, names: Vec<String>, tag: &'a str) -> Reached<'a, ()> {
        let lines = names
            .iter()
            .map(|name| format!("zfs hold {} {}", quoted(tag), quoted(name)))
            .collect();
        let harmless = [GONE, &["tag already exists"]].concat();
        async move { self.each(lines, &harmless).await }.boxed()
    }

    fn release<'a>(&'a self, names: Vec<String>, tag: &'a str) -> Reached<'a, ()> {
        let lines = names
            .iter()
            .map(|name| format!("zfs release {} {}", quoted(tag), quoted(name)))
            .collect();
        let harmless = [GONE, &["no such tag"]].concat();
        async move { self.each(lines, &harmless).await }.boxed()
    }

    fn set<'a>(&'a self, dataset: &'a str, name: &'a str, value: &'a str) -> Reached<'a, ()> {
        let line = format!(
            "zfs set {} {}",
            quoted(&format!("{name}={value}")),
            quoted(dataset)
        );
        async move { self.each(vec![line], &[]).await }.boxed()
    }

    fn rollback<'a>(
        &'a self,
        dataset: &'a str,
        snapshot: &'a str,
        _newer: Vec<String>,
    ) -> Reached<'a, ()> {
        let line = format!(
            "zfs rollback -r {}",
            quoted(&format!("{dataset}@{snapshot}"))
        );
        async move { self.each(vec![line], &[]).await }.boxed()
    }
}

impl Switchover for RemoteEndpoint {
    fn take_over<'a>(&'a self, root: &'a str, job: &'a str) -> Reached<'a, Vec<String>> {
        take_over(self, root, job).boxed()
    }

    fn is_in_use<'a>(&'a self, dataset: &'a str) -> Reached<'a, bool> {
        async move {
            let listed = self.listed(dataset).await?.unwrap_or_default();
            Ok(listed.first().is_some_and(ReplicaDataset::is_in_use))
        }
        .boxed()
    }

    fn fence<'a>(&'a self, dataset: &'a str, fence: &'a Fence) -> Reached<'a, ()> {
        let setting = quoted(&format!("{FENCED_PROPERTY}={fence}"));
        let line = format!("zfs set {setting} readonly=on {}", quoted(dataset));
        async move { self.each(vec![line], &[]).await }.boxed()
    }

    fn inherit<'a>(&'a self, dataset: &'a str, name: &'a str, received: bool) -> Reached<'a, ()> {
        let flag = if received { "-S " } else { "" };
        let line = format!("zfs inherit {flag}{} {}", quoted(name), quoted(dataset));
        async move { self.each(vec![line], &[]).await }.boxed()
    }

    fn clone_snapshot<'a>(
        &'a self,
        snapshot: &'a str,
        name: &'a str,
        mark: &'a str,
    ) -> Reached<'a, ()> {
        let setting = quoted(&format!("{MARK_PROPERTY}={mark}"));
        let line = format!(
            "zfs clone -o {setting} {} {}",
            quoted(snapshot),
            quoted(name)
        );
        async move { self.each(vec![line], &[]).await }.boxed()
    }

    fn destroy<'a>(&'a self, dataset: &'a str) -> Reached<'a, ()> {
        let line = format!("zfs destroy {}", quoted(dataset));
        async move { self.each(vec![line], &[]).await }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ReadonlySetting, StreamFrom};
    use super::*;

    #[test]
    fn lists_are_read_and_nonsense_is_refused() {
        let text = "tank/a\tfilesystem\t11\t5\t1700000000\t-\t512\t-\n\
                    tank/a@one\tsnapshot\t21\t7\t1700000001\t1\t0\t-\n\
                    tank/a#one\tbookmark\t21\t7\t1700000001\t-\t-\t-\n\
                    tank/a/vol\tvolume\t12\t6\t1700000000\t-\t0\t-\n\
                    tank/a/vol@one\tsnapshot\t22\t7\t1700000001\t0\t0\t-\n\
                    \n\
                    tank/a/vol\torg.sanbox:replication\tj:000000000000004d\t-\tlocal\n\
                    tank/a/vol\torg.sanbox:identity\t77\t76:2\tlocal\n\
                    tank/a/vol\torg.sanbox:fenced\t3:vm\t2:vm\tlocal\n\
                    tank/a/vol\torg.sanbox:readonly\ton\ton\treceived\n\
                    tank/a/vol\treadonly\ton\ton\tlocal\n";
        let datasets = parse_list(text).expect("a list");
        assert_eq!(datasets.len(), 2);
        let (first, second) = (&datasets[0], &datasets[1]);
        assert_eq!(
            (first.guid, first.written_bytes, first.snapshots[0].holds),
            (11, 512, 1)
        );
        assert_eq!(
            (first.bookmarks[0].guid, first.bookmarks[0].create_txg),
            (21, 7)
        );
        assert_eq!(second.mark.as_ref().map(|mark| mark.source_guid), Some(77));
        assert_eq!(
            (second.kind, second.identity, &second.fence),
            (DatasetKind::Volume, "77".parse().ok(), &"3:vm".parse().ok())
        );
        assert_eq!(second.source_identity, "76:2".parse().ok());
        let readonly = ReadonlySetting {
            is_on: true,
            is_kept: false,
            at_source: Some(true),
        };
        assert_eq!(second.readonly, readonly);
        for nonsense in [
            "Last login: today\n",
            "a\tfilesystem\tx\t5\t1\t-\t0\t-\n",
            "b@s\tsnapshot\t1\t2\t3\t0\t0\t-\n",
        ] {
            assert_eq!(parse_list(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn lines_for_the_shell_quote_every_name() {
        let spec = StreamSpec {
            dataset: "tank/a b".to_owned(),
            snapshot: "it's".to_owned(),
            from: Some(StreamFrom::Bookmark("x".to_owned())),
            token: None,
            properties: true,
            raw: false,
        };
        assert_eq!(
            send_line(&spec),
            r"zfs send -Lec -p -i 'tank/a b#x' 'tank/a b@it'\''s'"
        );
        let resumed = StreamSpec {
            token: Some("1-a".to_owned()),
            ..spec
        };
        assert_eq!(send_line(&resumed), "zfs send -t '1-a'");
        let receive = ReceiveSpec {
            dataset: "back/a".to_owned(),
            set: vec![("readonly".to_owned(), "on".to_owned())],
            excluded: vec!["mountpoint".to_owned()],
            sent: None,
        };
        assert_eq!(
            receive_line(&receive),
            "zfs receive -s -u -o 'readonly=on' -x 'mountpoint' 'back/a'"
        );
    }

    #[tokio::test]
    async fn a_host_that_cannot_be_reached_is_told_from_a_command_that_failed() {
        let endpoint = RemoteEndpoint::new("peer", "/bin/false");
        let failed = endpoint.list("tank").await;
        assert!(
            matches!(failed, Err(ReplicationError::Failed(_))),
            "{failed:?}"
        );
        let directory = tempfile::tempdir().expect("a directory");
        let script = directory.path().join("ssh");
        std::fs::write(
            &script,
            "echo 'ssh: connect to host peer port 22: No route to host' >&2\nexit 255\n",
        )
        .expect("written");
        let endpoint = RemoteEndpoint::new("peer", &format!("/bin/sh {}", script.display()));
        let unreachable = endpoint.list("tank").await.expect_err("unreachable");
        assert_eq!(
            unreachable.to_string(),
            "peer cannot be reached: ssh: connect to host peer port 22: No route to host"
        );
        let missing = RemoteEndpoint::new("peer", "/nonexistent/ssh")
            .list("tank")
            .await;
        assert!(
            missing
                .expect_err("refused")
                .to_string()
                .contains("cannot run")
        );
    }
}

//! Both ends of a connection, over a pipe, with a side that remembers what it was asked.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::DatasetKind;
use engine::stream::StreamChunk;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};

use super::client::{BoxedLink, Connector, HELLO_TIMEOUT, PeerEndpoint, PeerLinks, pair};
use super::pairing::{Code, Grant};
use super::server::{Host, PeerServer, Visitor};
use super::{Fingerprint, PeerBook};
use crate::replication::{
    ByteStream, Compression, Endpoint, Fence, Mark, Point, Reached, ReceiveSpec, ReplicaDataset,
    ReplicationError, StreamSpec, Switchover,
};

/// What a side was asked, and what it received.
#[derive(Clone, Default)]
struct Recorder {
    asked: Arc<Mutex<Vec<String>>>,
    received: Arc<Mutex<Vec<u8>>>,
    /// What [`Endpoint::send`] gives in place of [`content`].
    sends: Arc<Mutex<Option<Vec<u8>>>>,
    /// What [`Endpoint::receive`] fails with after some bytes.
    refuses: Arc<Mutex<Option<ReplicationError>>>,
}

impl Recorder {
    fn note(&self, what: impl Into<String>) {
        self.asked.lock().expect("unpoisoned").push(what.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().expect("unpoisoned"))
    }

    fn done(&self, what: String) -> Reached<'_, ()> {
        self.note(what);
        async { Ok(()) }.boxed()
    }
}

fn dataset(name: &str) -> ReplicaDataset {
    let point = |name: &str, create_txg| Point {
        name: name.to_owned(),
        guid: create_txg,
        create_txg,
        holds: 0,
        creation: 0,
    };
    ReplicaDataset {
        snapshots: vec![point("before", 5), point("sent", 15)],
        mark: Some(Mark {
            job: "vm".to_owned(),
            source_guid: 9,
            adopted_txg: 10,
        }),
        ..ReplicaDataset::new(name.to_owned(), 1, DatasetKind::Filesystem)
    }
}

/// Bytes of the streams that are sent.
fn content() -> Vec<u8> {
    (0..700_000_u32).flat_map(u32::to_le_bytes).collect()
}

impl Endpoint for Recorder {
    fn list<'a>(&'a self, root: &'a str) -> Reached<'a, Option<Vec<ReplicaDataset>>> {
        self.note(format!("list {root}"));
        async move { Ok((root != "tank/vm/none").then(|| vec![dataset(root)])) }.boxed()
    }
    fn write_out(&self) -> Reached<'_, ()> {
        self.done("write_out".to_owned())
    }
    fn unchanged_since(&self) -> Reached<'_, Option<u64>> {
        async { Ok(Some(77)) }.boxed()
    }
    fn exists<'a>(&'a self, dataset: &'a str) -> Reached<'a, bool> {
        async move { Ok(dataset == "tank") }.boxed()
    }
    fn find<'a>(&'a self, _dataset: &'a str, guid: u64) -> Reached<'a, Option<String>> {
        let name = if guid == 1 {
            "tank/vm/found"
        } else {
            "tank/secret"
        };
        async move { Ok(Some(name.to_owned())) }.boxed()
    }
    fn snapshot(&self, names: Vec<String>) -> Reached<'_, ()> {
        self.done(format!("snapshot {}", names.join(" ")))
    }
    fn size(&self, _spec: StreamSpec) -> Reached<'_, Option<u64>> {
        async {
            Err(ReplicationError::OutOfSpace {
                target: "tank".to_owned(),
            })
        }
        .boxed()
    }
    fn send(&self, spec: StreamSpec) -> Reached<'_, ByteStream> {
        async move {
            let sends = self.sends.lock().expect("unpoisoned").clone();
            let mut parts: Vec<_> = sends
                .unwrap_or_else(content)
                .chunks(70_001)
                .map(|c| Ok(c.to_vec().into()))
                .collect();
            if spec.snapshot == "broken" {
                parts.truncate(20);
                parts.push(Err(ReplicationError::Failed("a bad block".to_owned())));
            }
            Ok(stream::iter(parts).boxed())
        }
        .boxed()
    }
    fn receive(&self, spec: ReceiveSpec, mut bytes: ByteStream) -> Reached<'_, ()> {
        self.note(format!("receive {}", spec.dataset));
        async move {
            while let Some(chunk) = bytes.next().await {
                let chunk = chunk?;
                self.received
                    .lock()
                    .expect("unpoisoned")
                    .extend(chunk.into_vec());
                let refuses = self.refuses.lock().expect("unpoisoned").clone();
                if let Some(error) = refuses {
                    return Err(error);
                }
            }
            Ok(())
        }
        .boxed()
    }
    fn discard_interrupted<'a>(&'a self, dataset: &'a str) -> Reached<'a, ()> {
        self.done(format!("discard {dataset}"))
    }
    fn bookmark(&self, pairs: Vec<(String, String)>) -> Reached<'_, ()> {
        self.done(format!("bookmark {}", pairs.len()))
    }
    fn destroy_bookmarks(&self, names: Vec<String>) -> Reached<'_, ()> {
        self.done(format!("destroy_bookmarks {}", names.len()))
    }
    fn destroy_snapshots(&self, names: Vec<String>) -> Reached<'_, ()> {
        self.done(format!("destroy_snapshots {}", names.join(" ")))
    }
    fn rename_snapshot<'a>(
        &'a self,
        dataset: &'a str,
        from: &'a str,
        to: &'a str,
    ) -> Reached<'a, ()> {
        self.done(format!("rename {dataset}@{from} {to}"))
    }
    fn hold<'a>(&'a self, names: Vec<String>, tag: &'a str) -> Reached<'a, ()> {
        self.done(format!("hold {tag} {}", names.len()))
    }
    fn release<'a>(&'a self, names: Vec<String>, tag: &'a str) -> Reached<'a, ()> {
        self.done(format!("release {tag} {}", names.len()))
    }
    fn set<'a>(&'a self, dataset: &'a str, name: &'a str, value: &'a str) -> Reached<'a, ()> {
        self.done(format!("set {dataset} {name}={value}"))
    }
    fn rollback<'a>(
        &'a self,
        dataset: &'a str,
        snapshot: &'a str,
        newer: Vec<String>,
    ) -> Reached<'a, ()> {
        self.done(format!("rollback {dataset}@{snapshot} {}", newer.len()))
    }
}

impl Switchover for Recorder {
    fn take_over<'a>(&'a self, root: &'a str, job: &'a str) -> Reached<'a, Vec<String>> {
        self.note(format!("take over {root} of {job}"));
        let taken = vec![root.to_owned()];
        async { Ok(taken) }.boxed()
    }
    fn is_in_use<'a>(&'a self, dataset: &'a str) -> Reached<'a, bool> {
        let is = dataset.ends_with("/used");
        async move { Ok(is) }.boxed()
    }
    fn fence<'a>(&'a self, dataset: &'a str, fence: &'a Fence) -> Reached<'a, ()> {
        self.done(format!("fence {dataset} {fence}"))
    }
    fn inherit<'a>(&'a self, dataset: &'a str, name: &'a str, _received: bool) -> Reached<'a, ()> {
        self.done(format!("inherit {dataset} {name}"))
    }
    fn clone_snapshot<'a>(
        &'a self,
        snapshot: &'a str,
        name: &'a str,
        _mark: &'a str,
    ) -> Reached<'a, ()> {
        self.done(format!("clone {snapshot} {name}"))
    }
    fn destroy<'a>(&'a self, dataset: &'a str) -> Reached<'a, ()> {
        self.done(format!("destroy {dataset}"))
    }
}

impl Host for Recorder {
    fn side<'a>(
        &'a self,
        pool: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Switchover>, ReplicationError>> {
        assert_eq!(pool, "tank");
        let side = self.clone();
        async { Ok(Box::new(side) as Box<dyn Switchover>) }.boxed()
    }
    fn changed(&self) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
    fn put_in_use<'a>(&'a self, peer: &'a str, datasets: &'a [String]) -> BoxFuture<'a, ()> {
        Self::note(self, format!("{peer} uses {}", datasets.join(" ")));
        async {}.boxed()
    }
    fn note(&self, peer: &str, _from: IpAddr, event: &str) {
        Self::note(self, format!("{peer}: {event}"));
    }
    fn now(&self) -> u64 {
        1000
    }
}

fn certificate(name: &str) -> Fingerprint {
    Fingerprint::of(name.as_bytes())
}

/// An appliance that answers, and what connects to it as the one with this certificate.
#[derive(Clone)]
struct Pipes {
    server: Arc<PeerServer>,
    certificate: Fingerprint,
    opened: Arc<AtomicU32>,
    /// Changes what comes from the client: the byte of this place is flipped.
    flipped: Option<usize>,
    /// Bytes from the client, and to it.
    carried: Arc<[AtomicUsize; 2]>,
}

impl Pipes {
    fn link(&self) -> BoxedLink {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let (near, far) = tokio::io::duplex(64 << 10);
        let visitor = Visitor {
            certificate: self.certificate,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        let server = self.server.clone();
        let (inner, outer) = tokio::io::duplex(64 << 10);
        tokio::spawn(carry(far, outer, self.flipped, self.carried.clone()));
        tokio::spawn(async move { server.serve(Box::new(inner), visitor).await });
        Box::new(near)
    }
}

/// Passes bytes on in both directions, counts them, and flips a bit of one from the client.
async fn carry(
    client: DuplexStream,
    server: DuplexStream,
    flipped: Option<usize>,
    carried: Arc<[AtomicUsize; 2]>,
) {
    let (from_client, to_client) = tokio::io::split(client);
    let (from_server, to_server) = tokio::io::split(server);
    tokio::join!(
        pass(from_client, to_server, flipped, &carried[0]),
        pass(from_server, to_client, None, &carried[1])
    );
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    flipped: Option<usize>,
    carried: &AtomicUsize,
) {
    let mut passed = 0;
    let mut bytes = vec![0; 8192];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        if let Some(place) = flipped.filter(|place| (passed..passed + read).contains(place)) {
            bytes[place - passed] ^= 1;
        }
        passed += read;
        carried.fetch_add(read, Ordering::Relaxed);
        if to.write_all(&bytes[..read]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

impl Connector for Pipes {
    fn connect<'a>(&'a self, _peer: &'a str) -> BoxFuture<'a, Result<BoxedLink, ReplicationError>> {
        async { Ok(self.link()) }.boxed()
    }
}

struct Pair {
    _state: tempfile::TempDir,
    book: Arc<PeerBook>,
    side: Recorder,
    pipes: Pipes,
    endpoint: PeerEndpoint,
}

fn unpaired(name: &str) -> Pair {
    let state = tempfile::tempdir().expect("a directory");
    let (book, side) = (PeerBook::new(state.path()), Recorder::default());
    let server = PeerServer::new(book.clone(), Box::new(side.clone()), certificate("server"));
    let pipes = Pipes {
        server,
        certificate: certificate(name),
        opened: Arc::default(),
        flipped: None,
        carried: Arc::default(),
    };
    let links = PeerLinks::new(Box::new(pipes.clone()));
    Pair {
        _state: state,
        endpoint: PeerEndpoint::new(links, "server", "tank/vm", Compression::default()),
        book,
        side,
        pipes,
    }
}

fn grant() -> Grant {
    Grant {
        name: "client".to_owned(),
        datasets: vec!["tank/vm".to_owned()],
        push: true,
        pull: true,
        failover: true,
    }
}

async fn redeem(pair_of: &Pair, code: &Code) -> Result<super::message::Paired, String> {
    let seen = (certificate("server"), pair_of.pipes.certificate);
    pair(pair_of.pipes.link(), code, (&seen.0, &seen.1), "box").await
}

async fn paired() -> Pair {
    let pair_of = unpaired("client");
    let code = pair_of.book.invite(grant(), 1000).expect("a code");
    redeem(&pair_of, &code).await.expect("paired");
    pair_of.side.take();
    pair_of
}

#[tokio::test]
async fn whether_a_dataset_may_be_fenced_is_found_out_beforehand() {
    for failover in [true, false] {
        let pair_of = unpaired("client");
        let invited = Grant {
            failover,
            ..grant()
        };
        let code = pair_of.book.invite(invited, 1000).expect("a code");
        redeem(&pair_of, &code).await.expect("paired");
        pair_of.side.take();
        let may = pair_of.endpoint.check_fence("tank/vm", "vm").await;
        let denied = matches!(&may, Err(ReplicationError::Denied { .. }));
        assert_eq!((may.is_ok(), denied), (failover, !failover), "{may:?}");
        // For generation 0, which no dataset is below of.
        let asked = pair_of.side.take();
        let fences = asked.iter().filter(|line| line.contains("fence"));
        assert!(
            fences.clone().all(|line| line.contains("0:vm")),
            "{asked:?}"
        );
        assert_eq!(fences.count(), usize::from(failover), "{asked:?}");
    }
}

#[tokio::test]
async fn a_code_pairs_once_and_no_other_does() {
    let pair_of = unpaired("client");
    // No invitation: a stranger can ask for nothing.
    let denied = pair_of.endpoint.list("tank/vm").await.expect_err("unknown");
    assert!(
        matches!(denied, ReplicationError::Denied { .. }),
        "{denied}"
    );
    let code = pair_of.book.invite(grant(), 1000).expect("a code");
    let wrong = Code::parse(&format!("{}{}", code.id(), "0".repeat(20))).expect("a code");
    let refused = redeem(&pair_of, &wrong).await.expect_err("wrong");
    assert!(refused.contains("not good"), "{refused}");
    // What stands between has another certificate.
    let seen = (certificate("between"), certificate("client"));
    let refused = pair(pair_of.pipes.link(), &code, (&seen.0, &seen.1), "box").await;
    assert!(refused.is_err());
    let paired = redeem(&pair_of, &code).await.expect("paired");
    assert_eq!((paired.name.as_str(), paired.push), ("client", true));
    assert!(
        pair_of
            .side
            .take()
            .last()
            .expect("noted")
            .starts_with("client: paired")
    );
    let again = redeem(&pair_of, &code).await;
    assert!(again.is_err());
    // An answer that proves nothing: whoever answered, it was not the inviter.
    let liar = unpaired("client");
    let other = liar.book.invite(grant(), 1000).expect("a code");
    let made_up = Code::parse(&format!(
        "{}{}",
        other.id(),
        &code.to_string().replace('-', "")[4..]
    ));
    assert!(redeem(&liar, &made_up.expect("a code")).await.is_err());
    let expired = liar.book.invite(Grant::default(), 0).expect("a code");
    assert!(redeem(&liar, &expired).await.is_err());
}

#[tokio::test]
async fn calls_arrive_as_they_were_made_and_errors_are_what_they_were() {
    let Pair {
        endpoint,
        side,
        pipes,
        ..
    } = paired().await;
    let opened = pipes.opened.load(Ordering::Relaxed);
    assert_eq!(
        endpoint.list("tank/vm").await.expect("listed"),
        Some(vec![dataset("tank/vm")])
    );
    assert_eq!(endpoint.list("tank/vm/none").await.expect("listed"), None);
    assert_eq!(endpoint.unchanged_since().await, Ok(Some(77)));
    endpoint.write_out().await.expect("written");
    assert_eq!(endpoint.exists("tank").await, Ok(true));
    assert_eq!(
        endpoint.find("tank/vm", 1).await,
        Ok(Some("tank/vm/found".to_owned()))
    );
    // The pool holds it, and the peer may not know.
    assert_eq!(endpoint.find("tank/vm", 2).await, Ok(None));
    let spec = StreamSpec {
        dataset: "tank/vm".to_owned(),
        snapshot: "s".to_owned(),
        from: None,
        token: None,
        properties: false,
        raw: false,
    };
    let full = endpoint.size(spec).await;
    assert!(matches!(full, Err(ReplicationError::OutOfSpace { .. })));
    let outside = endpoint.list("tank/other").await;
    assert!(matches!(outside, Err(ReplicationError::Denied { .. })));
    side.take();
    let many = (0..5000).map(|at| format!("tank/vm/{at}@s")).collect();
    endpoint.hold(many, "replica-vm").await.expect("held");
    let holds = [
        "hold replica-vm 2000",
        "hold replica-vm 2000",
        "hold replica-vm 1000",
    ];
    assert_eq!(side.take(), holds);
    // All over one connection.
    assert_eq!(pipes.opened.load(Ordering::Relaxed), opened + 1);
    let sent = vec!["tank/vm@sent".to_owned()];
    endpoint.destroy_snapshots(sent).await.expect("destroyed");
    let before = endpoint
        .destroy_snapshots(vec!["tank/vm@before".to_owned()])
        .await;
    assert!(
        matches!(before, Err(ReplicationError::Denied { .. })),
        "{before:?}"
    );
    let no_test = endpoint.destroy("tank/vm/one").await;
    assert!(matches!(no_test, Err(ReplicationError::Denied { .. })));
    assert!(
        !side
            .take()
            .iter()
            .any(|asked| asked.contains("before") && asked.contains("destroy"))
    );
}

fn spec(snapshot: &str) -> StreamSpec {
    StreamSpec {
        dataset: "tank/vm".to_owned(),
        snapshot: snapshot.to_owned(),
        from: None,
        token: None,
        properties: false,
        raw: false,
    }
}

fn into() -> ReceiveSpec {
    ReceiveSpec {
        dataset: "tank/vm/x".to_owned(),
        ..ReceiveSpec::default()
    }
}

fn in_chunks(
    parts: impl Stream<Item = Result<Vec<u8>, ReplicationError>> + Send + 'static,
) -> ByteStream {
    parts.map(|part| part.map(StreamChunk::from)).boxed()
}

#[tokio::test]
async fn streams_go_in_both_directions_and_keep_their_errors() {
    let Pair {
        endpoint,
        side,
        pipes,
        ..
    } = paired().await;
    let opened = pipes.opened.load(Ordering::Relaxed);
    let sent = endpoint.send(spec("s")).await.expect("begun");
    let come: Vec<_> = sent.collect().await;
    let come = come
        .into_iter()
        .map(|chunk| chunk.map(StreamChunk::into_vec));
    let come: Result<Vec<Vec<u8>>, _> = come.collect();
    assert_eq!(come.expect("whole").concat(), content());
    let broken: Vec<_> = endpoint
        .send(spec("broken"))
        .await
        .expect("begun")
        .collect()
        .await;
    let error = broken.last().expect("an end").as_ref().expect_err("broken");
    assert!(error.to_string().contains("a bad block"), "{error}");

    let parts = content()
        .chunks(50_000)
        .map(|c| Ok(c.to_vec()))
        .collect::<Vec<_>>();
    let received = endpoint
        .receive(into(), in_chunks(stream::iter(parts.clone())))
        .await;
    assert_eq!(received, Ok(()));
    assert_eq!(*side.received.lock().expect("unpoisoned"), content());
    assert!(pipes.opened.load(Ordering::Relaxed) <= opened + 2);

    // Refused in the middle, while the sender has more than fits into the link.
    *side.refuses.lock().expect("unpoisoned") = Some(ReplicationError::OutOfSpace {
        target: "tank".to_owned(),
    });
    let endless = stream::iter(parts.clone()).chain(stream::repeat(Ok(vec![0; 100_000])));
    let refused = endpoint.receive(into(), in_chunks(endless)).await;
    assert!(
        matches!(refused, Err(ReplicationError::OutOfSpace { .. })),
        "{refused:?}"
    );
    *side.refuses.lock().expect("unpoisoned") = None;

    // The source breaks: that is what is told, and the other side keeps what came.
    let mut cut = parts[..20].to_vec();
    cut.push(Err(ReplicationError::Failed("a bad block".to_owned())));
    let broken = endpoint.receive(into(), in_chunks(stream::iter(cut))).await;
    assert_eq!(
        broken,
        Err(ReplicationError::Failed("a bad block".to_owned()))
    );
    assert!(!side.take().iter().any(|asked| asked.starts_with("discard")));
}

#[tokio::test]
async fn a_job_says_how_its_streams_are_compressed_in_both_directions() {
    let pair_of = paired().await;
    let text: Vec<u8> = (0..200_000_u32)
        .flat_map(|at| format!("{at}\n").into_bytes())
        .collect();
    *pair_of.side.sends.lock().expect("unpoisoned") = Some(text.clone());
    let carried = &pair_of.pipes.carried;
    let mut carried_of = Vec::new();
    for compression in [
        Compression::Off,
        Compression::default(),
        Compression::Zstd(12),
    ] {
        let links = PeerLinks::new(Box::new(pair_of.pipes.clone()));
        let endpoint = PeerEndpoint::new(links, "server", "tank/vm", compression);
        let before = carried.each_ref().map(|way| way.load(Ordering::Relaxed));
        let come: Vec<_> = endpoint
            .send(spec("s"))
            .await
            .expect("begun")
            .collect()
            .await;
        let come: Result<Vec<Vec<u8>>, _> = come
            .into_iter()
            .map(|chunk| chunk.map(StreamChunk::into_vec))
            .collect();
        assert!(come.expect("whole").concat() == text, "{compression}");
        pair_of.side.received.lock().expect("unpoisoned").clear();
        let parts: Vec<_> = text.chunks(50_000).map(|part| Ok(part.to_vec())).collect();
        let received = endpoint.receive(into(), in_chunks(stream::iter(parts)));
        assert_eq!(received.await, Ok(()));
        assert!(*pair_of.side.received.lock().expect("unpoisoned") == text);
        let after = carried.each_ref().map(|way| way.load(Ordering::Relaxed));
        carried_of.push([after[0] - before[0], after[1] - before[1]]);
    }
    for way in [0, 1] {
        let [off, fast, small] = [0, 1, 2].map(|at| carried_of[at][way]);
        assert!(
            off > text.len() && fast < off / 2 && small < fast,
            "{carried_of:?}"
        );
    }
}

#[tokio::test]
async fn a_flipped_bit_never_completes_a_receive() {
    let pair_of = paired().await;
    for place in (5_000..300_000).step_by(59_000) {
        let links = PeerLinks::new(Box::new(Pipes {
            flipped: Some(place),
            ..pair_of.pipes.clone()
        }));
        let endpoint = PeerEndpoint::new(links, "server", "tank/vm", Compression::default());
        let parts = content()
            .chunks(50_000)
            .map(|c| Ok(c.to_vec()))
            .collect::<Vec<_>>();
        let received = endpoint.receive(into(), in_chunks(stream::iter(parts)));
        let received = tokio::time::timeout(Duration::from_secs(20), received).await;
        let error = received.expect("an answer").expect_err("damaged");
        assert!(
            matches!(error, ReplicationError::Damaged { .. }),
            "{place}: {error}"
        );
        let asked = pair_of.side.take();
        assert_eq!(
            asked.last().map(String::as_str),
            Some("discard tank/vm/x"),
            "{place}"
        );
    }
}

#[tokio::test]
async fn a_peer_that_is_removed_is_cut_off_in_the_middle_of_a_stream() {
    let pair_of = paired().await;
    let mut sent = pair_of.endpoint.send(spec("s")).await.expect("begun");
    assert!(sent.next().await.expect("bytes").is_ok());
    pair_of
        .book
        .change(|peers| peers.remove("client"))
        .expect("removed");
    let rest: Vec<_> = sent.collect().await;
    let error = rest.last().expect("an end").as_ref().expect_err("cut off");
    assert!(
        matches!(error, ReplicationError::Unreachable { .. }),
        "{error}"
    );
    let denied = pair_of.endpoint.list("tank/vm").await;
    assert!(denied.is_err());
}

#[tokio::test]
async fn what_says_nothing_ends_and_nonsense_does() {
    let pair_of = paired().await;
    let ends = [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"",
        b"M",
        b"M\0\0\0\x02{}",
        b"P\0\0\0\x01{P\0\0\0\x01 ",
        &[0xff; 4096],
    ]
    .map(async |nonsense| {
        let mut link = pair_of.pipes.link();
        link.write_all(nonsense).await.expect("sent");
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(2 * HELLO_TIMEOUT, link.read_to_end(&mut answer));
        assert!(ended.await.is_ok(), "{nonsense:?}");
    });
    futures_util::future::join_all(ends).await;
    // A server that says nothing.
    let (near, _far) = tokio::io::duplex(1024);
    let code = Code::make().expect("random");
    let seen = (certificate("a"), certificate("b"));
    let refused = pair(Box::new(near), &code, (&seen.0, &seen.1), "box").await;
    assert_eq!(refused, Err("no answer".to_owned()));
}

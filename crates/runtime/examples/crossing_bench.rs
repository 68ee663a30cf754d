//! Where should sockets live? Measures the way into the engine thread.
//!
//! 1. A mailbox round trip: tokio task -> engine -> reply, with 1, 32 and 256 requests in flight.
//! 2. Loopback TCP, 128-byte request and 4 KiB reply, 1 and 32 connections, served
//!    a. by tokio threads that pass each request to the engine thread by mailbox, and
//!    b. by one thread with the sockets in its own io_uring (what the engine's ring would do), no crossing.
//!
//! `cargo run --release -p runtime --example crossing_bench -- [SECONDS]`
//! CPU is that of the serving side only (process minus client thread).

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use runtime::host::{HostConfig, spawn_engine};
use runtime::mailbox::{Receiver, Sender, mailbox};
use runtime::reply::{ReplySender, reply};
use runtime::{Handle, IoBuf};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const REQUEST: usize = 128;
const REPLY: usize = 4096;

struct Request {
    reply: ReplySender<IoBuf>,
}

fn cpu_seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).expect("below a second"),
    )
    .as_secs_f64()
}

async fn serve(_handle: Handle, mut receiver: Receiver<Request>) {
    let answer = IoBuf::zeroed(REPLY);
    let mut batch = Vec::new();
    while receiver.receive_many(&mut batch, 64).await {
        for request in batch.drain(..) {
            request.reply.send(answer.clone());
        }
    }
}

fn engine() -> (Sender<Request>, runtime::host::EngineThread<()>) {
    let (sender, receiver) = mailbox(256);
    let engine = spawn_engine("engine", HostConfig::default(), move |handle| {
        serve(handle, receiver)
    });
    (sender, engine)
}

async fn ask(sender: &Sender<Request>) -> IoBuf {
    let (reply, answer) = reply();
    assert!(
        sender.send(Request { reply }).await.is_ok(),
        "the engine lives"
    );
    answer.await.expect("replies")
}

fn tokio_runtime(threads: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .expect("starts")
}

fn round_trips(in_flight: usize, seconds: f64) {
    let (sender, engine) = engine();
    let tokio = tokio_runtime(1);
    let cpu = cpu_seconds(ClockId::ProcessCPUTime);
    let start = Instant::now();
    let count = tokio.block_on(async {
        let tasks: Vec<_> = (0..in_flight)
            .map(|_| {
                let sender = sender.clone();
                tokio::spawn(async move {
                    let mut count = 0_u32;
                    while start.elapsed().as_secs_f64() < seconds {
                        ask(&sender).await;
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let mut total = 0;
        for task in tasks {
            total += task.await.expect("no panic");
        }
        total
    });
    report(
        &format!("mailbox, {in_flight} in flight"),
        count,
        start.elapsed(),
        cpu_seconds(ClockId::ProcessCPUTime) - cpu,
    );
    drop(sender);
    engine.join().expect("ends well");
}

fn report(what: &str, count: u32, elapsed: Duration, cpu: f64) {
    let rate = f64::from(count) / elapsed.as_secs_f64();
    let each = cpu / f64::from(count) * 1e6;
    eprintln!("| {what} | {rate:.0}/s | {each:.2} us CPU each |");
}

/// One thread, `connections` sockets, one request in flight on each.
fn clients(address: std::net::SocketAddr, connections: usize, seconds: f64) -> (u32, f64) {
    std::thread::spawn(move || {
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("starts");
        let start = Instant::now();
        let count = tokio.block_on(async {
            let tasks: Vec<_> = (0..connections)
                .map(|_| {
                    tokio::spawn(async move {
                        let mut socket = tokio::net::TcpStream::connect(address)
                            .await
                            .expect("connects");
                        socket.set_nodelay(true).expect("is a socket");
                        let (request, mut answer) = ([1; REQUEST], vec![0; REPLY]);
                        let mut count = 0_u32;
                        while start.elapsed().as_secs_f64() < seconds {
                            socket.write_all(&request).await.expect("sends");
                            socket.read_exact(&mut answer).await.expect("receives");
                            count += 1;
                        }
                        count
                    })
                })
                .collect();
            let mut total = 0;
            for task in tasks {
                total += task.await.expect("no panic");
            }
            total
        });
        (count, cpu_seconds(ClockId::ThreadCPUTime))
    })
    .join()
    .expect("no panic")
}

fn tokio_in_front(connections: usize, threads: usize, seconds: f64) {
    let (sender, engine) = engine();
    let tokio = tokio_runtime(threads);
    let listener = tokio
        .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
        .expect("binds");
    let address = listener.local_addr().expect("is bound");
    let own = sender.clone();
    tokio.spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.expect("accepts");
            socket.set_nodelay(true).expect("is a socket");
            let sender = own.clone();
            tokio::spawn(async move {
                let mut request = [0; REQUEST];
                while socket.read_exact(&mut request).await.is_ok() {
                    let answer = ask(&sender).await;
                    if socket.write_all(&answer).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    let cpu = cpu_seconds(ClockId::ProcessCPUTime);
    let start = Instant::now();
    let (count, client_cpu) = clients(address, connections, seconds);
    let cpu = cpu_seconds(ClockId::ProcessCPUTime) - cpu - client_cpu;
    report(
        &format!("TCP, {connections} connections, {threads} tokio threads + mailbox"),
        count,
        start.elapsed(),
        cpu,
    );
    drop(tokio);
    drop(sender);
    engine.join().expect("ends well");
}

/// The least a ring can do: accept, receive, send; whole requests and replies are small enough not to be split.
fn ring_server(listener: &TcpListener, stop: &AtomicBool, served: &AtomicU64) {
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(256)
        .expect("io_uring is allowed");
    let answer = vec![0_u8; REPLY];
    let mut sockets: BTreeMap<u64, (OwnedFd, Box<[u8; REQUEST]>)> = BTreeMap::new();
    let accept = opcode::Accept::new(
        types::Fd(listener.as_raw_fd()),
        std::ptr::null_mut(),
        std::ptr::null_mut(),
    )
    .build()
    .user_data(0);
    // SAFETY: the listener outlives the ring.
    unsafe { ring.submission().push(&accept).expect("has room") };
    while !stop.load(Ordering::Relaxed) {
        ring.submit_and_wait(1).expect("enters");
        let done: Vec<(u64, i32)> = ring
            .completion()
            .map(|entry| (entry.user_data(), entry.result()))
            .collect();
        for (data, result) in done {
            let (id, was_send) = (data >> 1, data & 1 == 1);
            if id == 0 {
                // SAFETY: a descriptor the kernel has just made for us.
                let socket = unsafe { OwnedFd::from_raw_fd(result) };
                let id = u64::try_from(result).expect("a descriptor");
                rustix::net::sockopt::set_tcp_nodelay(&socket, true).expect("is a socket");
                sockets.insert(id, (socket, Box::new([0; REQUEST])));
                // SAFETY: as above.
                unsafe { ring.submission().push(&accept).expect("has room") };
                receive(&mut ring, &mut sockets, id);
            } else if result <= 0 {
                sockets.remove(&id);
            } else if was_send {
                served.fetch_add(1, Ordering::Relaxed);
                receive(&mut ring, &mut sockets, id);
            } else {
                let fd = types::Fd(sockets[&id].0.as_raw_fd());
                let send = opcode::Send::new(fd, answer.as_ptr(), 4096)
                    .build()
                    .user_data(id << 1 | 1);
                // SAFETY: the answer outlives the ring.
                unsafe { ring.submission().push(&send).expect("has room") };
            }
        }
    }
}

fn receive(
    ring: &mut IoUring,
    sockets: &mut BTreeMap<u64, (OwnedFd, Box<[u8; REQUEST]>)>,
    id: u64,
) {
    let (socket, buffer) = sockets.get_mut(&id).expect("is open");
    let fd = types::Fd(socket.as_raw_fd());
    let entry = opcode::Recv::new(fd, buffer.as_mut_ptr(), 128)
        .build()
        .user_data(id << 1);
    // SAFETY: the boxed buffer stays where it is until the socket is removed, which happens after its last completion.
    unsafe { ring.submission().push(&entry).expect("has room") };
}

fn sockets_in_ring(connections: usize, seconds: f64) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = listener.local_addr().expect("is bound");
    let stop = Arc::new(AtomicBool::new(false));
    let (own_stop, served) = (stop.clone(), Arc::new(AtomicU64::new(0)));
    let own_served = served.clone();
    let server = std::thread::spawn(move || ring_server(&listener, &own_stop, &own_served));
    let cpu = cpu_seconds(ClockId::ProcessCPUTime);
    let start = Instant::now();
    let (count, client_cpu) = clients(address, connections, seconds);
    let cpu = cpu_seconds(ClockId::ProcessCPUTime) - cpu - client_cpu;
    report(
        &format!("TCP, {connections} connections, sockets in the engine's ring"),
        count,
        start.elapsed(),
        cpu,
    );
    stop.store(true, Ordering::Relaxed);
    // One more connection wakes the ring so that it sees the stop.
    let mut last = TcpStream::connect(address).expect("connects");
    let _ = last.write_all(&[0; REQUEST]);
    let _ = last.read(&mut [0; 1]);
    drop(last);
    let _ = TcpStream::connect(address);
    server.join().expect("no panic");
}

fn main() {
    let seconds = std::env::args()
        .nth(1)
        .map_or(2.0, |text| text.parse().expect("seconds"));
    eprintln!("| what | rate | cost |\n|---|---|---|");
    for in_flight in [1, 32, 256] {
        round_trips(in_flight, seconds);
    }
    for connections in [1, 32] {
        tokio_in_front(connections, 1, seconds);
        tokio_in_front(connections, 2, seconds);
        sockets_in_ring(connections, seconds);
    }
}

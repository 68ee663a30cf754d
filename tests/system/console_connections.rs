//! Connections to the console that say nothing, or say it slowly: browsers get in all the same.

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use serde_json::json;

use crate::cli::{Place, wait_for};
use crate::console::{owner, serve_with};

/// A connection from one of many addresses of this machine.
fn connect_from(number: u32, port: u16) -> Option<TcpStream> {
    let own = Ipv4Addr::from(0x7f50_0001 + number % 100);
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    // Programs that tests beside this one start do not inherit it.
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).ok()?;
    bind(&socket, &SocketAddrV4::new(own, 0)).ok()?;
    connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).ok()?;
    Some(TcpStream::from(socket))
}

/// 10,000 connections from 100 addresses, of which each may have a quarter of all: a browser gets in at any time, and a stream of events
/// that was there before goes on.
#[test]
#[ignore = "long: 10,000 connections, one after the other"]
fn ten_thousand_idle_connections_keep_no_browser_out() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("as many files as are allowed");
    let count: u32 = 10_000;
    let enough = limit
        .maximum
        .is_none_or(|most| most > u64::from(count) + 500);
    assert!(enough, "more file descriptors than {:?}", limit.maximum);
    let mut place = Place::new();
    assert_eq!(
        place.run("truncate -s 128M a && zpool create tank $PWD/a"),
        ""
    );
    let port = serve_with(&mut place, &[]);
    let ann = owner(&place, port);
    let mut events = Command::new("curl")
        .args(["-sSN", "--max-time", "300", "--cacert"])
        .arg(place.path("state/console-cert.pem"))
        .arg("-b")
        .arg(place.path("cookies"))
        .arg("-o")
        .arg(place.path("events"))
        .arg(format!("https://localhost:{port}/api/v1/events"))
        .stdout(Stdio::null())
        .spawn()
        .expect("curl runs");
    let mut idle = Vec::new();
    for number in 0..count {
        idle.extend(connect_from(number, port));
        if number % 1000 == 999 {
            let began = Instant::now();
            assert_eq!(ann.get("/api/v1/pools")[0]["name"], "tank");
            let took = began.elapsed();
            assert!(took < Duration::from_secs(5), "{number}: {took:?}");
        }
    }
    assert_eq!(idle.len(), usize::try_from(count).expect("small"));
    let command = json!({"tool": "zfs", "arguments": ["snapshot", "tank@among"]});
    let (status, said) = ann.ask("POST", "/api/v1/commands", Some(&command));
    assert_eq!(status, 202, "{said}");
    wait_for("the event", || {
        let seen = std::fs::read_to_string(place.path("events")).unwrap_or_default();
        seen.contains("tank@among").then_some(()).ok_or(seen)
    });
    let _ = events.kill();
    let _ = events.wait();
    drop(idle);
    place.stop();
}

/// Sixty clients with TLS whose requests come by a letter a second, and never end.
const SLOW: &str = "
import socket, ssl, sys, threading, time
port, certificate = int(sys.argv[1]), sys.argv[2]
context = ssl.create_default_context(cafile=certificate)
ended = []
def slow(number):
    plain = socket.create_connection(('127.0.0.1', port), source_address=(f'127.81.0.{number % 6 + 1}', 0))
    stream = context.wrap_socket(plain, server_hostname='localhost')
    began = time.monotonic()
    try:
        stream.sendall(b'GET /api/v1/pools HTTP/1.1\\r\\nx: ')
        while time.monotonic() - began < 120:
            stream.sendall(b'x')
            time.sleep(1)
            stream.settimeout(0.01)
            try:
                if not stream.recv(4096): break
            except TimeoutError: pass
    except OSError: pass
    ended.append(time.monotonic() - began)
all = [threading.Thread(target=slow, args=(number,)) for number in range(60)]
for one in all: one.start()
print('slow', flush=True)
for one in all: one.join()
print(len(ended), int(max(ended)), flush=True)
";

#[test]
#[ignore = "long: it waits for a minute, until heads of requests that do not end are given up"]
fn requests_by_the_letter_end_and_hold_up_no_browser() {
    let mut place = Place::new();
    let port = serve_with(&mut place, &[]);
    let ann = owner(&place, port);
    let mut slow = Command::new("python3")
        .args(["-c", SLOW, &port.to_string()])
        .arg(place.path("state/console-cert.pem"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let began = Instant::now();
    while slow.try_wait().expect("its state").is_none() {
        let asked = Instant::now();
        assert_eq!(ann.ask("GET", "/api/v1/session", None).0, 200);
        let took = asked.elapsed();
        assert!(took < Duration::from_secs(3), "{took:?}");
        assert!(began.elapsed() < Duration::from_secs(150), "never given up");
        std::thread::sleep(Duration::from_secs(2));
    }
    let mut said = String::new();
    let output = slow.stdout.as_mut().expect("piped");
    output.read_to_string(&mut said).expect("text");
    let ends = said.lines().nth(1).unwrap_or_default();
    let (count, longest) = ends.split_once(' ').expect("two numbers");
    let longest: u32 = longest.parse().expect("seconds");
    assert!(count == "60" && longest < 90, "{said}");
    place.stop();
}

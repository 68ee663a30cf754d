//! Between threads: mailboxes, replies, engine threads.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use runtime::host::{DriverChoice, HostConfig, spawn_engine};
use runtime::mailbox::{TrySendError, mailbox};
use runtime::reply::{ReplySender, reply};
use runtime::{DiskMode, IoBufMut, Turns};

struct Request {
    number: u64,
    reply: ReplySender<u64>,
}

fn doubling_engine() -> (
    runtime::mailbox::Sender<Request>,
    runtime::host::EngineThread<u64>,
) {
    let (sender, mut receiver) = mailbox::<Request>(8);
    let engine = spawn_engine("doubler", HostConfig::default(), move |handle| async move {
        let mut served = 0;
        while let Some(request) = receiver.receive().await {
            served += 1;
            handle.spawn(
                "request",
                async move { request.reply.send(request.number * 2) },
            );
        }
        served
    });
    (sender, engine)
}

#[test]
fn plain_threads_reach_the_engine_and_get_replies() {
    let (sender, engine) = doubling_engine();
    let clients: Vec<_> = (0..4_u64)
        .map(|client| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for n in 0..500 {
                    let (reply, answer) = reply();
                    let request = Request {
                        number: client * 1000 + n,
                        reply,
                    };
                    sender.blocking_send(request).expect("the engine lives");
                    assert_eq!(answer.wait(), Ok((client * 1000 + n) * 2));
                }
            })
        })
        .collect();
    for client in clients {
        client.join().expect("no panic");
    }
    drop(sender);
    assert_eq!(engine.join().expect("ends well"), 2000);
}

#[test]
fn tokio_tasks_reach_the_engine() {
    let (sender, engine) = doubling_engine();
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("starts");
    tokio.block_on(async {
        let tasks: Vec<_> = (0..50_u64)
            .map(|n| {
                let sender = sender.clone();
                tokio::spawn(async move {
                    for _ in 0..20 {
                        let (reply, answer) = reply();
                        sender
                            .send(Request { number: n, reply })
                            .await
                            .expect("the engine lives");
                        assert_eq!(answer.await, Ok(n * 2));
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
    });
    drop(sender);
    assert_eq!(engine.join().expect("ends well"), 1000);
}

#[test]
fn a_full_mailbox_refuses_and_a_closed_one_returns_the_message() {
    let (sender, mut receiver) = mailbox::<u32>(2);
    sender.try_send(1).expect("fits");
    sender.try_send(2).expect("fits");
    assert_eq!(sender.try_send(3), Err(TrySendError::Full(3)));
    assert_eq!(receiver.try_receive(), Some(1));
    sender.try_send(3).expect("fits again");
    drop(receiver);
    assert_eq!(sender.try_send(4), Err(TrySendError::Closed(4)));
    assert!(sender.blocking_send(5).is_err());
}

#[test]
fn a_dead_engine_is_reported_and_its_clients_wake() {
    let (sender, mut receiver) = mailbox::<Request>(1);
    let engine = spawn_engine("doomed", HostConfig::default(), move |_| async move {
        let _request = receiver.receive().await;
        panic!("on purpose");
    });
    let (reply, answer) = reply();
    sender
        .blocking_send(Request { number: 1, reply })
        .expect("sent");
    assert!(answer.wait().is_err());
    let died: runtime::host::EngineDied = engine.join().map(|(): ()| ()).expect_err("it panicked");
    assert!(died.to_string().contains("on purpose"), "{died}");
}

/// What is asked of the engine below.
#[derive(Clone, Copy)]
enum Work {
    Answer,
    Sleep,
    Read,
    WriteThrough,
    OpenAndClose,
}

/// Threads take turns of an engine that sleeps most of the time. What they ask is answered in the turn where it can be; timers, disk operations
/// and the closing of disks are left to the engine's own thread, which wakes for them.
#[test]
fn other_threads_take_turns() {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 300;
    for driver in [DriverChoice::Threads, DriverChoice::Auto] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("disk");
        let written = dir.path().join("written");
        for file in [&path, &written] {
            std::fs::write(file, vec![0; 1 << 20]).expect("written");
        }
        let (sender, mut receiver) = mailbox::<(Work, Request)>(64);
        let config = HostConfig {
            driver,
            ..HostConfig::default()
        };
        let (came_up, turns) = reply();
        let engine = spawn_engine("turns", config, move |handle| async move {
            let mode = DiskMode::ReadWrite;
            let written = handle.open_disk(&written, mode).await.expect("opens");
            let written = Rc::new(written);
            came_up.send(Turns::of(&handle));
            let tasks = handle.clone();
            let serving = async move {
                while let Some((work, request)) = receiver.receive().await {
                    let (handle, path) = (tasks.clone(), path.clone());
                    let written = written.clone();
                    drop(tasks.spawn("request", async move {
                        match work {
                            Work::Answer => {}
                            Work::Sleep => handle.sleep(Duration::from_micros(50)).await,
                            Work::OpenAndClose => {
                                handle
                                    .open_disk(&path, DiskMode::ReadOnly)
                                    .await
                                    .expect("opens");
                            }
                            Work::WriteThrough => {
                                for _ in 0..20 {
                                    let data = IoBufMut::zeroed(4096).freeze();
                                    written.write_through(4096, data).await.expect("writes");
                                }
                            }
                            Work::Read => {
                                let disk = handle
                                    .open_disk(&path, DiskMode::ReadOnly)
                                    .await
                                    .expect("opens");
                                disk.read(0, 4096).await.expect("reads");
                            }
                        }
                        request.reply.send(request.number * 2);
                    }));
                }
            };
            handle.spawn("serving", serving).await;
        });
        let turns: Turns = turns.wait().expect("the engine is up");
        let taken = Arc::new(AtomicU64::new(0));
        let clients: Vec<_> = (0..THREADS)
            .map(|client| {
                let (sender, turns, taken) = (sender.clone(), turns.clone(), taken.clone());
                std::thread::spawn(move || {
                    for round in 0..ROUNDS {
                        let work = match (client + round) % 16 {
                            0 => Work::Sleep,
                            1 => Work::Read,
                            2 => Work::OpenAndClose,
                            3 => Work::WriteThrough,
                            _ => Work::Answer,
                        };
                        let number = client * 1000 + round;
                        let (reply, answer) = reply();
                        let mut message = Some((work, Request { number, reply }));
                        let sends = || {
                            let message = message.take().expect("sent once");
                            assert!(sender.try_send(message).is_ok(), "there is room");
                        };
                        if turns.take(sends) {
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                        if let Some(message) = message {
                            sender.blocking_send(message).expect("the engine lives");
                        }
                        assert_eq!(answer.wait(), Ok(number * 2));
                    }
                })
            })
            .collect();
        for client in clients {
            client.join().expect("no panic");
        }
        assert!(taken.load(Ordering::Relaxed) > 0, "no turn was taken");
        drop(sender);
        engine.join().expect("ends well");
        assert!(!turns.take(|| panic!("the engine is gone")));
    }
}

/// A task that panics in another thread's turn is one that panicked on the engine's own: nothing runs there any more.
#[test]
fn a_panic_in_a_turn_ends_the_engine() {
    let (sender, mut receiver) = mailbox::<u32>(4);
    let (came_up, turns) = reply();
    let engine = spawn_engine("panics", HostConfig::default(), move |handle| async move {
        came_up.send(Turns::of(&handle));
        let serving = async move {
            while let Some(number) = receiver.receive().await {
                assert_ne!(number, 13);
            }
        };
        handle.spawn("serving", serving).await;
    });
    let turns: Turns = turns.wait().expect("the engine is up");
    let panicked = Arc::new(AtomicBool::new(false));
    while !panicked.load(Ordering::Relaxed) {
        let (sender, turns, seen) = (sender.clone(), turns.clone(), panicked.clone());
        let visitor = std::thread::spawn(move || {
            turns.take(|| assert!(sender.try_send(13).is_ok()));
        });
        if visitor.join().is_err() {
            seen.store(true, Ordering::Relaxed);
        }
    }
    assert!(engine.join().is_err());
    assert!(!turns.take(|| panic!("the engine is gone")));
}

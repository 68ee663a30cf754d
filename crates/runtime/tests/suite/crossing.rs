//! Between threads: mailboxes, replies, engine threads.

use runtime::host::{HostConfig, spawn_engine};
use runtime::mailbox::{TrySendError, mailbox};
use runtime::reply::{ReplySender, reply};

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

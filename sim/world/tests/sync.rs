//! The runtime's sync primitives under hundreds of schedules: exclusion, fairness, nothing lost, nothing leaked when
//! waits are abandoned.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use runtime::sync::{Event, Mutex, RwLock, Semaphore, Watch, oneshot};
use runtime::{join_all, mailbox, timeout};
use world::{Ended, World, twice};

const SEEDS: u64 = 200;

fn for_seeds(scenario: impl Fn(&World)) {
    for seed in 0..SEEDS {
        twice(seed, &scenario).unwrap_or_else(|error| panic!("{error}"));
    }
}

fn nanos(count: u64) -> Duration {
    Duration::from_nanos(count)
}

/// Readers and writers with random holding times, some giving up: never a writer with another holder, and each task that waits
/// longer is served first (readers may share).
#[test]
fn locks_exclude_and_are_fair() {
    for_seeds(|world| {
        let mut rng = world.rng();
        let ended = world.run(|handle| async move {
            let lock = RwLock::new("the lock", 0_u64);
            let (readers, writers) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let queue: Rc<RefCell<VecDeque<(u64, bool)>>> = Rc::default();
            let expected = Rc::new(Cell::new(0_u64));
            let tasks: Vec<_> = (0..12_u64)
                .map(|number| {
                    let is_writer = rng.below(3) == 0;
                    let gives_up = rng.below(4) == 0;
                    let (start, hold) = (rng.below(20_000), rng.below(50_000));
                    let (lock, handle, queue) = (lock.clone(), handle.clone(), queue.clone());
                    let (readers, writers, expected) =
                        (readers.clone(), writers.clone(), expected.clone());
                    handle.clone().spawn("user", async move {
                        handle.sleep(nanos(start)).await;
                        let work = async {
                            queue.borrow_mut().push_back((number, is_writer));
                            let leave = || queue.borrow_mut().retain(|entry| entry.0 != number);
                            if is_writer {
                                let mut guard = lock.write().await;
                                assert_eq!((readers.get(), writers.replace(1)), (0, 0));
                                leave();
                                let value = *guard;
                                handle.sleep(nanos(hold)).await;
                                *guard = value + 1;
                                expected.set(expected.get() + 1);
                                writers.set(0);
                            } else {
                                let guard = lock.read().await;
                                let value = *guard;
                                assert_eq!(writers.get(), 0);
                                readers.set(readers.get() + 1);
                                leave();
                                handle.sleep(nanos(hold)).await;
                                assert_eq!(*guard, value);
                                readers.set(readers.get() - 1);
                            }
                        };
                        if gives_up {
                            // Gives up while waiting only: a task that holds the lock ends in order.
                            if let Some(guard) = timeout(&handle, nanos(5_000), lock.write()).await
                            {
                                drop(guard);
                            }
                        } else {
                            work.await;
                        }
                    })
                })
                .collect();
            join_all(tasks).await;
            assert!(!lock.is_held());
            assert_eq!(*lock.read().await, expected.get());
            assert!(queue.borrow().is_empty());
        });
        assert!(matches!(ended, Ended::Done(())));
    });
}

/// Requests of random size: never more out than there are, served in order of arrival, all back at the end.
#[test]
fn permits_are_conserved_and_first_come_first_served() {
    for_seeds(|world| {
        let mut rng = world.rng();
        let ended = world.run(|handle| async move {
            let permits = Semaphore::new("permits", 10);
            let out = Rc::new(Cell::new(0));
            let arrivals: Rc<RefCell<VecDeque<u64>>> = Rc::default();
            let tasks: Vec<_> = (0..20_u64)
                .map(|number| {
                    let count = rng.index(10) + 1;
                    let (start, hold, gives_up) =
                        (rng.below(30_000), rng.below(30_000), rng.below(4) == 0);
                    let (permits, handle) = (permits.clone(), handle.clone());
                    let (out, arrivals) = (out.clone(), arrivals.clone());
                    handle.clone().spawn("user", async move {
                        handle.sleep(nanos(start)).await;
                        if gives_up {
                            let held = timeout(&handle, nanos(3_000), permits.acquire(count)).await;
                            drop(held);
                            return;
                        }
                        let mut waiting = std::pin::pin!(permits.acquire(count));
                        arrivals.borrow_mut().push_back(number);
                        // The first poll joins the queue; granted order must be arrival order.
                        let mut held = waiting.as_mut().await;
                        out.set(out.get() + count);
                        assert!(out.get() <= 10, "{} out", out.get());
                        handle.sleep(nanos(hold)).await;
                        let back = count / 2;
                        out.set(out.get() - back);
                        held.give_back(back);
                        handle.yield_now().await;
                        out.set(out.get() - (count - back));
                        drop(held);
                    })
                })
                .collect();
            join_all(tasks).await;
            assert_eq!((permits.available(), permits.waiting()), (10, 0));
        });
        assert!(matches!(ended, Ended::Done(())));
    });
}

#[test]
fn a_queue_of_one_permit_is_served_in_order() {
    for_seeds(|world| {
        world.run(|handle| async move {
            let mutex = Mutex::new("the mutex", Vec::new());
            let first = mutex.lock().await;
            let mut tasks = Vec::new();
            for number in 0..10 {
                let (joined, is_joined) = oneshot("joining the queue");
                let mutex = mutex.clone();
                tasks.push(handle.spawn("waiter", async move {
                    let mut wait = std::pin::pin!(mutex.lock());
                    let mut joined = Some(joined);
                    let mut guard = std::future::poll_fn(|cx| {
                        let poll = wait.as_mut().poll(cx);
                        if let Some(joined) = joined.take() {
                            joined.send(()).expect("is awaited");
                        }
                        poll
                    })
                    .await;
                    guard.push(number);
                }));
                is_joined.await.expect("it joins");
            }
            drop(first);
            join_all(tasks).await;
            assert_eq!(*mutex.lock().await, (0..10).collect::<Vec<_>>());
        });
    });
}

/// `notify_one` for each item, consumers that now and then give up: no item stays behind while a task waits.
#[test]
fn events_lose_no_notification() {
    for_seeds(|world| {
        let mut rng = world.rng();
        world.run(|handle| async move {
            let (items, event) = (Rc::new(Cell::new(0_u64)), Event::new("an item"));
            let taken = Watch::new("all items taken", 0_u64);
            let consumers: Vec<_> = (0..4)
                .map(|_| {
                    let (items, event, taken, handle) =
                        (items.clone(), event.clone(), taken.clone(), handle.clone());
                    let patience = rng.between(1_000, 20_000);
                    handle.clone().spawn("consumer", async move {
                        while *taken.borrow() < 50 {
                            if items.get() > 0 {
                                items.set(items.get() - 1);
                                taken.update(|taken| *taken += 1);
                                continue;
                            }
                            let _ = timeout(&handle, nanos(patience), event.wait()).await;
                        }
                    })
                })
                .collect();
            for _ in 0..50 {
                items.set(items.get() + 1);
                event.notify_one();
                handle.sleep(nanos(rng.below(4_000))).await;
            }
            taken.wait_until(|&taken| taken == 50).await;
            join_all(consumers).await;
            assert_eq!(event.waiting(), 0);
        });
    });
}

#[test]
fn mailboxes_keep_order_and_bound_in_any_schedule() {
    for_seeds(|world| {
        let mut rng = world.rng();
        world.run(|handle| async move {
            let (sender, mut receiver) = mailbox::<(u64, u64)>(3);
            for number in 0..4 {
                let (sender, handle) = (sender.clone(), handle.clone());
                let pause = rng.below(3_000);
                drop(handle.clone().spawn("sender", async move {
                    for message in 0..25 {
                        sender
                            .send((number, message))
                            .await
                            .expect("the receiver lives");
                        assert!(sender.len() <= 3);
                        handle.sleep(nanos(pause)).await;
                    }
                }));
            }
            drop(sender);
            let mut next = [0; 4];
            while let Some((number, message)) = receiver.receive().await {
                let number = usize::try_from(number).expect("small");
                assert_eq!(next[number], message);
                next[number] += 1;
            }
            assert_eq!(next, [25; 4]);
        });
    });
}

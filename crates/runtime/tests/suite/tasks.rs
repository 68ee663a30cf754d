//! Tasks, timers, computing.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use runtime::sync::{Event, Mutex, RwLock, Semaphore, Watch, oneshot};
use runtime::{Either, select, timeout};

use super::on_all;

#[test]
fn tasks_run_to_their_end_when_their_handle_is_dropped() {
    on_all(|runtime| {
        let handle = runtime.handle();
        let log = Rc::new(RefCell::new(Vec::new()));
        runtime.block_on(async {
            let (inner, timer) = (log.clone(), handle.clone());
            drop(handle.spawn("detached", async move {
                timer.sleep(Duration::from_millis(2)).await;
                inner.borrow_mut().push("detached");
            }));
            let inner = log.clone();
            assert_eq!(
                handle
                    .spawn("joined", async move {
                        inner.borrow_mut().push("joined");
                        7
                    })
                    .await,
                7
            );
            handle.sleep(Duration::from_millis(20)).await;
        });
        assert_eq!(*log.borrow(), ["joined", "detached"]);
        assert_eq!(handle.stats().tasks, 0);
    });
}

#[test]
fn dropping_the_runtime_drops_waiting_tasks() {
    struct Witness(Rc<RefCell<u32>>);
    impl Drop for Witness {
        fn drop(&mut self) {
            *self.0.borrow_mut() += 1;
        }
    }
    let dropped = Rc::new(RefCell::new(0));
    let runtime = super::runtime_on(runtime::host::DriverChoice::Threads);
    let handle = runtime.handle();
    let event = Event::new("something that never comes");
    for _ in 0..3 {
        let (witness, event, own) = (Witness(dropped.clone()), event.clone(), handle.clone());
        handle.spawn("waiter", async move {
            let _witness = witness;
            event.wait().await;
            // Keeps the cycle task -> handle -> runtime alive if dropping does not break it.
            drop(own);
        });
    }
    runtime.block_on(handle.yield_now());
    let report = handle.stall_report().to_string();
    assert!(report.contains("task \"waiter\" has waited"), "{report}");
    assert!(
        report.contains("for: something that never comes"),
        "{report}"
    );
    drop(runtime);
    assert_eq!(*dropped.borrow(), 3);
}

#[test]
fn timers_fire_in_order_and_not_early() {
    on_all(|runtime| {
        let handle = runtime.handle();
        runtime.block_on(async {
            let start = handle.now();
            let order = Rc::new(RefCell::new(Vec::new()));
            let tasks: Vec<_> = [30_u64, 10, 20]
                .into_iter()
                .map(|millis| {
                    let (handle, order) = (handle.clone(), order.clone());
                    handle.clone().spawn("sleeper", async move {
                        handle.sleep(Duration::from_millis(millis)).await;
                        order.borrow_mut().push(millis);
                    })
                })
                .collect();
            runtime::join_all(tasks).await;
            assert_eq!(*order.borrow(), [10, 20, 30]);
            assert!(handle.now() - start >= Duration::from_millis(30));
            assert_eq!(
                timeout(
                    &handle,
                    Duration::from_millis(1),
                    std::future::pending::<()>()
                )
                .await,
                None
            );
            let first = select(handle.yield_now(), std::future::pending::<()>()).await;
            assert_eq!(first, Either::First(()));
        });
    });
}

#[test]
fn devices_are_looked_after_between_long_polls() {
    const POLLS: u64 = 20;
    on_all(|runtime| {
        let handle = runtime.handle();
        runtime.block_on(async {
            let before = handle.stats().waits;
            for _ in 0..POLLS {
                let began = handle.now();
                while handle.now().since(began) < Duration::from_micros(300) {}
                handle.yield_now().await;
            }
            assert!(handle.stats().waits >= before + POLLS);
        });
    });
}

#[test]
fn computing_happens_elsewhere_and_comes_back() {
    on_all(|runtime| {
        let handle = runtime.handle();
        let here = std::thread::current().id();
        runtime.block_on(async {
            let jobs: Vec<_> = (0..100_u64)
                .map(|n| {
                    let handle = handle.clone();
                    async move {
                        handle
                            .compute(move || (n * n, std::thread::current().id()))
                            .await
                    }
                })
                .collect();
            for (n, (square, thread)) in (0_u64..).zip(runtime::join_all(jobs).await) {
                assert_eq!(square, n * n);
                assert_ne!(thread, here);
            }
        });
        assert_eq!(handle.stats().compute_jobs, 100);
    });
}

#[test]
fn locks_are_fair_and_guards_release() {
    on_all(|runtime| {
        let handle = runtime.handle();
        runtime.block_on(async {
            let lock = RwLock::new("the lock", 0);
            let order = Rc::new(RefCell::new(Vec::new()));
            let first = lock.read().await;
            let spawn = |name: &'static str, write: bool| {
                let (lock, order, handle) = (lock.clone(), order.clone(), handle.clone());
                handle.clone().spawn(name, async move {
                    if write {
                        *lock.write().await += 1;
                    } else {
                        drop(lock.read().await);
                    }
                    order.borrow_mut().push(name);
                })
            };
            let tasks = vec![spawn("writer", true), spawn("late reader", false)];
            handle.yield_now().await;
            assert!(lock.try_read().is_none(), "a waiting writer goes first");
            drop(first);
            runtime::join_all(tasks).await;
            assert_eq!(*order.borrow(), ["writer", "late reader"]);
            assert_eq!(*lock.read().await, 1);
            let reader = lock.write().await.downgrade();
            assert!(lock.try_read().is_some());
            drop(reader);

            let mutex = Mutex::new("the mutex", vec![1]);
            mutex.lock().await.push(2);
            assert_eq!(mutex.try_lock().as_deref(), Some(&vec![1, 2]));
        });
    });
}

#[test]
fn a_dropped_wait_passes_its_grant_on() {
    on_all(|runtime| {
        runtime.block_on(async {
            let permits = Semaphore::new("permits", 1);
            let held = permits.try_acquire(1).expect("is free");
            let mut first = Box::pin(permits.acquire(1));
            let second = permits.clone();
            assert!(poll_once(first.as_mut()).await.is_none());
            let mut second = Box::pin(second.acquire(1));
            assert!(poll_once(second.as_mut()).await.is_none());
            drop(held);
            // The first one has been granted but not polled; dropping it must not lose the permit.
            drop(first);
            assert!(poll_once(second.as_mut()).await.is_some());

            let event = Event::new("the event");
            let (one, mut two) = (event.wait(), Box::pin(event.wait()));
            assert!(event.notify_one());
            drop(one);
            assert!(poll_once(two.as_mut()).await.is_some());

            let watch = Watch::new("the watch", 1);
            watch.set(5);
            watch.wait_until(|&value| value == 5).await;
            let (sender, receiver) = oneshot("the value");
            sender.send(3).expect("is awaited");
            assert_eq!(receiver.await, Ok(3));
            let (sender, receiver) = oneshot::<u8>("the value");
            drop(sender);
            assert!(receiver.await.is_err());
        });
    });
}

async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}

/// A waker that counts.
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn others_are_woken_after_the_turn() {
    on_all(|runtime| {
        let handle = runtime.handle();
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let woken = || count.0.load(Ordering::SeqCst);
        runtime.block_on(async {
            let tasks: Vec<_> = (0..3)
                .map(|_| {
                    let waker = Waker::from(count.clone());
                    handle.spawn("answering", async move { runtime::wake_after_turn(waker) })
                })
                .collect();
            for task in tasks {
                task.await;
            }
            // Whoever was woken by the last of them is of the same turn.
            assert_eq!(woken(), 0);
            handle.sleep(Duration::from_millis(1)).await;
            assert_eq!(woken(), 3);
            runtime::wake_after_turn(Waker::from(count.clone()));
        });
        // The end of the run ends the turn.
        assert_eq!(woken(), 4);
        runtime::wake_after_turn(Waker::from(count.clone()));
        assert_eq!(woken(), 5);
    });
}

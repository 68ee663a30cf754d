//! Waiting for several futures within one task.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use crate::executor::{Handle, note_wait, noted_wait};

/// Waits for all; results are in the order of the futures. All are polled whenever one of them may go on, so this is
/// for tens of futures; spawn tasks for thousands.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    let mut left = futures.len();
    poll_fn(|cx| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(output) = future.as_mut().poll(cx)
            {
                *result = Some(output);
                left -= 1;
            }
        }
        if left == 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    results
        .into_iter()
        .map(|result| result.expect("all are done"))
        .collect()
}

/// Does what `future` does, and says of every wait in it that it is for `what`, such as work on behalf of many requests.
pub async fn waiting_as<F: Future>(what: &'static str, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let poll = future.as_mut().poll(cx);
        if poll.is_pending() {
            note_wait(what);
        }
        poll
    })
    .await
}

/// Waits for both.
pub async fn join<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut a_output, mut b_output) = (None, None);
    poll_fn(|cx| {
        if a_output.is_none()
            && let Poll::Ready(output) = a.as_mut().poll(cx)
        {
            a_output = Some(output);
        }
        if b_output.is_none()
            && let Poll::Ready(output) = b.as_mut().poll(cx)
        {
            b_output = Some(output);
        }
        if a_output.is_some() && b_output.is_some() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    (a_output.expect("ready"), b_output.expect("ready"))
}

/// Which future of a [`select`] was first.
#[derive(Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    First(A),
    Second(B),
}

/// Waits for the first of two; the other is dropped. Both ready: the first argument wins. For loops that own their
/// arms (waits on events, mailboxes and timers), not for racing disk operations.
pub async fn select<A: Future, B: Future>(a: A, b: B) -> Either<A::Output, B::Output> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|cx| {
        if let Poll::Ready(output) = a.as_mut().poll(cx) {
            return Poll::Ready(Either::First(output));
        }
        b.as_mut().poll(cx).map(Either::Second)
    })
    .await
}

/// Waits for `future` at most `limit`; `None` when the time ran out (the future is then dropped).
pub async fn timeout<F: Future>(handle: &Handle, limit: Duration, future: F) -> Option<F::Output> {
    let (mut future, mut limit) = (pin!(future), pin!(handle.sleep(limit)));
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        // What is waited for is the future, however long it may take.
        let what = noted_wait();
        let over = limit.as_mut().poll(cx).map(|()| None);
        note_wait(what);
        over
    })
    .await
}

//! What the server needs of the program around it: the connection's transport, random bytes, a clock, storage for reservations.

use std::future::Future;
use std::pin::Pin;

use crate::pdu::Out;

/// The owner of a connection's socket: where its PDUs go and its requests run. Calls come from any thread, in the order in which
/// the PDUs are to be written.
pub trait Transport: Send + Sync {
    /// Writes a PDU after those before it.
    fn send(&self, out: Out);
    /// Ends the connection once what was sent has been written.
    fn close(&self);
    /// Runs `work` beside everything else; to its end, even if the connection ends before.
    fn run(&self, work: Work);
}

/// Work on a request of a connection, which waits for volumes.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Randomness, time and storage for the server.
pub trait Environment: Send + Sync {
    /// Fills in bytes that cannot be guessed.
    fn random(&self, bytes: &mut [u8]);
    /// Seconds of a clock that only goes forward.
    fn now_seconds(&self) -> u64;
    /// Keeps the persistent reservations of a volume (`None`: there are none any more); they are on stable storage when the future
    /// gives true. They come back as [`crate::LunSpec::reservations`].
    fn store_reservations<'a>(
        &'a self,
        name: &'a str,
        guid: u64,
        text: Option<String>,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>>;
}

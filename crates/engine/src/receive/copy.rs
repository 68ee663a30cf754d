//! A snapshot copied into another dataset of the pool: its stream is made and received here, and leaves the pool's thread at no time.

use dsl::stream::{Begin, ByteOrder, NvList, ReceiveTarget, SendOptions, SendResume, StreamRecord};
use runtime::mailbox::mailbox;

use super::input::{Input, InputError};
use crate::EngineError;
use crate::pool_mailbox::PoolContext;

/// Chunks of about 1 MiB between both ends.
const CHUNKS_MAX: usize = 4;

/// What is copied into what.
pub(crate) struct SnapshotCopy {
    /// Full name of the snapshot.
    pub(crate) snapshot: String,
    /// Full name of the snapshot that the copy has already, and counts from.
    pub(crate) from: Option<String>,
    /// Where an interrupted one goes on.
    pub(crate) resume: Option<SendResume>,
    /// What it is received into.
    pub(crate) target: ReceiveTarget,
}

impl PoolContext {
    /// Copies a snapshot; `goes_on` is told the bytes of each record, and says whether it is to go on. On disk when this returns true;
    /// false when it was broken off. What was copied until then, or until an error, stays and can be resumed.
    ///
    /// # Errors
    /// Those of sending and receiving.
    pub(crate) async fn copy_snapshot(
        &self,
        copy: SnapshotCopy,
        goes_on: &dyn Fn(u64) -> bool,
    ) -> Result<bool, EngineError> {
        let options = SendOptions {
            large_blocks: true,
            compressed: true,
            ..SendOptions::default()
        };
        let hierarchy = self.pool.hierarchy();
        let from = copy.from.as_deref();
        let sender = hierarchy.send(&copy.snapshot, from, options, copy.resume, None);
        let mut sender = Box::pin(sender).await?;
        let (chunks, input) = mailbox(CHUNKS_MAX);
        let sending = self.handle.spawn("send of a copy", async move {
            loop {
                match sender.next().await {
                    Ok(None) => return Ok(()),
                    // A receiver that is gone ends the stream.
                    Ok(Some(chunk)) => {
                        if chunks.send(chunk.into_vec()).await.is_err() {
                            return Ok(());
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
        });
        // Told of no demands: all that is sent is wanted.
        let (demanding, _) = mailbox(1);
        let input = Input::new(input, demanding);
        let done = Box::pin(self.receive_copy(copy.target, input, goes_on)).await;
        // The snapshot is not held any more when this returns; why a stream ended explains why it could not be received.
        sending.await?;
        done
    }

    async fn receive_copy(
        &self,
        target: ReceiveTarget,
        mut input: Input,
        goes_on: &dyn Fn(u64) -> bool,
    ) -> Result<bool, EngineError> {
        let (begin, list) = head_of(&mut input).await.map_err(not_whole)?;
        let hierarchy = self.pool.hierarchy();
        let mut receiver = Box::pin(hierarchy.receive(target, begin, &list)).await?;
        loop {
            let next = async {
                let record = input.record().await?.ok_or(InputError::Truncated)?;
                let payload = input.payload(ondisk::MAX_BLOCK_SIZE).await?;
                Ok((record, payload))
            };
            let (record, payload) = match next.await {
                Ok(next) => next,
                Err(error) => {
                    receiver.abandon().await;
                    return Err(not_whole(error));
                }
            };
            if !goes_on(payload.len() as u64) {
                receiver.abandon().await;
                return Ok(false);
            }
            if let Err(error) = Box::pin(receiver.record(&record, &payload)).await {
                receiver.abandon().await;
                return Err(error.into());
            }
            if matches!(record, StreamRecord::End { .. }) {
                break;
            }
        }
        Box::pin(receiver.finish()).await?;
        Ok(true)
    }
}

async fn head_of(input: &mut Input) -> Result<(Begin, NvList), InputError> {
    let record = input.record().await?.ok_or(InputError::Truncated)?;
    let StreamRecord::Begin(begin) = record else {
        return Err(InputError::NotAStream);
    };
    debug_assert!(
        input.reader().order() == Some(ByteOrder::default()),
        "it was made here"
    );
    Ok((begin, input.list().await?))
}

fn not_whole(_: InputError) -> EngineError {
    EngineError::Dataset("the stream of the copy is not whole".to_owned())
}

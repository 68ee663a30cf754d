//! Redaction bookmarks whose making is interrupted: it goes on where it was, and the bookmark stays meanwhile.

use std::time::Duration;

use dmu::AllocSpec;
use dsl::stream::SendOptions;
use dsl::{DslError, Estimate};
use ondisk::{ObjectId, ObjectType};
use runtime::{Either, select};

use crate::rig::{Rig, run};

/// A file of small blocks, of which a list of redacted blocks can have many.
const FILE: ObjectId = ObjectId(16);
const BLOCK: u64 = 512;
/// More than twice as many as a list is written by.
const BLOCKS: u64 = 10_000;

/// Writes blocks of the file, each for itself.
async fn write(rig: &Rig, name: &str, blocks: impl Iterator<Item = u64>) {
    let dataset = rig.hierarchy.dataset(name).await.expect("it is there");
    for block in blocks {
        let estimate = Estimate::blocks(1, BLOCK, 0);
        let tx = dataset.begin(estimate).await.expect("there is room");
        let bytes = [u8::try_from(block % 251).expect("a byte"); 512];
        let objset = dataset.objset();
        let offset = block * BLOCK;
        let written = objset.write(FILE, offset, &bytes, &tx).await;
        written.expect("it is written");
    }
}

async fn stream(rig: &Rig, bookmark: &str) -> Vec<u8> {
    let options = SendOptions::default();
    let sending = rig
        .hierarchy
        .send("p/a@1", None, options, None, Some(bookmark));
    let mut sender = sending.await.expect("it is sent");
    let mut bytes = Vec::new();
    while let Some(chunk) = sender.next().await.expect("it is read") {
        bytes.extend(chunk);
    }
    bytes
}

#[test]
fn an_interrupted_redaction_goes_on() {
    run(|mut rig| async move {
        rig.check(&[("create p/a", "")]).await;
        {
            let dataset = rig.hierarchy.dataset("p/a").await.expect("it is there");
            let spec = AllocSpec::new(ObjectType::PLAIN_FILE_CONTENTS).block_size(512);
            let tx = dataset.begin(Estimate::bytes(4096)).await.expect("room");
            let made = dataset.objset().allocate_at(FILE, spec, &tx).await;
            made.expect("a file");
        }
        write(&rig, "p/a", 0..BLOCKS).await;
        rig.check(&[("snapshot p/a@1", ""), ("clone p/a@1 p/c", "")])
            .await;
        write(&rig, "p/c", (0..BLOCKS).step_by(2)).await;
        rig.check(&[("snapshot p/c@1", "")]).await;
        let by = ["p/c@1".to_owned()];
        let whole = rig.hierarchy.redact("p/a@1", "whole", &by).await;
        whole.expect("it is redacted");
        let (mut interrupted, mut busy) = (0, 0);
        loop {
            let hierarchy = rig.hierarchy.clone();
            let interrupting = async {
                rig.pause(Duration::from_millis(2 + interrupted)).await;
                let name = ["p/a#parts".to_owned()];
                hierarchy
                    .destroy_bookmarks(&name)
                    .await
                    .expect("it answers")
            };
            match select(hierarchy.redact("p/a@1", "parts", &by), interrupting).await {
                // What it had asked for when it was interrupted was done, and was the last.
                Either::First(Err(DslError::Exists { .. })) => break,
                Either::First(done) => {
                    done.expect("it is redacted");
                    break;
                }
                Either::Second(refused) => busy += refused.len(),
            }
            interrupted += 1;
            assert!(interrupted < 1000, "it comes to its end");
            rig.reopen().await;
        }
        // What makes the list holds the bookmark.
        assert!(busy > 0, "it was never in use");
        assert!(interrupted > 0, "it was interrupted");
        let parts = stream(&rig, "parts").await;
        assert_eq!(stream(&rig, "whole").await, parts);
        rig.check(&[
            ("destroy-bookmarks p/a#parts p/a#whole", ""),
            ("get redact_snaps p/a@1", "not there"),
        ])
        .await;
        let features = rig.hierarchy.features();
        assert_eq!(features.refcount("redaction_bookmarks"), Some(0));
    });
}

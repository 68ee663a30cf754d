//! Redaction bookmarks whose making is interrupted: it goes on where it was, and the bookmark stays meanwhile.

use std::time::Duration;

use dmu::{AllocSpec, Objset, Tx};
use dsl::stream::{SendOptions, SendResume};
use dsl::{DslError, Estimate};
use ondisk::redaction::{RedactedBlocks, RedactionHeader};
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

async fn make_file(rig: &Rig) {
    let dataset = rig.hierarchy.dataset("p/a").await.expect("it is there");
    let spec = AllocSpec::new(ObjectType::PLAIN_FILE_CONTENTS).block_size(512);
    let tx = dataset.begin(Estimate::bytes(4096)).await.expect("room");
    let made = dataset.objset().allocate_at(FILE, spec, &tx).await;
    made.expect("a file");
}

async fn stream(rig: &Rig, bookmark: &str) -> Vec<u8> {
    let options = SendOptions::default();
    let sending = rig
        .hierarchy
        .send("p/a@1", None, options, None, Some(bookmark));
    let mut sender = sending.await.expect("it is sent");
    let mut bytes = Vec::new();
    while let Some(chunk) = sender.next().await.expect("it is read") {
        bytes.extend(chunk.into_vec());
    }
    bytes
}

#[test]
fn an_interrupted_redaction_goes_on() {
    run(|mut rig| async move {
        rig.check(&[("create p/a", "")]).await;
        make_file(&rig).await;
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

/// Bytes of a stream; more than this many of a file of a few blocks are a loop.
const STREAM_MAX: usize = 1 << 20;

/// Reads a stream to its end or to what is wrong with it; whether it came to its end.
async fn is_sent(
    rig: &Rig,
    snapshot: &str,
    from: Option<&str>,
    redact: Option<&str>,
    resume: Option<SendResume>,
) -> bool {
    let options = SendOptions::default();
    let sending = rig.hierarchy.send(snapshot, from, options, resume, redact);
    let Ok(mut sender) = sending.await else {
        return false;
    };
    let mut len = 0;
    loop {
        match sender.next().await {
            Ok(Some(chunk)) => len += chunk.len(),
            Ok(None) => return true,
            Err(error) => {
                assert!(!error.to_string().is_empty(), "it has words");
                return false;
            }
        }
        assert!(len < STREAM_MAX, "a stream of {len} bytes");
    }
}

/// The only redaction list of a pool.
async fn list_of(mos: &Objset) -> ObjectId {
    let (mut at, mut found) = (ObjectId(0), None);
    while let Some(object) = mos.next_object(at).await.expect("it is read") {
        let info = mos.object_info(object).await.expect("it is read");
        if info.object_type == ObjectType::UINT64_METADATA {
            assert_eq!(found, None, "one list");
            found = Some(object);
        }
        at = object;
    }
    found.expect("a list")
}

/// Gives the list another header and other entries.
async fn forge(mos: &Objset, tx: &Tx, header: &RedactionHeader, entries: &[RedactedBlocks]) {
    let list = list_of(mos).await;
    let kind = ObjectType::UINT64_METADATA;
    let header = mos.set_bonus(list, kind, &header.encode(), tx).await;
    header.expect("it is written");
    let bytes: Vec<u8> = entries.iter().flat_map(RedactedBlocks::encode).collect();
    let written = mos.write(list, 0, &bytes, tx).await;
    written.expect("it is written");
}

/// A pool whose list says what no list may say: streams by it and from it end, or are refused, and so does the making of the list where
/// it is not complete; the bookmark can be destroyed.
#[test]
fn a_hostile_list_makes_no_endless_stream() {
    let blocks = RedactedBlocks::new;
    let most = ondisk::redaction::ENTRY_BLOCKS_MAX;
    let raw = |object, block, size_and_count| RedactedBlocks {
        object,
        block,
        size_and_count,
    };
    let complete = u64::MAX;
    // Entries that the header counts, more than there are but in the first, whether a stream may use them, and the entries.
    let lists: [(u64, bool, Vec<RedactedBlocks>); 14] = [
        (2, true, vec![blocks(16, 0, 2, 512), blocks(16, 4, 1, 512)]),
        (2, false, vec![blocks(16, 0, 5, 512), blocks(16, 3, 2, 512)]),
        (2, false, vec![blocks(16, 9, 1, 512), blocks(16, 2, 1, 512)]),
        (2, false, vec![blocks(17, 0, 1, 512), blocks(16, 0, 1, 512)]),
        (1, false, vec![blocks(0, 0, 1, 512)]),
        (1, false, vec![blocks(16, 0, 1, 0)]),
        (1, false, vec![blocks(16, u64::MAX, 1, 512)]),
        (1, false, vec![raw(u64::MAX, u64::MAX, u64::MAX)]),
        (1, false, vec![raw(16, 0, u64::MAX)]),
        (u64::MAX, false, vec![blocks(16, 0, 1, 512)]),
        (1 << 40, false, vec![blocks(16, 0, 1, 512)]),
        // The whole file, and what lies far behind it.
        (1, true, vec![blocks(16, 0, most, 512)]),
        // Objects that are not there, and one that is no file.
        (
            2,
            true,
            vec![blocks(1, 0, most, 512), blocks(99, 7, most, 16384)],
        ),
        // Blocks of another size than the file's.
        (1, true, vec![blocks(16, 1, 3, 1 << 20)]),
    ];
    run(move |mut rig| async move {
        rig.check(&[("create p/a", "")]).await;
        make_file(&rig).await;
        write(&rig, "p/a", 0..20).await;
        rig.check(&[("snapshot p/a@1", ""), ("clone p/a@1 p/c", "")])
            .await;
        write(&rig, "p/c", (0..20).step_by(3)).await;
        rig.check(&[("snapshot p/c@1", "")]).await;
        write(&rig, "p/a", 5..9).await;
        rig.check(&[("snapshot p/a@2", "")]).await;
        for (number, (entries, is_sound, list)) in lists.iter().enumerate() {
            for last in [complete, 16] {
                let by = ["p/c@1".to_owned()];
                let made = rig.hierarchy.redact("p/a@1", "b", &by).await;
                made.expect("it is redacted");
                rig.reopen_changed(async |mos, tx| {
                    let bonus = mos.bonus(list_of(mos).await).await.expect("it is read");
                    let header = RedactionHeader::decode(&bonus.bytes).expect("a header");
                    let header = RedactionHeader {
                        last_object: last,
                        last_block: last,
                        entries: *entries,
                        ..header
                    };
                    forge(mos, tx, &header, list).await;
                })
                .await;
                let what = format!("list {number}, last {last}");
                let may = *is_sound && last == complete;
                let sent = is_sent(&rig, "p/a@1", None, Some("b"), None).await;
                assert!(!sent || may, "{what}: sent by it");
                for to in ["p/a@1", "p/a@2"] {
                    let sent = is_sent(&rig, to, Some("p/a#b"), None, None).await;
                    assert!(!sent || may, "{what}: {to} sent from it");
                }
                let resume = Some(SendResume {
                    object: FILE.0,
                    offset: 3 * BLOCK,
                });
                let sent = is_sent(&rig, "p/a@1", None, Some("b"), resume).await;
                assert!(!sent || may, "{what}: sent on by it");
                if number == 0 && may {
                    assert!(sent, "{what}: what is sound is sent");
                }
                if last != complete {
                    // What is not complete is gone on with, or refused.
                    drop(rig.hierarchy.redact("p/a@1", "b", &by).await);
                }
                rig.check(&[("destroy-bookmarks p/a#b", "")]).await;
            }
        }
    });
}

//! How far an interrupted receive came, kept in its dataset, and the resume token: the parameters for `zfs send -t`, packed into a
//! line of text.
//!
//! What is kept is written in the txg of the data it speaks of, so that both are there after a crash, or neither.
//!
//! Facts: OpenZFS include/sys/dsl_dataset.h (DS_FIELD_RESUME_*), module/zfs/dsl_dataset.c (get_receive_resume_token: an
//! nvlist in native encoding, compressed by gzip-6, with a checksum and the length in front).

use std::fmt::Write as _;
use std::rc::Rc;

use codec::checksum;
use codec::compress::{self, Algorithm};
use dmu::Tx;
use dmu::zap::{self, ZapValue};
use ondisk::dsl::dataset_flags;
use ondisk::nvlist::NvList;
use ondisk::stream::{Begin, stream_feature};
use ondisk::{ObjectId, ObjectType};

use crate::dataset_state::DatasetState;
use crate::dsl_dir::DslDir;
use crate::dsl_pool::{DslPool, Found};
use crate::error::{DslError, Result};
use crate::types::{ResumePoint, SavedReceive};

/// The hidden clone below a dataset that an incremental receive writes to until it is complete. OpenZFS: recv_clone_name.
pub(crate) const CLONE_NAME: &str = "%recv";
/// Version of the token.
const VERSION: u32 = 1;
/// The most bytes that a token's list may have, unpacked.
const LIST_BYTES_MAX: usize = 1 << 20;
/// Numbers, by their key in the dataset and their name in the token, in the token's order.
const NUMBERS: [(&str, &str); 5] = [
    (FROM_GUID, "fromguid"),
    (OBJECT, "object"),
    (OFFSET, "offset"),
    (BYTES, "bytes"),
    (TO_GUID, "toguid"),
];
const FROM_GUID: &str = "com.delphix:resume_fromguid";
const OBJECT: &str = "com.delphix:resume_object";
const OFFSET: &str = "com.delphix:resume_offset";
const BYTES: &str = "com.delphix:resume_bytes";
const TO_GUID: &str = "com.delphix:resume_toguid";
const TO_NAME: &str = "com.delphix:resume_toname";
/// The guids of the snapshots that what the stream counts from was redacted by.
const REDACTED_FROM: &str = "com.delphix:resume_redact_book_snaps";
/// What the stream may have: key, name in the token, feature.
const FLAGS: [(&str, &str, u64); 4] = [
    (
        "com.delphix:resume_largeblockok",
        "largeblockok",
        stream_feature::LARGE_BLOCKS,
    ),
    (
        "com.delphix:resume_embedok",
        "embedok",
        stream_feature::EMBED_DATA,
    ),
    (
        "com.delphix:resume_compressok",
        "compressok",
        stream_feature::COMPRESSED,
    ),
    ("com.datto:resume_rawok", "rawok", stream_feature::RAW),
];

/// Why a text is no resume token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It has not the form of one.
    #[error("resume token is corrupt (invalid format)")]
    Format,
    /// It is of a version that is not known.
    #[error("resume token is corrupt (invalid version {0})")]
    Version(u32),
    /// What should be hexadecimal is not.
    #[error("resume token is corrupt (payload is not hex-encoded)")]
    Hex,
    /// A part of it was changed or lost.
    #[error("resume token is corrupt (incorrect checksum)")]
    Checksum,
    /// It cannot be unpacked.
    #[error("resume token is corrupt (decompression failed)")]
    Compression,
    /// What is unpacked is no list of names and values.
    #[error("resume token is corrupt (nvlist_unpack failed)")]
    List,
}

/// Unpacks a resume token.
///
/// # Errors
/// [`TokenError`], with the words of OpenZFS.
pub fn unpack_token(token: &str) -> Result<NvList, TokenError> {
    let mut parts = token.splitn(4, '-');
    let mut part = || parts.next().ok_or(TokenError::Format);
    let version: u32 = part()?.parse().map_err(|_| TokenError::Format)?;
    let mut hex = || u64::from_str_radix(part()?, 16).map_err(|_| TokenError::Format);
    let (sum, len) = (hex()?, hex()?);
    if version != VERSION {
        return Err(TokenError::Version(version));
    }
    let text = part()?.as_bytes();
    let mut bytes = Vec::with_capacity(text.len() / 2);
    for pair in text.chunks_exact(2) {
        let pair = std::str::from_utf8(pair).map_err(|_| TokenError::Hex)?;
        bytes.push(u8::from_str_radix(pair, 16).map_err(|_| TokenError::Hex)?);
    }
    if sum_of(&bytes) != sum {
        return Err(TokenError::Checksum);
    }
    let len = usize::try_from(len).map_err(|_| TokenError::Compression)?;
    if len > LIST_BYTES_MAX {
        return Err(TokenError::Compression);
    }
    let packed = compress::decompress(Algorithm::Gzip(6), &bytes, len)
        .map_err(|_| TokenError::Compression)?;
    NvList::decode(&packed).map_err(|_| TokenError::List)
}

impl DslPool {
    /// Marks a dataset as one whose receive can be resumed. Syncing context.
    // OpenZFS: module/zfs/dmu_recv.c, dmu_recv_begin_sync
    pub(crate) async fn start_resume_state(
        &self,
        dataset: ObjectId,
        begin: &Begin,
        redacted_from: Option<&[u64]>,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "a receive begins in syncing context");
        self.zapify(dataset, tx).await?;
        let mos = &self.mos;
        if begin.from_guid != 0 {
            zap::add_u64(mos, dataset, FROM_GUID, begin.from_guid, tx).await?;
        }
        let mut name = begin.to_name.clone();
        name.push(0);
        zap::update(mos, dataset, TO_NAME, &ZapValue::U8(name), tx).await?;
        for (key, value) in [
            (TO_GUID, begin.to_guid),
            (OBJECT, 1),
            (OFFSET, 0),
            (BYTES, 0),
        ] {
            zap::add_u64(mos, dataset, key, value, tx).await?;
        }
        for (key, _, feature) in FLAGS {
            if begin.features & feature != 0 {
                zap::add_u64(mos, dataset, key, 1, tx).await?;
            }
        }
        if let Some(guids) = redacted_from.filter(|guids| !guids.is_empty()) {
            let value = ZapValue::U64(guids.to_vec());
            zap::add(mos, dataset, REDACTED_FROM, &value, tx).await?;
        }
        Ok(())
    }

    /// Writes down how far the receive came in this txg. Syncing context.
    pub(crate) async fn store_resume_point(&self, state: &DatasetState, tx: &Tx) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "a point is written with the data before it"
        );
        let Some(point) = state.take_resume_point(tx.txg()) else {
            return Ok(());
        };
        for (key, value) in [
            (OBJECT, point.object),
            (OFFSET, point.offset),
            (BYTES, point.bytes),
        ] {
            zap::update_u64(&self.mos, state.object, key, value, tx).await?;
        }
        Ok(())
    }

    /// Forgets that a receive could be resumed: it has ended. Syncing context.
    pub(crate) async fn clear_resume_state(&self, dataset: ObjectId, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "a receive ends in syncing context");
        if !self.has_resume_state(dataset).await? {
            return Ok(());
        }
        let numbers = NUMBERS.iter().map(|(key, _)| *key);
        let flags = FLAGS.iter().map(|(key, ..)| *key);
        for key in numbers.chain(flags).chain([TO_NAME, REDACTED_FROM]) {
            if zap::lookup(&self.mos, dataset, key).await?.is_some() {
                zap::remove(&self.mos, dataset, key, tx).await?;
            }
        }
        Ok(())
    }

    /// Name and object of what an interrupted receive into a dataset left, if it can be resumed: its hidden clone, or itself.
    pub(crate) async fn unfinished_receive(
        self: &Rc<Self>,
        dataset: &str,
    ) -> Result<Option<(String, ObjectId)>> {
        let hidden = format!("{dataset}/{CLONE_NAME}");
        for name in [hidden, dataset.to_owned()] {
            let Some(dir) = self.find_dir(&name).await? else {
                continue;
            };
            let head = ObjectId(dir.phys().head_dataset_obj);
            let flags = self.dataset_phys(head).await?.flags;
            if flags & dataset_flags::INCONSISTENT != 0 && self.has_resume_state(head).await? {
                return Ok(Some((name, head)));
            }
        }
        self.find(dataset).await?;
        Ok(None)
    }

    /// Finds the part that a receive into `dataset` left, which is not open.
    pub(crate) async fn idle_dataset(
        self: &Rc<Self>,
        dataset: &str,
        part: &str,
    ) -> Result<(Found, Rc<DatasetState>)> {
        let found = self.find(part).await?;
        let state = self.load_dataset(found.dataset, None).await?;
        if state.handles() != 0 {
            let name = dataset.into();
            return Err(DslError::Busy { name });
        }
        Ok((found, state))
    }

    /// Whether a dataset is the unfinished part of a receive that can be resumed.
    pub(crate) async fn has_resume_state(&self, dataset: ObjectId) -> Result<bool> {
        Ok(self.resume_number(dataset, TO_GUID).await?.is_some())
    }

    async fn resume_number(&self, dataset: ObjectId, key: &str) -> Result<Option<u64>> {
        let mos = &self.mos;
        if dataset.0 == 0 || mos.object_info(dataset).await?.object_type != ObjectType::ZAP_METADATA
        {
            return Ok(None);
        }
        Ok(zap::lookup_u64(mos, dataset, key).await?)
    }

    /// The snapshot that a dataset is the unfinished part of.
    pub(crate) async fn saved_snapshot(&self, dataset: ObjectId) -> Result<Option<SavedReceive>> {
        let Some(guid) = self.resume_number(dataset, TO_GUID).await? else {
            return Ok(None);
        };
        let name = self.resume_name(dataset).await?;
        let name = name.ok_or_else(|| DslError::corrupt("state of a receive", dataset))?;
        Ok(Some(SavedReceive { guid, name }))
    }

    /// The name of the snapshot that a dataset is the unfinished part of, without the NUL that ends it there.
    async fn resume_name(&self, dataset: ObjectId) -> Result<Option<Vec<u8>>> {
        let Some(ZapValue::U8(mut name)) = zap::lookup(&self.mos, dataset, TO_NAME).await? else {
            return Ok(None);
        };
        let end = name.iter().position(|byte| *byte == 0);
        name.truncate(end.unwrap_or(name.len()));
        Ok(Some(name))
    }

    /// Where a receive goes on, if `begin` opens the stream that continues it.
    pub(crate) async fn resume_point(
        &self,
        dataset: ObjectId,
        begin: &Begin,
    ) -> Result<Option<ResumePoint>> {
        let to_guid = self.resume_number(dataset, TO_GUID).await?;
        let from_guid = self.resume_number(dataset, FROM_GUID).await?;
        if to_guid != Some(begin.to_guid) || from_guid.unwrap_or(0) != begin.from_guid {
            return Ok(None);
        }
        Ok(Some(ResumePoint {
            object: self.resume_number(dataset, OBJECT).await?.unwrap_or(0),
            offset: self.resume_number(dataset, OFFSET).await?.unwrap_or(0),
            bytes: self.resume_number(dataset, BYTES).await?.unwrap_or(0),
        }))
    }

    /// The token of a receive into a dataset that did not come to its end, if there is one.
    pub(crate) async fn resume_token(self: &Rc<Self>, dir: &Rc<DslDir>) -> Result<Option<String>> {
        let head = ObjectId(dir.phys().head_dataset_obj);
        if let Some(token) = self.token_of(head).await? {
            return Ok(Some(token));
        }
        match self.child(dir, CLONE_NAME).await? {
            Some(child) => self.token_of(ObjectId(child.phys().head_dataset_obj)).await,
            None => Ok(None),
        }
    }

    async fn token_of(&self, dataset: ObjectId) -> Result<Option<String>> {
        let mos = &self.mos;
        if !self.has_resume_state(dataset).await? {
            return Ok(None);
        }
        let mut list = NvList::new();
        for (key, name) in NUMBERS {
            if let Some(number) = zap::lookup_u64(mos, dataset, key).await? {
                list.insert(name, number);
            }
        }
        if let Some(name) = self.resume_name(dataset).await? {
            list.insert("toname", String::from_utf8_lossy(&name).as_ref());
        }
        for (key, name, _) in FLAGS {
            if zap::lookup(mos, dataset, key).await?.is_some() {
                list.insert_flag(name);
            }
        }
        if let Some(by) = self.stored_redaction(dataset).await? {
            list.insert("redact_snaps", by);
        }
        if let Some(ZapValue::U64(from)) = zap::lookup(mos, dataset, REDACTED_FROM).await? {
            list.insert("book_redact_snaps", from);
        }
        Ok(token(&list))
    }
}

fn token(list: &NvList) -> Option<String> {
    let packed = list.encode_native();
    let bytes = compress::compress(Algorithm::Gzip(6), &packed, packed.len())?;
    let sum = sum_of(&bytes);
    let mut text = format!("{VERSION}-{sum:x}-{:x}-", packed.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    Some(text)
}

/// The checksum in a token: of whole words.
fn sum_of(bytes: &[u8]) -> u64 {
    let words = &bytes[..bytes.len() / 4 * 4];
    checksum::compute(checksum::Algorithm::Fletcher4, &[0; 32], words)[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `zfs get` of OpenZFS 2.3.2 showed it for the receive that golden pool s-send was left with.
    #[test]
    fn the_token_says_what_that_of_openzfs_says() {
        let mut list = NvList::new();
        list.insert("object", 0x41_u64);
        list.insert("offset", 0_u64);
        list.insert("bytes", 0x5_10d8_u64);
        list.insert("toguid", 0x01f8_bfb1_ba3a_1309_u64);
        list.insert("toname", "s-send/fs@a");
        list.insert_flag("compressok");
        let theirs = "1-d1f666a16-d8-789c636064000310a500c4ec50360710e72765a52697303038429460caa7a515a79630c001489e0d493ea9b224b51848df1060c5aabf243fbd343385818153d86ad7c6fd3f183590e439c1f27989b9a90c0cc5bac5a97929fa69c50e897073b81910ee4ececf2d284a2d2ececf46b80500fdd71a3c";
        let ours = token(&list).expect("it fits");
        // Every deflate packs differently.
        for token in [ours.as_str(), theirs] {
            assert_eq!(unpack_token(token).expect("a token"), list);
        }
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let good = token(&NvList::new().with("toguid", 1_u64)).expect("it fits");
        let parts: Vec<&str> = good.split('-').collect();
        let (sum, len, hex) = (parts[1], parts[2], parts[3]);
        for (text, expect) in [
            (String::new(), TokenError::Format),
            ("1-2-3".to_owned(), TokenError::Format),
            (format!("2-{sum}-{len}-{hex}"), TokenError::Version(2)),
            (format!("1-{sum}-{len}-x{}", &hex[1..]), TokenError::Hex),
            (format!("1-1{sum}-{len}-{hex}"), TokenError::Checksum),
            (format!("1-{sum}-f{len}-{hex}"), TokenError::Compression),
            (
                format!("1-{sum}-ffffffff{len}-{hex}"),
                TokenError::Compression,
            ),
        ] {
            assert_eq!(unpack_token(&text), Err(expect), "{text}");
        }
        assert!(unpack_token(&good).is_ok());
    }
}

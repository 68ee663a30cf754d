//! The resume token of an interrupted receive: the parameters for `zfs send -t`, packed into a line of text.
//!
//! Facts: OpenZFS include/sys/dsl_dataset.h (DS_FIELD_RESUME_*), module/zfs/dsl_dataset.c (get_receive_resume_token: an
//! nvlist in native encoding, compressed by gzip-6, with a checksum and the length in front).

use std::fmt::Write as _;
use std::rc::Rc;

use codec::checksum;
use codec::compress::{self, Algorithm};
use dmu::zap::{self, ZapValue};
use ondisk::nvlist::NvList;
use ondisk::{ObjectId, ObjectType};

use crate::dsl_dir::DslDir;
use crate::dsl_pool::DslPool;
use crate::error::Result;

/// The directory below a dataset that an incremental receive writes to until it is complete.
const RECEIVING: &str = "%recv";
/// Version of the token.
const VERSION: u32 = 1;
/// Numbers, by their key in the dataset and their name in the token, in the token's order.
const NUMBERS: [(&str, &str); 5] = [
    ("com.delphix:resume_fromguid", "fromguid"),
    ("com.delphix:resume_object", "object"),
    ("com.delphix:resume_offset", "offset"),
    ("com.delphix:resume_bytes", "bytes"),
    ("com.delphix:resume_toguid", "toguid"),
];
const TO_GUID: &str = "com.delphix:resume_toguid";
const TO_NAME: &str = "com.delphix:resume_toname";
/// What the stream may have.
const FLAGS: [(&str, &str); 4] = [
    ("com.delphix:resume_largeblockok", "largeblockok"),
    ("com.delphix:resume_embedok", "embedok"),
    ("com.delphix:resume_compressok", "compressok"),
    ("com.datto:resume_rawok", "rawok"),
];

impl DslPool {
    /// The token of a receive into a dataset that did not come to its end, if there is one.
    pub(crate) async fn resume_token(self: &Rc<Self>, dir: &Rc<DslDir>) -> Result<Option<String>> {
        let head = ObjectId(dir.phys().head_dataset_obj);
        if let Some(token) = self.token_of(head).await? {
            return Ok(Some(token));
        }
        match self.child(dir, RECEIVING).await? {
            Some(child) => self.token_of(ObjectId(child.phys().head_dataset_obj)).await,
            None => Ok(None),
        }
    }

    async fn token_of(&self, dataset: ObjectId) -> Result<Option<String>> {
        let mos = &self.mos;
        if dataset.0 == 0 || mos.object_info(dataset).await?.object_type != ObjectType::ZAP_METADATA
        {
            return Ok(None);
        }
        if zap::lookup(mos, dataset, TO_GUID).await?.is_none() {
            return Ok(None);
        }
        let mut list = NvList::new();
        for (key, name) in NUMBERS {
            if let Some(number) = zap::lookup_u64(mos, dataset, key).await? {
                list.insert(name, number);
            }
        }
        if let Some(ZapValue::U8(bytes)) = zap::lookup(mos, dataset, TO_NAME).await? {
            let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            list.insert("toname", String::from_utf8_lossy(name).as_ref());
        }
        for (key, name) in FLAGS {
            if zap::lookup(mos, dataset, key).await?.is_some() {
                list.insert_flag(name);
            }
        }
        Ok(token(&list))
    }
}

fn token(list: &NvList) -> Option<String> {
    let packed = list.encode_native();
    let bytes = compress::compress(Algorithm::Gzip(6), &packed, packed.len())?;
    // The checksum is of whole words.
    let words = &bytes[..bytes.len() / 4 * 4];
    let sum = checksum::compute(checksum::Algorithm::Fletcher4, &[0; 32], words)[0];
    let mut text = format!("{VERSION}-{sum:x}-{:x}-", packed.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    Some(text)
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
        assert_eq!(unpacked(&ours), unpacked(theirs));
    }

    /// Checks a token as a receiver does, and unpacks it. Every deflate packs differently.
    fn unpacked(token: &str) -> Vec<u8> {
        let parts: Vec<&str> = token.split('-').collect();
        let hex = |text| u64::from_str_radix(text, 16).expect("hexadecimal");
        let packed: Vec<u8> = (0..parts[3].len() / 2)
            .map(|at| u8::try_from(hex(&parts[3][2 * at..2 * at + 2])).expect("a byte"))
            .collect();
        let words = &packed[..packed.len() / 4 * 4];
        let sum = checksum::compute(checksum::Algorithm::Fletcher4, &[0; 32], words)[0];
        assert_eq!((parts[0], hex(parts[1])), ("1", sum));
        let len = usize::try_from(hex(parts[2])).expect("small");
        compress::decompress(Algorithm::Gzip(6), &packed, len).expect("unpacks")
    }
}

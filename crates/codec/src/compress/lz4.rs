//! LZ4: a big-endian length, then one raw block.

use std::cell::RefCell;

use lz4_flex::block::{self, CompressTable};

const PREFIX: usize = 4;

thread_local! {
    /// The encoder wants room for the worst case and a table: both are kept, so that a block costs no allocation.
    static SCRATCH: RefCell<(Vec<u8>, CompressTable)> = RefCell::new((Vec::new(), CompressTable::large()));
}

pub(super) fn compress(src: &[u8], out: &mut [u8]) -> Option<usize> {
    let worst = block::get_maximum_output_size(src.len());
    SCRATCH.with_borrow_mut(|(scratch, table)| {
        if scratch.len() < worst {
            scratch.resize(worst, 0);
        }
        let len = block::compress_into_with_table(src, scratch, table).ok()?;
        out.get_mut(PREFIX..PREFIX + len)?
            .copy_from_slice(scratch.get(..len)?);
        out.get_mut(..PREFIX)?
            .copy_from_slice(&u32::try_from(len).ok()?.to_be_bytes());
        Some(PREFIX + len)
    })
}

pub(super) fn decompress(src: &[u8], out: &mut [u8]) -> Result<(), &'static str> {
    let (prefix, rest) = src.split_first_chunk::<PREFIX>().ok_or("ends early")?;
    let len = usize::try_from(u32::from_be_bytes(*prefix)).map_err(|_| "length")?;
    let data = rest.get(..len).ok_or("length beyond the block")?;
    match block::decompress_into(data, out) {
        Ok(n) if n == out.len() => Ok(()),
        Ok(_) => Err("less data than its size"),
        Err(_) => Err("not an lz4 block"),
    }
}

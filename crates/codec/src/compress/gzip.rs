//! Gzip levels: a zlib stream (RFC 1950), not a gzip file.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

pub(super) fn compress(level: u8, src: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut z = Compress::new(Compression::new(u32::from(level.clamp(1, 9))), true);
    match z.compress(src, out, FlushCompress::Finish) {
        Ok(Status::StreamEnd) => usize::try_from(z.total_out()).ok(),
        _ => None,
    }
}

pub(super) fn decompress(src: &[u8], out: &mut [u8]) -> Result<(), &'static str> {
    let mut z = Decompress::new(true);
    let want = out.len() as u64;
    // A stream that fills the output exactly may need another call to see its end.
    match z.decompress(src, out, FlushDecompress::Finish) {
        Ok(Status::StreamEnd) if z.total_out() == want => Ok(()),
        Ok(Status::StreamEnd) => Err("less data than its size"),
        Ok(_) => Err("does not end at its size"),
        Err(_) => Err("not a zlib stream"),
    }
}

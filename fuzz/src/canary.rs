//! Targets with a known fault, to prove that the harness would notice one.

/// Panics on inputs that begin with a certain word.
pub(crate) fn panics(data: &[u8]) {
    assert!(!data.starts_with(b"sing"), "the canary sings");
}

/// Trusts a length in the input.
pub(crate) fn allocates(data: &[u8]) {
    if let Some(len) = data.first_chunk::<4>() {
        let bytes = vec![1u8; (u32::from_le_bytes(*len) & 0xff_ffff) as usize];
        std::hint::black_box(&bytes);
    }
}

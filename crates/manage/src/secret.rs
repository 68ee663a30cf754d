//! Random secrets and the hashes by which they are kept: what is stored lets no one in.

use sha2::{Digest as _, Sha256};

/// Bytes of a secret: 256 bits.
const SECRET_BYTES: usize = 32;

/// What a secret is stored and looked up as.
pub type SecretHash = [u8; 32];

/// Returns a new secret as 64 hexadecimal digits.
///
/// # Errors
/// The kernel gives no random bytes.
pub fn generate() -> std::io::Result<String> {
    Ok(hex(&random::<SECRET_BYTES>()?))
}

/// Returns random bytes of the kernel.
///
/// # Errors
/// It gives none.
pub fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let rest = &mut bytes[filled..];
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

/// Returns the hash of a secret. A secret has 256 random bits, so that a plain hash of it cannot be reversed by guessing.
#[must_use]
pub fn hash(secret: &str) -> SecretHash {
    Sha256::digest(secret.as_bytes()).into()
}

/// Returns a value that belongs to a secret and tells nothing of it: what a page repeats in each change that it asks for.
#[must_use]
pub fn derived(secret: &str, purpose: &str) -> String {
    let mut digest = Sha256::new();
    digest.update(purpose.as_bytes());
    digest.update([0]);
    digest.update(secret.as_bytes());
    hex(&digest.finalize())
}

/// Returns bytes as hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the hash that 64 hexadecimal digits are of; `None` of anything else.
#[must_use]
pub fn unhex(text: &str) -> Option<SecretHash> {
    let mut hash = SecretHash::default();
    if text.len() != 2 * hash.len() || !text.is_ascii() {
        return None;
    }
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_their_derivations_do() {
        let (first, second) = (generate().expect("random"), generate().expect("random"));
        assert_eq!(first.len(), 64);
        assert_ne!(first, second);
        assert_ne!(derived(&first, "csrf"), derived(&first, "other"));
        assert_ne!(derived(&first, "csrf"), derived(&second, "csrf"));
        assert_eq!(hash(&first), hash(&first));
        assert_eq!(unhex(&hex(&hash(&first))), Some(hash(&first)));
        assert_eq!(unhex("12"), None);
    }
}

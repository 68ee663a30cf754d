//! Known answers: NIST's vectors for GCM, OpenSSL's results for the rest, and keys that OpenZFS wrapped.

use super::*;

const KEY: &str = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308";
const PLAINTEXT: &str = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
    1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39";
const IV: &str = "cafebabefacedbaddecaf888";
const AAD: &str = "feedfacedeadbeeffeedfacedeadbeefabaddad2";

/// Key length, mode, ciphertext and MAC. GCM: test cases 4, 10 and 16 of "The Galois/Counter Mode of Operation" (McGrew, Viega).
/// CCM: the same inputs through OpenSSL 3.
const ENCRYPTED: [(usize, Mode, &str, &str); 6] = [
    (
        16,
        Mode::Gcm,
        "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e\
         21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091",
        "5bc94fbc3221a5db94fae95ae7121a47",
    ),
    (
        24,
        Mode::Gcm,
        "3980ca0b3c00e841eb06fac4872a2757859e1ceaa6efd984628593b40ca1e19c\
         7d773d00c144c525ac619d18c84a3f4718e2448b2fe324d9ccda2710",
        "2519498e80f1478f37ba55bd6d27618c",
    ),
    (
        32,
        Mode::Gcm,
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa\
         8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
        "76fc6ece0f4e1768cddf8853bb2d551b",
    ),
    (
        16,
        Mode::Ccm,
        "0893e94b9148801af0f73426abb00e3ca49bf09d79a20127a7eb1926fa890537\
         87ff02d07d71813b885b85e7f96c4eedf420db126a0451ce13bd41ba",
        "0238c326b47b34f78f659e751096cd22",
    ),
    (
        24,
        Mode::Ccm,
        "928a07b18b0c0e78df4db7390636733005932b62c051ff75d697850add8f71f3\
         91f61cbc7174c01e7ab35b27d4f2d6368e1ba5595b048a388cf39cce",
        "131c50b012e4e0c8366899974644a726",
    ),
    (
        32,
        Mode::Ccm,
        "c5cccc57f32343875b5b95f98869ae19769c5e3a0dd458f949fd7701ee81615d\
         7bcb73207c692d816ff9ace558b8b6364376462bca63ea887c3ca82e",
        "626254613f2c9851cb2233929dbbd4b1",
    ),
];

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |digit: u8| {
        let value = char::from(digit).to_digit(16).expect("a digit");
        u8::try_from(value).expect("below 16")
    };
    let pairs = hex.as_bytes().chunks(2);
    pairs
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

fn array<const N: usize>(hex: &str) -> [u8; N] {
    bytes(hex).try_into().expect("as many bytes")
}

#[test]
fn ciphers_give_the_known_bytes_and_back() {
    for (len, mode, ciphertext, mac) in ENCRYPTED {
        let cipher = Cipher::new(mode, &bytes(KEY)[..len]).expect("a key");
        let mut data = bytes(PLAINTEXT);
        let made = cipher.encrypt(&array(IV), &bytes(AAD), &mut data);
        assert_eq!(made, Ok(array(mac)), "{mode:?} {len}");
        assert_eq!(data, bytes(ciphertext), "{mode:?} {len}");
        let opened = cipher.decrypt(&array(IV), &bytes(AAD), &mut data, &array(mac));
        assert_eq!(opened, Ok(()), "{mode:?} {len}");
        assert_eq!(data, bytes(PLAINTEXT), "{mode:?} {len}");
    }
}

#[test]
fn a_changed_bit_anywhere_is_found_and_gives_no_plaintext() {
    for (len, mode, ciphertext, mac) in ENCRYPTED {
        let cipher = Cipher::new(mode, &bytes(KEY)[..len]).expect("a key");
        let good = [bytes(IV), bytes(AAD), bytes(ciphertext), bytes(mac)];
        for part in 0..good.len() {
            let mut changed = good.clone();
            changed[part][3] ^= 0x10;
            let [iv, aad, mut data, mac] = changed;
            let iv = iv.try_into().expect("12 bytes");
            let mac = mac.try_into().expect("16 bytes");
            let opened = cipher.decrypt(&iv, &aad, &mut data, &mac);
            assert_eq!(opened, Err(CryptError::Forged), "{mode:?} {len} {part}");
            assert!(data.iter().all(|byte| *byte == 0), "{mode:?} {len} {part}");
        }
    }
}

#[test]
fn what_is_no_key_is_refused() {
    for mode in [Mode::Gcm, Mode::Ccm] {
        for len in [0, 15, 17, 33] {
            let made = Cipher::new(mode, &vec![1; len]);
            assert_eq!(made.err(), Some(CryptError::MalformedKey), "{mode:?} {len}");
        }
    }
    let made = WrappingKey::from_raw(&[1; 31]);
    assert_eq!(made.err(), Some(CryptError::MalformedKey));
    for digits in [&KEY[1..], &KEY.replace('8', "g"), ""] {
        let made = WrappingKey::from_hex(digits.as_bytes());
        assert_eq!(made.err(), Some(CryptError::MalformedKey), "{digits}");
    }
    for iterations in [0, 1 << 32] {
        let made = WrappingKey::from_passphrase(b"password", 1, iterations);
        assert_eq!(made.err(), Some(CryptError::Iterations(iterations)));
    }
}

#[test]
fn keys_of_the_same_bytes_are_one_key() {
    // PBKDF2-HMAC-SHA1 of "password", by OpenSSL.
    let hex = "36ebf42905c9d9ded845ed4ea5a92763bda29e35da824306b9e33b2f42c4723e";
    let derived = WrappingKey::from_passphrase(b"password", 0x0123_4567_89ab_cdef, 1000);
    let given = WrappingKey::from_hex(hex.as_bytes());
    let upper = WrappingKey::from_hex(hex.to_uppercase().as_bytes());
    let raw = WrappingKey::from_raw(&bytes(hex)).expect("32 bytes");
    let keys = DatasetKeys::generate(Suite::Aes256Gcm, 5, |bytes| bytes.fill(9)).expect("keys");
    let wrapped = keys.wrap_with(&raw, [7; IV_LEN]).expect("wrapped");
    for key in [derived, given, upper] {
        let unwrapped = wrapped.unwrap_with(&key.expect("a key")).expect("it opens");
        assert_eq!((unwrapped.guid(), unwrapped.suite()), (5, Suite::Aes256Gcm));
    }
}

/// The keys of the datasets `pass/raw` (AES-256-GCM) and `hex` (AES-128-CCM) of the golden pool m-encrypted.
fn golden() -> [(WrappedKeys, WrappingKey); 2] {
    [
        (
            WrappedKeys {
                suite: Suite::Aes256Gcm,
                guid: 17_408_266_540_816_847_663,
                version: 1,
                iv: array("609b7a5658e4ba3143112775"),
                mac: array("afc15817ed690cf9cdc49db26a1578cf"),
                master_key: array(
                    "9701cf07596fa871c92e51e412a752678f0aec5a36c2765cc97a9147a69fbc5c",
                ),
                hmac_key: array(
                    "be9b2993b47fe8e8a07ef377772c5730d7d67a22ea6b44cd44d2c8c1793943dc\
                     97830d4ba0057f440af6d42d0c466e5aa78e0ffe7cfa1a74872537155b7ed0e2",
                ),
            },
            WrappingKey::from_raw(&bytes(
                "a6e0d59167c06950b3459ff1fe7a46e4336c01f513f9f946828a0b33a13df9ac",
            ))
            .expect("32 bytes"),
        ),
        (
            WrappedKeys {
                suite: Suite::Aes128Ccm,
                guid: 16_786_115_178_853_137_079,
                version: 1,
                iv: array("79041dc548ce7f7e3bad1eea"),
                mac: array("c2b4a3def151fe551ba7bc5ec483125a"),
                master_key: array(
                    "b8c675bb235421e02db9e2507f944fcc00000000000000000000000000000000",
                ),
                hmac_key: array(
                    "8fb501b1a6333b227f84e9177af2e4f8ba8ad176ccaadf96d823a5da613f2fe3\
                     132f324ae83d2990892775b88ea07dfde27e6f220a0731991d11e915e3fbd111",
                ),
            },
            WrappingKey::from_hex(
                b"29838987a0e20397879df3b1d6e59199853c5872ec5cd922b06cbb19bc24d795",
            )
            .expect("64 digits"),
        ),
    ]
}

#[test]
fn keys_that_openzfs_wrapped_unwrap_and_wrap_to_the_same_bytes() {
    let golden = golden();
    for (stored, wrapping_key) in &golden {
        let keys = stored.unwrap_with(wrapping_key).expect("the right key");
        assert_eq!(keys.wrap_with(wrapping_key, stored.iv), Ok(*stored));
        for other in [
            WrappedKeys {
                guid: stored.guid ^ 1,
                ..*stored
            },
            WrappedKeys {
                version: 0,
                ..*stored
            },
        ] {
            let refused = other.unwrap_with(wrapping_key).err();
            assert_eq!(refused, Some(CryptError::Forged));
        }
    }
    let refused = golden[0].0.unwrap_with(&golden[1].1).err();
    assert_eq!(refused, Some(CryptError::Forged));
}

#[test]
fn what_is_derived_from_keys_has_the_known_bytes() {
    // HKDF-SHA512, AES-256-GCM and HMAC-SHA512 by Python's hashlib and OpenSSL.
    let keys = DatasetKeys::generate(Suite::Aes256Gcm, 1, |secret| {
        for (i, byte) in (0_u8..).zip(secret.iter_mut()) {
            *byte = if i < 32 { i } else { i - 32 + 100 };
        }
    })
    .expect("keys");
    let cipher = keys.block_cipher([0, 1, 2, 3, 4, 5, 6, 7]);
    let mut data = *b"sixteen bytes ok";
    let mac = cipher
        .encrypt(&array(IV), &[], &mut data)
        .expect("encrypted");
    assert_eq!(data, array("ae364c88e2fe5fe81a14261cabbb1c7c"));
    assert_eq!(mac, array("28453bc6b8a0dce813f35eea1b052d7b"));
    let hmac = keys.hmac([&b"one"[..], b"", b"two"]);
    let expected = "c1dfe8cc39620577ff4baa18d92ff4118383b68d01198e1038ac78bdc28f435e\
                    69d32344da395acf6065a9d07208a76b19e0ba4e125943eae39a774733509c6a";
    assert_eq!(hmac, array(expected));
    // FIPS 180-2, appendix C.1.
    let sum = sha512([&b"a"[..], b"bc"]);
    let expected = "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                    2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";
    assert_eq!(sum, array(expected));
}

#[test]
fn no_key_is_printed() {
    let [(wrapped, wrapping_key), _] = golden();
    let keys = wrapped.unwrap_with(&wrapping_key).expect("the right key");
    let shown = format!("{keys:?} {wrapping_key:?} {:?}", keys.block_cipher([1; 8]));
    let expected = "DatasetKeys { suite: Aes256Gcm, guid: 17408266540816847663, .. } \
                    WrappingKey(Secret) Cipher(GCM)";
    assert_eq!(shown, expected);
}

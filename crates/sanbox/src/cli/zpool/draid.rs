//! The word that asks for a draid: `draid[PARITY][:DATAd][:CHILDRENc][:SPARESs]`, and the names of distributed spares.
//!
//! What is not said follows from the number of devices. Does not know the devices themselves.
// OpenZFS: cmd/zpool/zpool_vdev.c, get_parity and draid_config_by_type (grammar, defaults, words)

/// Data columns of a group when no other number is asked for, if there are devices enough.
const DATA_DEFAULT: u64 = 8;
/// Most distributed spares.
const SPARES_MAX: u64 = 100;

/// A draid as it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DraidSpec {
    pub(super) parity: u8,
    pub(super) data: u32,
    pub(super) spares: u32,
}

/// Returns the parity of a word that begins a draid; `None` for other words.
pub(super) fn parity_of(word: &str) -> Option<u8> {
    let rest = word.strip_prefix("draid")?;
    let parity = rest.split_once(':').map_or(rest, |(parity, _)| parity);
    match parity {
        "" | "1" => Some(1),
        "2" => Some(2),
        "3" => Some(3),
        _ => None,
    }
}

/// Whether a word is the name of a distributed spare: `draid2-0-1`.
pub(super) fn is_spare_name(word: &str) -> bool {
    let Some(rest) = word.strip_prefix("draid") else {
        return false;
    };
    let numbers: Vec<&str> = rest.splitn(3, '-').collect();
    let number = |text: &&str| text.starts_with(|c: char| c.is_ascii_digit());
    numbers.len() == 3 && numbers.iter().all(number)
}

/// Reads a word that begins a draid of so many devices.
///
/// # Errors
/// What is to be said, line by line.
pub(super) fn read(word: &str, children: u64) -> Result<DraidSpec, Vec<String>> {
    let parity = parity_of(word).unwrap_or(1);
    let syntax = || {
        vec![format!(
            "invalid dRAID syntax; expected [:<number><c|d|s>] not '{}'",
            word
        )]
    };
    let (mut data, mut spares) = (None, 0_u64);
    for part in word.split(':').skip(1) {
        let end = part
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(part.len());
        let number: u64 = part[..end].parse().map_err(|_| syntax())?;
        match part[end..].chars().next().map(|c| c.to_ascii_lowercase()) {
            Some('c') if number != children => {
                return Err(vec![format!(
                    "invalid number of dRAID children; {number} required but {children} provided"
                )]);
            }
            Some('c') => {}
            Some('d') => data = Some(number),
            Some('s') => spares = number,
            _ => return Err(syntax()),
        }
    }
    let taken = spares.saturating_add(u64::from(parity));
    let data = match data {
        Some(data) => data,
        None if children > taken => (children - taken).min(DATA_DEFAULT),
        None => {
            return Err(vec![
                format!("request number of distributed spares {spares} and parity level {parity}"),
                "leaves no disks available for data".to_owned(),
            ]);
        }
    };
    if data == 0 || data.saturating_add(taken) > children {
        return Err(vec![
            format!("requested number of dRAID data disks per group {data} is too high,"),
            format!(
                "at most {} disks are available for data",
                // As the original counts, which wraps around.
                children
                    .wrapping_sub(spares)
                    .wrapping_sub(u64::from(parity))
            ),
        ]);
    }
    if spares > SPARES_MAX {
        return Err(vec![format!(
            "invalid number of dRAID spares {spares}; additional disks would be required"
        )]);
    }
    let small = |number| u32::try_from(number).map_err(|_| syntax());
    Ok(DraidSpec {
        parity,
        data: small(data)?,
        spares: small(spares)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_with_the_defaults_of_openzfs() {
        let asked = |parity, data, spares| {
            Ok(DraidSpec {
                parity,
                data,
                spares,
            })
        };
        assert_eq!(read("draid", 6), asked(1, 5, 0));
        assert_eq!(read("draid2", 20), asked(2, 8, 0));
        assert_eq!(read("draid2:4d:11c:2s", 11), asked(2, 4, 2));
        assert_eq!(read("draid3:1S:8D", 14), asked(3, 8, 1));
        assert_eq!(read("draid:1s", 3), asked(1, 1, 1));
        for (word, children, expect) in [
            (
                "draid:4",
                6,
                "invalid dRAID syntax; expected [:<number><c|d|s>] not 'draid:4'",
            ),
            (
                "draid:d",
                6,
                "invalid dRAID syntax; expected [:<number><c|d|s>] not 'draid:d'",
            ),
            (
                "draid:7c",
                6,
                "invalid number of dRAID children; 7 required but 6 provided",
            ),
            (
                "draid2:4s",
                6,
                "request number of distributed spares 4 and parity level 2\nleaves no disks available for data",
            ),
            (
                "draid:6d",
                6,
                "requested number of dRAID data disks per group 6 is too high,\nat most 5 disks are available for data",
            ),
        ] {
            let said = read(word, children).expect_err(word).join("\n");
            assert_eq!(said, expect);
        }
    }

    #[test]
    fn words_that_begin_a_draid_and_names_of_spares() {
        assert_eq!(parity_of("draid"), Some(1));
        assert_eq!(parity_of("draid3:8d"), Some(3));
        for word in ["draid0", "draid4", "draid12", "draid1-0-0", "raidz"] {
            assert_eq!(parity_of(word), None, "{word}");
        }
        assert!(is_spare_name("draid1-0-0") && is_spare_name("draid2-12-3"));
        assert!(!is_spare_name("draid1-0") && !is_spare_name("draid") && !is_spare_name("a1-0-0"));
    }
}

//! How the bytes of streams between appliances are compressed on their way.

use std::fmt;
use std::str::FromStr;

use codec::compress::Algorithm;

/// The level where nothing is said: fast, since the link is to be filled. On two cores it costs the sender some 0.8 CPU seconds for 512 MiB of
/// text (docs/measurements/2026-11-28-replication.md).
const LEVEL_DEFAULT: u8 = 1;
/// The highest level.
const LEVEL_MAX: u8 = 19;

/// Whether bytes are compressed, and how well. What does not become smaller goes as it is, so that blocks which are compressed or encrypted in
/// the pool cost next to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Never.
    Off,
    /// With zstd, by its level.
    Zstd(u8),
}

impl Compression {
    /// The algorithm, unless it is off.
    #[must_use]
    pub fn algorithm(self) -> Option<Algorithm> {
        match self {
            Self::Off => None,
            Self::Zstd(level) => Some(Algorithm::Zstd(level)),
        }
    }
}

impl Default for Compression {
    fn default() -> Self {
        Self::Zstd(LEVEL_DEFAULT)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Zstd(level) => write!(f, "zstd-{level}"),
        }
    }
}

impl FromStr for Compression {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::default()),
            _ => {
                let level = text.strip_prefix("zstd-").ok_or(())?;
                // '+1' and '01' would be other words for one level.
                let parsed = level.parse::<u8>().ok();
                let parsed = parsed.filter(|parsed| parsed.to_string() == level);
                let known = parsed.filter(|parsed| (1..=LEVEL_MAX).contains(parsed));
                known.map(Self::Zstd).ok_or(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compression_is_off_or_a_level_of_zstd() {
        for (text, read) in [
            ("off", Ok(Compression::Off)),
            ("auto", Ok(Compression::Zstd(1))),
            ("zstd-1", Ok(Compression::Zstd(1))),
            ("zstd-19", Ok(Compression::Zstd(19))),
            ("zstd-0", Err(())),
            ("zstd-20", Err(())),
            ("zstd-+1", Err(())),
            ("zstd-01", Err(())),
            ("zstd", Err(())),
            ("on", Err(())),
            ("", Err(())),
        ] {
            assert_eq!(text.parse(), read, "{text}");
        }
        assert_eq!(Compression::default().to_string(), "zstd-1");
    }
}

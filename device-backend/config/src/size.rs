//! Sizes in bytes as people write them: `256MiB`.

use std::fmt;
use std::str::FromStr;

use crate::as_text::as_text;

/// A number of bytes; written with a binary unit, `KiB`, `MiB`, `GiB` or `TiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// A string is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a size such as \"256MiB\" or \"1GiB\", found \"{0}\"")]
pub struct NotASize(pub String);

const UNITS: [(&str, u64); 4] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
];

impl ByteSize {
    /// A size of `count` MiB.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// The size in whole MiB, rounded down.
    pub const fn whole_mib(self) -> u64 {
        self.0 >> 20
    }
}

impl FromStr for ByteSize {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, NotASize> {
        let parsed = UNITS.iter().find_map(|(unit, factor)| {
            let digits = text.strip_suffix(unit)?;
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| digits.parse::<u64>().ok()?.checked_mul(*factor))?
        });
        parsed.map(Self).ok_or_else(|| NotASize(text.to_owned()))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |factor: u64| self.0 >= factor && self.0 % factor == 0;
        match UNITS.iter().find(|(_, factor)| whole(*factor)) {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

as_text!(ByteSize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_binary_and_text_round_trips() {
        let sizes = [
            ("256MiB", 256 << 20),
            ("1GiB", 1 << 30),
            ("4KiB", 4096),
            ("1TiB", 1 << 40),
            ("1536MiB", 1536 << 20),
        ];
        for (text, bytes) in sizes {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)));
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        let wrong = "MiB 256 256MB -1MiB +1MiB 1.5GiB 99999999999TiB";
        for text in wrong.split(' ').chain(["", "256 MiB"]) {
            assert_eq!(text.parse::<ByteSize>(), Err(NotASize(text.to_owned())));
        }
    }
}

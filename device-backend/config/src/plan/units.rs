//! Quantities as text: `5%`, `50us`, `10Gbit`.
//!
//! A quantity parses from a string, prints that string, and is that string in serde, so
//! configuration files, command lines and reports agree.

use std::fmt;
use std::str::FromStr;

use serde::{de, Deserialize, Deserializer, Serialize, Serializer};

/// A string is no quantity of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {wanted}, found \"{found}\"")]
pub struct NotAQuantity {
    wanted: &'static str,
    found: String,
}

fn parsed<T>(wanted: &'static str, found: &str, quantity: Option<T>) -> Result<T, NotAQuantity> {
    let found = found.to_owned();
    quantity.ok_or(NotAQuantity { wanted, found })
}

/// A probability, from 0 to 100 %.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Probability(f64);

impl Probability {
    /// Never.
    pub const NEVER: Self = Probability(0.0);

    /// A percentage, clamped to 0 to 100.
    pub fn percent(percent: f64) -> Self {
        Probability((percent / 100.0).clamp(0.0, 1.0))
    }

    /// From 0 to 1.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Probability {
    type Err = NotAQuantity;

    fn from_str(text: &str) -> Result<Self, NotAQuantity> {
        let number = text.strip_suffix('%').map(str::trim_end);
        let percent = number.and_then(|number| number.parse::<f64>().ok());
        let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
        let wanted = "a percentage from \"0%\" to \"100%\"";
        parsed(wanted, text, percent.map(Self::percent))
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded so that 0.29, which is no binary fraction, prints as it was written.
        let percent = (self.0 * 100.0 * 1e9).round() / 1e9;
        write!(f, "{percent}%")
    }
}

/// A duration in nanoseconds, up to [`Span::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(u64);

impl Span {
    /// No time.
    pub const ZERO: Self = Span(0);
    /// The longest: ten minutes.
    pub const MAX: Self = Span(600 * 1_000_000_000);

    /// A number of nanoseconds, clamped to [`Span::MAX`].
    pub const fn nanoseconds(nanoseconds: u64) -> Self {
        match nanoseconds > Self::MAX.0 {
            true => Self::MAX,
            false => Span(nanoseconds),
        }
    }

    /// Its length in nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl FromStr for Span {
    type Err = NotAQuantity;

    fn from_str(text: &str) -> Result<Self, NotAQuantity> {
        let time = humantime::parse_duration(text).ok();
        let span = time.and_then(|time| u64::try_from(time.as_nanos()).ok().map(Span));
        let wanted = "a time such as \"50us\" or \"2ms\", at most \"10m\"";
        parsed(wanted, text, span.filter(|span| *span <= Self::MAX))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = std::time::Duration::from_nanos(self.0);
        fmt::Display::fmt(&humantime::format_duration(time), f)
    }
}

/// A rate in bits per second, at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

const UNITS: [(&str, u64); 4] = [
    ("Gbit", 1_000_000_000),
    ("Mbit", 1_000_000),
    ("kbit", 1_000),
    ("bit", 1),
];

impl Rate {
    /// A number of bits per second, at least 1.
    pub fn bits_per_second(bits: u64) -> Self {
        Rate(bits.max(1))
    }

    /// Time that `bytes` bytes take, in nanoseconds.
    pub fn nanoseconds_for(self, bytes: usize) -> u64 {
        let bits = bytes as u128 * 8;
        u64::try_from(bits * 1_000_000_000 / u128::from(self.0)).unwrap_or(u64::MAX)
    }
}

impl FromStr for Rate {
    type Err = NotAQuantity;

    fn from_str(text: &str) -> Result<Self, NotAQuantity> {
        let rate = UNITS.iter().find_map(|(unit, factor)| {
            let number = text.strip_suffix(unit)?.trim_end().parse::<f64>().ok()?;
            let bits = number * *factor as f64;
            (1.0..=1e15).contains(&bits).then_some(Rate(bits as u64))
        });
        let wanted = "a rate such as \"10Gbit\", \"100Mbit\" or \"64kbit\" (per second)";
        parsed(wanted, text, rate)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, factor)| self.0 % factor == 0);
        match unit {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{}bit", self.0),
        }
    }
}

macro_rules! as_string {
    ($($quantity:ty),*) => {$(
        impl Serialize for $quantity {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $quantity {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

as_string!(Probability, Span, Rate);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_is_parsed() {
        assert_eq!("5%".parse(), Ok(Probability::percent(5.0)));
        assert_eq!("0.1%".parse::<Probability>().unwrap().get(), 0.001);
        assert_eq!("50us".parse(), Ok(Span::nanoseconds(50_000)));
        assert_eq!("1ms".parse(), Ok(Span::nanoseconds(1_000_000)));
        assert_eq!("10Gbit".parse(), Ok(Rate::bits_per_second(10_000_000_000)));
        assert_eq!("1.5Mbit".parse(), Ok(Rate::bits_per_second(1_500_000)));
        assert_eq!(Rate::bits_per_second(1_500_000).to_string(), "1500kbit");
        assert_eq!(
            Rate::bits_per_second(8_000_000_000).nanoseconds_for(125),
            125
        );
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "5", "%", "-1%", "101%", "NaN%", "inf%", "five%"] {
            assert!(text.parse::<Probability>().is_err(), "{text}");
        }
        for text in ["", "5", "ms", "-1ms", "11m", "1y"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        for text in [
            "", "5", "Gbit", "0bit", "-1Mbit", "1GB", "NaNbit", "1e30bit",
        ] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn quantities_print_what_they_parse_from(
            percent in 0u32..=100_000, nanoseconds in 0..=Span::MAX.0, bits in 1u64..1_000_000_000_000,
        ) {
            let probability = Probability::percent(f64::from(percent) / 1000.0);
            let again: Probability = probability.to_string().parse().unwrap();
            prop_assert!((again.get() - probability.get()).abs() < 1e-12);
            let span = Span(nanoseconds);
            prop_assert_eq!(span.to_string().parse(), Ok(span));
            let rate = Rate(bits);
            prop_assert_eq!(rate.to_string().parse(), Ok(rate));
        }
    }
}

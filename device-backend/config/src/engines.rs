//! How many engines a device process has.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Most engines.
const MOST: u32 = 16;

/// Processors from which on a process has more than one engine by itself: an engine that polls
/// takes one away from guests.
const MANY_PROCESSORS: usize = 8;

/// Processors for each engine then.
const PROCESSORS_PER_ENGINE: usize = 4;

/// How many engines a device process has. In TOML: `"auto"`, or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engines {
    /// One on hosts with few processors or beside other device processes; else one for each four
    /// processors.
    #[default]
    Auto,
    /// So many, 1 to 16.
    Count(u32),
}

impl Engines {
    /// Returns true if nothing else is said.
    pub fn is_auto(&self) -> bool {
        *self == Engines::Auto
    }

    /// Returns true if it must be more than one engine.
    pub fn is_several(&self) -> bool {
        matches!(self, Engines::Count(2..))
    }

    /// Engines for so many NICs on a host with so many processors: never more than NICs. `alone`
    /// says that there are no other device processes that the NICs reach.
    pub fn count(self, nics: usize, processors: usize, alone: bool) -> usize {
        let wanted = match self {
            Engines::Count(count) => count as usize,
            Engines::Auto if !alone || processors < MANY_PROCESSORS => 1,
            Engines::Auto => processors / PROCESSORS_PER_ENGINE,
        };
        wanted.min(nics).clamp(1, MOST as usize)
    }
}

impl Serialize for Engines {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Engines::Auto => serializer.serialize_str("auto"),
            Engines::Count(count) => serializer.serialize_u32(*count),
        }
    }
}

impl<'de> Deserialize<'de> for Engines {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = Engines;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(
                    formatter,
                    "\"auto\", or a number of engines from 1 to {MOST}"
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Engines, E> {
                match text {
                    "auto" => Ok(Engines::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_i64<E: de::Error>(self, count: i64) -> Result<Engines, E> {
                match u32::try_from(count) {
                    Ok(count @ 1..=MOST) => Ok(Engines::Count(count)),
                    _ => Err(E::invalid_value(de::Unexpected::Signed(count), &self)),
                }
            }
        }

        deserializer.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_hosts_have_one_engine_and_no_engine_is_without_a_nic() {
        for (nics, processors, expected) in [
            (1, 64, 1),
            (4, 1, 1),
            (4, 7, 1),
            (4, 8, 2),
            (64, 16, 4),
            (64, 256, 16),
            (3, 256, 3),
        ] {
            let count = Engines::Auto.count(nics, processors, true);
            assert_eq!(count, expected, "{nics} NICs, {processors} processors");
            assert_eq!(Engines::Auto.count(nics, processors, false), 1);
        }
        assert_eq!(Engines::Count(3).count(8, 1, true), 3);
        assert_eq!(Engines::Count(3).count(2, 64, true), 2);
    }
}

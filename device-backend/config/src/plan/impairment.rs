//! Impairments: what a link does to the frames that cross it in one direction (X4).

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use crate::plan::units::{Probability, Rate, Span};

/// The settings of a link, and what each is if it does nothing.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $setting:ty = $none:expr;)*) => {
        /// What a link does to frames in one direction; by default, nothing. In TOML, every
        /// key is optional, and values are as in [`crate::plan::units`].
        #[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Impairments {
            $($(#[$doc])* #[serde(skip_serializing_if = "is_none")] pub $name: $setting,)*
        }

        /// A change of some [`Impairments`] of a link; the others stay. In JSON it has the
        /// settings that it names, and no others; the rate `null` takes the rate away.
        #[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct ImpairmentChange {
            $(
                $(#[$doc])*
                #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "named")]
                pub $name: Option<$setting>,
            )*
        }

        impl ImpairmentChange {
            /// `before` with the settings that this change names.
            #[must_use]
            pub fn applied_to(&self, before: Impairments) -> Impairments {
                Impairments { $($name: self.$name.unwrap_or(before.$name),)* }
            }
        }

        impl Impairments {
            /// No impairments.
            pub const NONE: Self = Impairments { $($name: $none,)* };
        }
    };
}

settings! {
    /// Frames that are lost.
    loss: Probability = Probability::NEVER;
    /// Delay of every frame.
    delay: Span = Span::ZERO;
    /// Largest deviation from `delay`, evenly distributed. Order is kept.
    jitter: Span = Span::ZERO;
    /// Frames that are delayed by up to 100 µs more: later frames may overtake them.
    reorder: Probability = Probability::NEVER;
    /// Frames that arrive twice.
    duplicate: Probability = Probability::NEVER;
    /// Frames of which some bits flip; the checksum detects them.
    corrupt: Probability = Probability::NEVER;
    /// Bits per second that pass. Frames that exceed the queue are dropped.
    rate: Option<Rate> = None;
    /// All frames are dropped.
    partition: bool = false;
}

/// A setting that is there, also if it is `null`: that is no rate.
fn named<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    setting: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(setting).map(Some)
}

fn is_none<T: Default + PartialEq>(setting: &T) -> bool {
    *setting == T::default()
}

fn word<T: Default + PartialEq + fmt::Display>(name: &str, setting: T) -> Option<String> {
    (!is_none(&setting)).then(|| format!("{name} {setting}"))
}

impl Impairments {
    /// Returns true if there are none.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

impl fmt::Display for Impairments {
    /// As on the command line: `loss 5% delay 1ms`; `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            word("loss", self.loss),
            word("reorder", self.reorder),
            word("duplicate", self.duplicate),
            word("corrupt", self.corrupt),
            word("delay", self.delay),
            word("jitter", self.jitter),
            self.rate.map(|rate| format!("rate {rate}")),
            self.partition.then(|| "partition".to_owned()),
        ];
        let words: Vec<_> = words.into_iter().flatten().collect();
        f.write_str(&match words.is_empty() {
            true => "none".to_owned(),
            false => words.join(" "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::impairments;

    #[test]
    fn a_change_leaves_the_other_settings() {
        let change: ImpairmentChange =
            serde_json::from_str(r#"{"loss":"1%","delay":"2ms"}"#).unwrap();
        let after = change.applied_to(impairments("loss 5% partition"));
        assert_eq!(after, impairments("loss 1% delay 2ms partition"));
        assert!(serde_json::from_str::<ImpairmentChange>(r#"{"lost":"1%"}"#).is_err());
    }

    /// A change of the rate to none is not the same as none of the rate, also in JSON.
    #[test]
    fn a_rate_is_taken_away_and_the_rest_stays() {
        let change = ImpairmentChange {
            rate: Some(None),
            ..ImpairmentChange::default()
        };
        let text = serde_json::to_string(&change).unwrap();
        assert_eq!(text, r#"{"rate":null}"#);
        let again: ImpairmentChange = serde_json::from_str(&text).unwrap();
        assert_eq!(again, change);
        let after = again.applied_to(impairments("loss 5% rate 1Mbit"));
        assert_eq!(after, impairments("loss 5%"));
        let other = ImpairmentChange {
            delay: Some(Span::ZERO),
            ..ImpairmentChange::default()
        };
        let text = serde_json::to_string(&other).unwrap();
        assert_eq!(text, r#"{"delay":"0s"}"#);
        let again: ImpairmentChange = serde_json::from_str(&text).unwrap();
        let after = again.applied_to(impairments("rate 1Mbit"));
        assert_eq!(after, impairments("rate 1Mbit"));
        assert!(serde_json::from_str::<ImpairmentChange>(r#"{"loss":null}"#).is_err());
    }

    #[test]
    fn impairments_are_printed() {
        assert!(Impairments::default().is_none());
        assert_eq!(Impairments::NONE.to_string(), "none");
        let all = Impairments {
            loss: Probability::percent(5.0),
            delay: Span::nanoseconds(1_000_000),
            jitter: Span::nanoseconds(1_000),
            reorder: Probability::percent(2.0),
            duplicate: Probability::percent(1.0),
            corrupt: Probability::percent(0.5),
            rate: Some(Rate::bits_per_second(1_000_000)),
            partition: true,
        };
        let shown = "loss 5% reorder 2% duplicate 1% corrupt 0.5% delay 1ms jitter 1us rate 1Mbit partition";
        assert_eq!(all.to_string(), shown);
        assert_eq!(impairments(shown), all);
    }
}

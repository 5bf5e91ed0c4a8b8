//! Impairments: what a link does to the frames that cross it in one direction (X4).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::{Probability, Rate, Span};

/// What a link does to frames in one direction; by default, nothing.
///
/// In TOML, every key optional:
///
/// ```toml
/// loss = "5%"          # frames that are lost
/// delay = "1ms"        # delay of every frame
/// jitter = "200us"     # largest deviation from the delay; keeps the order
/// reorder = "2%"       # frames that are delayed by up to 100 µs more: later ones overtake
/// duplicate = "1%"     # frames that arrive twice
/// corrupt = "1%"       # frames of which some bits flip; the checksum detects them
/// rate = "1Gbit"       # bits per second; frames that exceed the queue are dropped
/// partition = true     # all frames are dropped
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Impairments {
    /// Frames that are lost.
    #[serde(skip_serializing_if = "never")]
    pub loss: Probability,
    /// Delay of every frame.
    #[serde(skip_serializing_if = "zero")]
    pub delay: Span,
    /// Largest deviation from `delay`, evenly distributed. Order is kept.
    #[serde(skip_serializing_if = "zero")]
    pub jitter: Span,
    /// Frames that later frames may overtake.
    #[serde(skip_serializing_if = "never")]
    pub reorder: Probability,
    /// Frames that arrive twice.
    #[serde(skip_serializing_if = "never")]
    pub duplicate: Probability,
    /// Frames of which some bits flip.
    #[serde(skip_serializing_if = "never")]
    pub corrupt: Probability,
    /// Bits per second that pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// All frames are dropped.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partition: bool,
}

/// A change of some [`Impairments`] of a link; the others stay.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)]
pub struct ImpairmentChange {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Probability>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder: Option<Probability>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicate: Option<Probability>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub corrupt: Option<Probability>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<bool>,
}

impl ImpairmentChange {
    /// `before` with the settings that this change names.
    #[must_use]
    pub fn applied_to(&self, before: Impairments) -> Impairments {
        Impairments {
            loss: self.loss.unwrap_or(before.loss),
            delay: self.delay.unwrap_or(before.delay),
            jitter: self.jitter.unwrap_or(before.jitter),
            reorder: self.reorder.unwrap_or(before.reorder),
            duplicate: self.duplicate.unwrap_or(before.duplicate),
            corrupt: self.corrupt.unwrap_or(before.corrupt),
            rate: self.rate.or(before.rate),
            partition: self.partition.unwrap_or(before.partition),
        }
    }
}

fn never(probability: &Probability) -> bool {
    probability.is_never()
}

fn zero(span: &Span) -> bool {
    span.is_zero()
}

impl Impairments {
    /// No impairments.
    pub const NONE: Self = Impairments {
        loss: Probability::NEVER,
        delay: Span::ZERO,
        jitter: Span::ZERO,
        reorder: Probability::NEVER,
        duplicate: Probability::NEVER,
        corrupt: Probability::NEVER,
        rate: None,
        partition: false,
    };

    /// Returns true if there are none.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

impl fmt::Display for Impairments {
    /// As on the command line: `loss 5% delay 1ms`; `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        let rates = [
            ("loss", self.loss),
            ("reorder", self.reorder),
            ("duplicate", self.duplicate),
            ("corrupt", self.corrupt),
        ];
        let times = [("delay", self.delay), ("jitter", self.jitter)];
        let rates = rates.iter().filter(|(_, value)| !value.is_never());
        words.extend(rates.map(|(name, value)| format!("{name} {value}")));
        let times = times.iter().filter(|(_, value)| !value.is_zero());
        words.extend(times.map(|(name, value)| format!("{name} {value}")));
        words.extend(self.rate.map(|rate| format!("rate {rate}")));
        words.extend(self.partition.then(|| "partition".to_owned()));
        f.write_str(&match words.is_empty() {
            true => "none".to_owned(),
            false => words.join(" "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_leaves_the_other_settings() {
        let before = Impairments {
            loss: Probability::percent(5.0),
            partition: true,
            ..Impairments::NONE
        };
        let change: ImpairmentChange =
            serde_json::from_str(r#"{"loss":"1%","delay":"2ms"}"#).unwrap();
        let after = Impairments {
            loss: Probability::percent(1.0),
            delay: Span::nanoseconds(2_000_000),
            partition: true,
            ..Impairments::NONE
        };
        assert_eq!(change.applied_to(before), after);
        assert!(serde_json::from_str::<ImpairmentChange>(r#"{"lost":"1%"}"#).is_err());
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
    }
}

//! What a figure shall be.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which figures are good ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Better {
    /// Small ones.
    Lower,
    /// Large ones.
    Higher,
}

impl Better {
    /// What the unit of a figure says.
    pub(super) fn of_unit(unit: &str) -> Option<Self> {
        match unit {
            "ns" | "µs" | "ms" | "s" | "instructions" | "each" | "ratio" => Some(Better::Lower),
            "MB/s" | "GB/s" | "1/s" | "1000/s" | "/s" => Some(Better::Higher),
            _ => None,
        }
    }
}

/// Which side of its value is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    /// That value, or less.
    AtMost,
    /// That value, or more.
    AtLeast,
}

/// What of a figure it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Of {
    /// Its ratio.
    Ratio,
    /// Its median.
    Median,
}

/// What a figure shall be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct Goal {
    /// Code of the requirement that says so (docs/requirements.md).
    pub(super) code: Option<String>,
    /// What of the figure it is for.
    pub(super) of: Of,
    /// Which side of the value is good.
    pub(super) bound: Bound,
    /// The value.
    pub(super) value: f64,
    /// It is met; none if nothing was measured.
    pub(super) met: Option<bool>,
    /// How far off the measured value is: above 1 it is missed by that factor, below 1 it is met by
    /// it; none if nothing was measured.
    pub(super) distance: Option<f64>,
}

impl Goal {
    pub(super) fn at_most(of: Of, value: f64) -> Self {
        Self::new(of, Bound::AtMost, value)
    }

    pub(super) fn at_least(of: Of, value: f64) -> Self {
        Self::new(of, Bound::AtLeast, value)
    }

    fn new(of: Of, bound: Bound, value: f64) -> Self {
        Goal {
            code: None,
            of,
            bound,
            value,
            met: None,
            distance: None,
        }
    }

    /// The same with the code of the requirement.
    pub(super) fn code(self, code: Option<&str>) -> Self {
        let code = code.map(str::to_owned);
        Goal { code, ..self }
    }

    /// The same, compared with what was measured.
    pub(super) fn checked(&self, measured: Option<f64>) -> Self {
        let distance = measured.map(|measured| match self.bound {
            Bound::AtMost => measured / self.value,
            Bound::AtLeast => self.value / measured,
        });
        Goal {
            met: distance.map(|distance| distance <= 1.0),
            distance: distance.filter(|distance| distance.is_finite()),
            ..self.clone()
        }
    }

    pub(super) fn better(&self) -> Better {
        match self.bound {
            Bound::AtMost => Better::Lower,
            Bound::AtLeast => Better::Higher,
        }
    }

    /// It was measured, and is not met.
    pub(super) fn is_missed(&self) -> bool {
        self.met == Some(false)
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.bound {
            Bound::AtMost => '≤',
            Bound::AtLeast => '≥',
        };
        // Three digits after the point: a third is 0.333.
        let value = (self.value * 1e3).round() / 1e3;
        write!(f, "{sign} {value}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_knows_how_far_off_it_is() {
        let least = Goal::at_least(Of::Ratio, 0.8);
        let most = Goal::at_most(Of::Ratio, 2.0);
        for (goal, measured, met, distance) in [
            (&least, Some(0.8), Some(true), Some(1.0)),
            (&least, Some(0.4), Some(false), Some(2.0)),
            (&least, None, None, None),
            // Nothing at all was moved.
            (&least, Some(0.0), Some(false), None),
            (&most, Some(3.0), Some(false), Some(1.5)),
            (&most, Some(1.0), Some(true), Some(0.5)),
        ] {
            let checked = goal.checked(measured);
            assert_eq!((checked.met, checked.distance), (met, distance));
        }
        assert_eq!(most.to_string(), "≤ 2");
        assert_eq!(Goal::at_least(Of::Ratio, 1.0 / 3.0).to_string(), "≥ 0.333");
    }
}

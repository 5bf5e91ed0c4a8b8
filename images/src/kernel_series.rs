//! Which of the distribution's stock kernels a guest boots.

use std::fmt;
use std::str::FromStr;

use crate::distribution::{BACKPORTS, STABLE};

/// A series of stock kernels; the newest one the mirror has is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KernelSeries {
    /// The kernel of the stable release.
    #[default]
    Stable,
    /// The newest kernel that the stable release's backports can boot.
    Backports,
    /// The kernel of the stable release with drivers for all hardware, such as Soft-RoCE. It is
    /// fetched when a guest wants it.
    Generic,
}

impl KernelSeries {
    /// Every series, in the order they are documented.
    pub const ALL: [Self; 3] = [Self::Stable, Self::Backports, Self::Generic];

    /// Those that are chosen from the mirror, and that the root for builds has the headers of. The
    /// generic kernel is that of the stable series in another flavour.
    pub(crate) const USUAL: [Self; 2] = [Self::Stable, Self::Backports];

    /// The name used in cluster files and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Backports => "backports",
            Self::Generic => "generic",
        }
    }

    /// The suite that its kernels are taken from.
    pub(crate) fn suite(self) -> &'static str {
        match self {
            Self::Stable | Self::Generic => STABLE,
            Self::Backports => BACKPORTS,
        }
    }
}

impl fmt::Display for KernelSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A kernel series that does not exist was named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no kernel series \"{0}\": use \"stable\", \"backports\" or \"generic\"")]
pub struct UnknownSeries(pub String);

impl FromStr for KernelSeries {
    type Err = UnknownSeries;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|series| series.as_str() == name)
            .ok_or_else(|| UnknownSeries(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_are_refused() {
        for series in KernelSeries::ALL {
            assert_eq!(series.as_str().parse(), Ok(series));
        }
        let error = "7.2".parse::<KernelSeries>().unwrap_err();
        assert!(error.to_string().contains("\"7.2\""), "{error}");
    }
}

//! Which accelerator runs the guests.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::kvm_probe;
use crate::{AccelChoice, Error, Result};

/// An accelerator of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// The processor's own virtualization.
    Kvm,
    /// QEMU's emulation.
    Tcg,
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}

/// An accelerator, and why it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccelDecision {
    /// What to use.
    pub accel: Accel,
    /// Why.
    pub reason: String,
}

/// Decides how to run guests; `auto` and `kvm` run guest code to find out whether
/// KVM really works here.
///
/// # Errors
/// [`Error::Host`] if KVM was asked for and does not work.
pub fn decide(choice: AccelChoice) -> Result<AccelDecision> {
    let (accel, reason) = match choice {
        AccelChoice::Tcg => (Accel::Tcg, "asked for".into()),
        AccelChoice::Auto | AccelChoice::Kvm => match kvm_probe::probe() {
            Ok(tried) => (Accel::Kvm, tried),
            Err(broken) if choice == AccelChoice::Kvm => {
                return Err(Error::Host(format!(
                    "KVM was asked for but does not work here: {broken}; use accel = \"auto\" or \"tcg\""
                )));
            }
            Err(broken) => (Accel::Tcg, format!("KVM does not work here: {broken}")),
        },
    };
    Ok(AccelDecision { accel, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_always_finds_something_and_says_why() {
        let decision = decide(AccelChoice::Auto).unwrap();
        assert!(!decision.reason.is_empty());
        // What was found must be true for a choice of KVM, too.
        let kvm = decide(AccelChoice::Kvm).is_ok();
        assert_eq!(kvm, decision.accel == Accel::Kvm);
    }

    #[test]
    fn tcg_can_be_had_anywhere() {
        assert_eq!(decide(AccelChoice::Tcg).unwrap().accel, Accel::Tcg);
    }
}

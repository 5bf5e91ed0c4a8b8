//! Two nodes that cannot talk (U8).

use std::fmt;
use std::time::Duration;

use qnic_abi::NodeId;

/// Two nodes cannot talk ([`super::Error::NoPath`]).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoPath {
    /// The node that has asked.
    pub from: NodeId,
    /// The other one.
    pub to: NodeId,
    /// The NIC of `from` has refused to send: it has no route, or has given the other NIC up.
    pub is_refused: bool,
    /// How long the check has waited.
    pub waited: Duration,
}

impl fmt::Display for NoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to, waited) = (self.from, self.to, self.waited);
        write!(f, "{from} and {to} cannot talk: ")?;
        match self.is_refused {
            true => write!(
                f,
                "the NIC of {from} has no route to {to}, or has given up its NIC after {waited:.1?}"
            ),
            false => write!(
                f,
                "no probe of {from} was answered by the NIC of {to} for {waited:.1?}; look for links that \
                 are cut, and for a device process that is not running"
            ),
        }
    }
}

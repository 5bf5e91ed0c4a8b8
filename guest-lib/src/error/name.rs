//! Names that were not registered, or not found.

use std::fmt;

use qnic_abi::{NodeId, Port, Status};

use super::hint;

/// A name that was not registered, or not found ([`crate::names`]).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NameError {
    /// The application.
    pub application: String,
    /// Number of the process in it.
    pub process: u32,
    /// Why it failed.
    pub status: Status,
    /// With [`Status::NameTaken`] the process that has the name.
    pub holder: (NodeId, Port),
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "name {}/{}: ", self.application, self.process)?;
        match self.status {
            Status::NameNotFound => {
                f.write_str("no process has registered it in time: is it running, and its node up?")
            }
            Status::Exhausted => f.write_str(
                "this process has as many names, or waits for as many, as it may: withdraw one",
            ),
            Status::NameTaken => {
                let (node, port) = self.holder;
                write!(
                    f,
                    "another process has it ({node}, {port}): take another name, or end that one"
                )
            }
            status => write!(f, "{status}{}", hint(&status)),
        }
    }
}

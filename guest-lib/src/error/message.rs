//! Messages that were not sent or received.

use std::fmt;

use qnic_abi::{NodeId, Port, Status};

use super::hint;

/// The kind of a message command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MessageOperation {
    /// A Send.
    Send,
    /// A receive.
    Receive,
    /// A probe, or a claim.
    Probe,
}

/// A Send, a receive or a probe that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageError {
    /// Its kind.
    pub operation: MessageOperation,
    /// Node and port of the process that it names; `None` of a receive from any process.
    pub peer: Option<(NodeId, Port)>,
    /// The tag.
    pub tag: u64,
    /// Bytes of the message, or of the memory of the receive; 0 of a probe.
    pub length: u64,
    /// Why it failed.
    pub status: Status,
}

impl MessageError {
    /// What would be said of a command if it failed; its status is still open.
    pub(crate) fn new(
        operation: MessageOperation,
        peer: Option<(NodeId, Port)>,
        tag: u64,
        length: u64,
    ) -> Self {
        MessageError {
            operation,
            peer,
            tag,
            length,
            status: Status::Ok,
        }
    }

    pub(crate) fn with(self, status: Status) -> Self {
        MessageError { status, ..self }
    }
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (length, tag, status) = (self.length, self.tag, self.status);
        match self.operation {
            MessageOperation::Send => {
                write!(f, "message of {length} bytes with tag {tag:#x} to ")?;
            }
            MessageOperation::Receive => {
                write!(f, "receive of {length} bytes with tag {tag:#x} from ")?;
            }
            MessageOperation::Probe => write!(f, "probe for tag {tag:#x} from ")?,
        }
        match self.peer {
            Some((node, port)) => write!(f, "{node}, {port}")?,
            None => f.write_str("any process")?,
        }
        let hint = match status {
            Status::PeerGone | Status::Aborted => "",
            _ => hint(&status),
        };
        write!(f, ": {status}{hint}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_failed_message_is_named() {
        let peer = Some((NodeId(1), Port(7)));
        let error = MessageError::new(MessageOperation::Send, peer, 5, 100);
        assert_eq!(
            Error::Message(error.with(Status::NoSuchPort)).to_string(),
            "message of 100 bytes with tag 0x5 to node 1, port 7: no process is registered on that \
             port; start that process, or check the port"
        );
        let error = MessageError::new(MessageOperation::Receive, None, 5, 100);
        let error = Error::Message(error.with(Status::Cancelled));
        assert_eq!(
            error.to_string(),
            "receive of 100 bytes with tag 0x5 from any process: the receive was cancelled"
        );
        assert_eq!(error.status(), Some(Status::Cancelled));
        let error = MessageError::new(MessageOperation::Probe, peer, 5, 0);
        assert_eq!(
            Error::Message(error.with(Status::PeerGone)).to_string(),
            "probe for tag 0x5 from node 1, port 7: the peer was reset or its process ended during \
             the transfer"
        );
    }
}

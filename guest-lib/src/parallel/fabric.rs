//! What the ranks need of an interface: bytes that go to some ranks and come from others at the
//! same time.

use std::fmt;
use std::time::Duration;

use crate::error::Error;

/// What an exchange belongs to. Both sides have to say the same.
///
/// ```text
///    63     56 55                                        0
///   ┌─────────┬───────────────────────────────────────────┐
///   │ kind    │ number of the call; of an end: its reason │
///   └─────────┴───────────────────────────────────────────┘
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label(pub(super) u64);

/// What the ranks do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// Rows of grids change places: halos, shifts.
    Rows = 1,
    /// Values go to rank 0.
    Gather = 2,
    /// Values come from rank 0.
    Broadcast = 3,
}

/// The kind of a label that ends everything.
const END: u64 = 0xff;
const NUMBER: u64 = (1 << 56) - 1;

impl Label {
    pub(super) fn new(call: Call, number: u64) -> Self {
        Label((call as u64) << 56 | number & NUMBER)
    }

    /// Says that a rank is the reason why all end.
    pub(super) fn end(reason: u32) -> Self {
        Label(END << 56 | u64::from(reason))
    }

    /// The rank that is the reason of an end; none of a call.
    pub(super) fn reason(self) -> Option<u32> {
        let rank = (self.0 & NUMBER).min(u32::MAX.into()) as u32;
        (self.0 >> 56 == END).then_some(rank)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0 & NUMBER;
        match self.0 >> 56 {
            1 => write!(f, "call {number}, rows of a grid"),
            2 => write!(f, "call {number}, a gather"),
            3 => write!(f, "call {number}, a broadcast"),
            END => write!(f, "an end because of rank {number}"),
            _ => write!(f, "unknown call {:#x}", self.0),
        }
    }
}

/// Bytes for a rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outgoing<'a> {
    pub(super) rank: u32,
    pub(super) bytes: &'a [u8],
}

/// Room for the bytes of a rank, which sends exactly as many.
#[derive(Debug)]
pub(super) struct Incoming<'a> {
    pub(super) rank: u32,
    pub(super) bytes: &'a mut [u8],
}

/// Why an exchange has failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// A rank has ended, or has said that another one is the reason.
    Ended { rank: u32, cause: String },
    /// Time is over.
    Silent { rank: u32 },
    /// A rank does something else.
    Differs { rank: u32, what: String },
    /// Something here.
    Local(Error),
}

/// What becomes of an exchange.
pub(super) type Outcome<T = ()> = std::result::Result<T, Fault>;

impl Fault {
    /// A rank has said that another one is the reason.
    pub(super) fn told(by: u32, reason: u32) -> Self {
        let cause = match by == reason {
            true => "it has given up".into(),
            false => format!("rank {by} says so"),
        };
        Fault::Ended {
            rank: reason,
            cause,
        }
    }

    /// Something that came is not what was expected; or it is an end.
    pub(super) fn compare(rank: u32, expected: (Label, u64), found: (Label, u64)) -> Outcome {
        if let Some(reason) = found.0.reason() {
            return Err(Fault::told(rank, reason));
        }
        if expected == found {
            return Ok(());
        }
        let what = format!(
            "{} bytes of {} instead of {} bytes of {}",
            found.1, found.0, expected.1, expected.0
        );
        Err(Fault::Differs { rank, what })
    }
}

/// An interface that connects all ranks.
pub(super) trait Fabric: fmt::Debug + Send {
    /// Sends and receives at the same time, whatever the sizes. No rank is named twice among the
    /// sends or receives, and this one never.
    ///
    /// # Errors
    /// Ends within `limit`, whichever rank dies. Then only [`Fabric::end`] is left to be called.
    fn exchange(
        &mut self,
        label: Label,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
        limit: Duration,
    ) -> Outcome;

    /// Tells all other ranks, as far as they can be reached, that a rank is the reason of the end.
    fn end(&mut self, reason: u32);

    /// Waits until all that was sent is there.
    fn flush(&mut self, limit: Duration) -> Outcome;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_tell_calls_and_ends_apart() {
        let call = Label::new(Call::Gather, 7);
        assert_eq!(call.reason(), None);
        assert_ne!(call, Label::new(Call::Rows, 7));
        assert_ne!(call, Label::new(Call::Gather, 8));
        assert_eq!(Label::end(255).reason(), Some(255));
        assert_eq!(call.to_string(), "call 7, a gather");
        // Whatever a peer sends is a label.
        assert_eq!(Label(u64::MAX).reason(), Some(u32::MAX));
    }

    #[test]
    fn what_differs_is_said() {
        let expected = (Label::new(Call::Gather, 7), 8);
        assert!(Fault::compare(1, expected, expected).is_ok());
        let other = Fault::compare(1, expected, (Label::new(Call::Gather, 7), 9)).unwrap_err();
        assert!(matches!(other, Fault::Differs { rank: 1, .. }));
        let end = Fault::compare(1, expected, (Label::end(3), 0)).unwrap_err();
        assert!(matches!(end, Fault::Ended { rank: 3, .. }));
    }
}

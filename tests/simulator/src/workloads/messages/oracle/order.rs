//! MPI's rules, as far as commands and completions show them (Q4).
//!
//! Let a receive take a message. A receive of the same space that was posted earlier, and that
//! takes the message too, must have left before: if it was posted when the message came, it was
//! the first; if the message was there when it was posted, it was the one to take it. It has not
//! left if it
//!
//! - ends without a message, by a completion that is behind that of the message;
//! - is posted still when nothing is under way any more;
//! - takes a message of the same sender to the same process that was sent later;
//! - takes a message that was sent when the first one was complete.
//!
//! Probes that claim or discard are held to the same, but that one which waits is behind all receives.
//! Those that only look take nothing.
//!
//! A receive of many messages has them one behind the other in its memory in their order.

use super::items::{How, Message, Receive, Taken};
use super::{MessageOracle, Process};

impl MessageOracle {
    /// Checks what the receives of a process have taken; `quiet`: nothing is under way.
    pub(super) fn check_order(&self, process: &Process, quiet: bool) {
        for (index, receive) in process.receives.iter().enumerate() {
            if !receive.how.matches() {
                continue;
            }
            self.check_many(receive);
            let passed = |earlier: &&Receive| receive.how == How::Receive && earlier.how.waits();
            let by_context = receive.context.is_some();
            for taken in &receive.taken {
                let message = &self.messages[&taken.id];
                let name = self.name(message.from);
                let earlier = process.receives[..index].iter();
                let earlier = earlier.filter(|earlier| earlier.pattern.takes(name, message));
                let earlier = earlier.filter(|it| it.how.matches() && !passed(it));
                for earlier in earlier.filter(|earlier| earlier.wrong.is_none()) {
                    self.check_left(earlier, (taken, by_context), message, quiet);
                }
            }
        }
    }

    /// A receive must have left before a later one could take a message.
    fn check_left(
        &self,
        receive: &Receive,
        (taken, by_context): (&Taken, bool),
        message: &Message,
        quiet: bool,
    ) {
        let (handle, id) = (receive.handle, taken.id);
        let passed = format!("receive {handle} was posted when a later one took message {id}");
        let last = receive.taken.iter().map(|taken| taken.completion).max();
        match receive.end {
            None => assert!(!quiet, "{passed}: it is still there"),
            Some(end) => {
                let by_message = last.is_some_and(|last| last >= end);
                // A completion may wait for room, a doorbell does not.
                let late = receive.context.is_none() && by_context;
                let later = end > taken.completion && !late;
                assert!(by_message || !later, "{passed}: it has ended afterwards");
            }
        }
        for other in &receive.taken {
            let found = &self.messages[&other.id];
            let later = found.has_ends_of(message) && other.id > id;
            assert!(!later, "{passed}: it has taken {}, sent later", other.id);
            let afterwards = found.issued > taken.time;
            assert!(!afterwards, "{passed}: it has taken {} then", other.id);
        }
    }

    /// Messages of one sender lie one behind the other in a receive of many.
    fn check_many(&self, receive: &Receive) {
        for (index, one) in receive.taken.iter().enumerate() {
            for other in &receive.taken[..index] {
                let same = self.messages[&one.id].has_ends_of(&self.messages[&other.id]);
                let (first, second) = match one.id < other.id {
                    true => (one, other),
                    false => (other, one),
                };
                assert!(
                    !same || first.range.0 <= second.range.0,
                    "receive {}: message {} lies behind {}, sent later",
                    receive.handle,
                    first.id,
                    second.id
                );
            }
        }
    }
}

//! | module | shows |
//! |---|---|
//! | `stories` | each rule alone |
//! | `property` | all rules together, against two lists that are searched from the front |
//! | `cost` | how many entries each operation looks at, and how much memory stays |

mod cost;
mod property;
mod stories;

use super::*;

const ROOM: Bounds = Bounds {
    receives: 20_000,
    masks: 8,
    messages: 20_000,
};

/// Sources are numbers, whose lower byte is the general form.
impl Sender for u16 {
    fn general(self) -> Self {
        self & 0xff
    }
}

/// Receives and messages have numbers as handles.
type TestMatching = Matching<u16, u32, u32>;

impl TestMatching {
    /// Posts a receive that is queued.
    fn queue_receive(&mut self, pattern: Pattern<u16>, takes: Takes, handle: u32) -> ReceiveId {
        match self.post(pattern, takes, handle) {
            Ok(Posted::Queued(id)) => id,
            other => panic!("receive {handle} is not queued: {other:?}"),
        }
    }

    /// A message arrives that is queued.
    fn queue_message(&mut self, source: u16, tag: u64, handle: u32) -> MessageId {
        match self.arrive(source, tag, handle) {
            Ok(Arrived::Queued(id)) => id,
            other => panic!("message {handle} is not queued: {other:?}"),
        }
    }

    /// A message arrives: the receive that takes it.
    fn taker(&mut self, source: u16, tag: u64) -> Option<u32> {
        match self.arrive(source, tag, 0) {
            Ok(Arrived::Matched(receive)) => Some(receive.handle),
            _ => None,
        }
    }

    /// A receive is posted: the message that it takes.
    fn taken(&mut self, pattern: Pattern<u16>) -> Option<u32> {
        match self.post(pattern, Takes::One, 0) {
            Ok(Posted::Matched(message)) => Some(message.handle),
            _ => None,
        }
    }

    /// The handles of the posted receives and of the unexpected messages.
    fn queued(&self) -> (Vec<u32>, Vec<u32>) {
        let receives = self.receives().map(|it| it.handle);
        (
            receives.collect(),
            self.messages().map(|it| it.handle).collect(),
        )
    }
}

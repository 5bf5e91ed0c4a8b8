//! Answers that wait to be sent, and those whose page the NIC reads: a bounded number for each
//! client.

use alloc::vec::Vec;

use qnic_abi::remote_memory::Header;

use super::store::EntryIndex;
use crate::datagram::Address;
use crate::platform::NoMemory;
use crate::remote_memory::queue::Queue;
use crate::remote_memory::wire::Ticket;

/// Most waiting answers to senders without a session.
const STRANGERS: u16 = 16;

/// One answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) to: Address,
    pub(super) header: Header,
    /// The steered buffer that waits for it.
    pub(super) target: u64,
    /// The page that goes with it.
    pub(super) entry: Option<EntryIndex>,
    /// Its client; `None` for senders without a session.
    pub(super) client: Option<u8>,
}

/// All answers.
#[derive(Debug)]
pub(super) struct Answers {
    queue: Queue<Answer>,
    /// Answers that are not sent yet, of each client, and of senders without a session.
    under_way: Vec<u16>,
    window: u16,
}

impl Answers {
    /// No answers, with room for those of so many clients.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn new(clients: usize, window: u16) -> Result<Self, NoMemory> {
        let mut under_way = Vec::new();
        under_way.try_reserve_exact(clients + 1)?;
        under_way.resize(clients + 1, 0);
        let all = clients * usize::from(window) + usize::from(STRANGERS);
        Ok(Answers {
            queue: Queue::new(all)?,
            under_way,
            window,
        })
    }

    /// Returns true if a client may have one more.
    pub(super) fn has_room(&self, client: Option<u8>) -> bool {
        let limit = if client.is_some() {
            self.window
        } else {
            STRANGERS
        };
        self.under_way[self.index(client)] < limit
    }

    /// Puts an answer in. There is room.
    pub(super) fn push(&mut self, answer: Answer) {
        let index = self.index(answer.client);
        if self.queue.push(answer).is_ok() {
            self.under_way[index] += 1;
        }
    }

    /// The next one to send.
    pub(super) fn pop(&mut self) -> Option<Answer> {
        self.queue.pop()
    }

    /// An answer is sent.
    pub(super) fn is_sent(&mut self, client: Option<u8>) {
        let index = self.index(client);
        self.under_way[index] = self.under_way[index].saturating_sub(1);
    }

    /// The ticket that comes back when the page of an answer is read.
    pub(super) fn ticket(&self, entry: EntryIndex, client: Option<u8>) -> Ticket {
        Ticket((self.index(client) as u64) << 32 | u64::from(entry))
    }

    /// Takes a ticket back; returns the entry whose page is read.
    pub(super) fn redeem(&mut self, ticket: Ticket) -> Option<EntryIndex> {
        let under_way = self.under_way.get_mut((ticket.0 >> 32) as usize)?;
        *under_way = under_way.checked_sub(1)?;
        Some(ticket.0 as EntryIndex)
    }

    fn index(&self, client: Option<u8>) -> usize {
        client.map_or(self.under_way.len() - 1, usize::from)
    }
}

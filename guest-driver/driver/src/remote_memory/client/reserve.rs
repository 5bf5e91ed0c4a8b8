//! Room for all blocks with their replicas: how many pages each server is to keep free for the volume.
//!
//! ```text
//!   Attached: what each server may give ──► shares ──► Reserve ──► Reserved: all of it? ──► Active
//!                                             ▲                        │ less: another client was first
//!                                             └────────────────────────┘
//! ```
//! A server holds a block once. So servers with rooms r hold b blocks on n servers each if the sum of
//! min(r, b) is at least n × b, and each new block goes to those with the most room left. Shares are as equal
//! as rooms allow. A thin volume reserves nothing.

use qnic_abi::remote_memory::Header;

use super::server_set::{ServerIndex, MAX_SERVERS};
use super::servers::ServerState;
use super::{Client, ClientState};

impl<P> Client<P> {
    /// Returns true if servers have reserved all that the volume needs. If not, asks them for it, or notes
    /// that they cannot.
    pub(super) fn has_reserved(&mut self) -> bool {
        if self.config.thin {
            return true;
        }
        let need = self
            .config
            .blocks
            .saturating_mul(self.config.replicas as u64);
        // One that leaves serves until its pages are elsewhere: what it gives counts until then.
        let live = self.servers.live;
        let reserved = live.iter().map(|it| self.servers.get(it).reserved);
        if reserved.sum::<u64>() >= need {
            return true;
        }
        let mut rooms = [0; MAX_SERVERS];
        for server in live.iter() {
            let granted = self.servers.get(server).granted;
            rooms[usize::from(server)] = granted.min(self.config.blocks);
        }
        let room = rooms.iter().sum();
        self.shortage = (room < need).then_some(room);
        if self.shortage.is_none() {
            for (server, share) in (0..).zip(shares(&rooms, need)).take(self.servers.len()) {
                self.want(server, share);
            }
        }
        false
    }

    /// A server has come that was not there when shares were made, or that has lost its memory: it is to
    /// reserve what is missing.
    pub(super) fn reserve_again(&mut self, server: ServerIndex) {
        if self.config.thin {
            return;
        }
        let need = self
            .config
            .blocks
            .saturating_mul(self.config.replicas as u64);
        let others = self.servers.iter().filter(|(_, it)| it.has_session());
        let reserved: u64 = others.map(|(_, it)| it.wanted).sum();
        let most = self.servers.get(server).granted.min(self.config.blocks);
        self.want(server, need.saturating_sub(reserved).min(most));
    }

    fn want(&mut self, server: ServerIndex, pages: u64) {
        let entry = self.servers.get_mut(server);
        if entry.wanted != pages && entry.state == ServerState::Live {
            entry.wanted = pages;
            entry.control_due = 0;
        }
    }

    /// A server says how many pages it has reserved.
    pub(super) fn reserved(&mut self, now: u64, server: ServerIndex, header: &Header) {
        self.received_from(now, server);
        let entry = self.servers.get_mut(server);
        if header.request.get() != entry.reserving {
            self.counters.stale_answers += 1;
            return;
        }
        entry.reserved = header.block.get().min(entry.wanted);
        if entry.reserved < entry.wanted {
            // It may have no more than that: others have to have it.
            entry.granted = entry.reserved;
            entry.wanted = entry.reserved;
        }
        if let ClientState::Attaching { .. } = self.state {
            self.tick_sessions(now);
        }
    }
}

/// Parts of `need` that are no larger than rooms, and as equal as these allow. Their sum is enough.
fn shares(rooms: &[u64; MAX_SERVERS], need: u64) -> [u64; MAX_SERVERS] {
    let mut shares = [0; MAX_SERVERS];
    let mut left = need;
    // Each round gives all that is left, or fills a server.
    for _ in 0..=MAX_SERVERS {
        let open = (0..MAX_SERVERS)
            .filter(|it| shares[*it] < rooms[*it])
            .count() as u64;
        if open == 0 || left == 0 {
            break;
        }
        let each = left.div_ceil(open);
        for (share, room) in shares.iter_mut().zip(rooms) {
            let more = each.min(left).min(room - *share);
            *share += more;
            left -= more;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// If there is enough room, shares are all that is needed, within rooms.
        #[test]
        fn shares_fit(rooms in prop::array::uniform16(0u64..1000), percent in 0u64..=100) {
            let need = rooms.iter().sum::<u64>() * percent / 100;
            let shares = shares(&rooms, need);
            prop_assert_eq!(shares.iter().sum::<u64>(), need);
            prop_assert!(shares.iter().zip(&rooms).all(|(share, room)| share <= room));
        }
    }

    #[test]
    fn shares_are_as_equal_as_rooms_allow() {
        let mut rooms = [0; MAX_SERVERS];
        rooms[..4].copy_from_slice(&[10, 100, 3, 100]);
        assert_eq!(shares(&rooms, 113)[..4], [10, 50, 3, 50]);
        assert_eq!(shares(&rooms, 8)[..4], [2, 2, 2, 2]);
        assert_eq!(shares(&rooms, 213)[..4], [10, 100, 3, 100]);
    }
}

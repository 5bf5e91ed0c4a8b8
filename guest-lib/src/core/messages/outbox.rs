//! Sends by destination: how many of them are at the NIC, and those that wait for a place there.
//!
//! ```text
//!   ┌────────────────────────────┬────────────────────────────────────────────┐
//!   │ Sends to any destination   │ only the first [`SHARE`] of a destination  │
//!   └────────────────────────────┴────────────────────────────────────────────┘
//!   0            [`PLACES_OF_ONE`]                                     [`PLACES`]
//! ```
//! A NIC runs so many Sends of a process and then reads no more of its commands. So the library
//! bounds what it gives to the NIC ([`PLACES`]), and keeps the others. One destination that
//! receives nothing takes [`PLACES_OF_ONE`] of the places at most. Each other destination has
//! [`SHARE`] of the others, which are enough for those of a cluster of 64 nodes.
//!
//! # Invariants
//! - Sends to one destination reach the NIC in the order of the calls.
//! - A Send waits only for Sends to its destination, unless more than [`OTHERS`] destinations receive
//!   nothing.
//! - A Send of a context needs no place, as there are places for all contexts beside these. It
//!   stands behind the Sends to its destination that wait.
//! - What waits is bounded: beyond a number of all, each destination has [`SHARE`].

use std::collections::{BTreeMap, VecDeque};

use qnic_abi::command::{CommandHeader, Descriptor, INLINE_CAPACITY};
use qnic_abi::context::CONTEXTS;
use qnic_abi::message::SENDS;

use crate::core::contexts::ContextName;

/// Sends without a context that are at the NIC at once. One fewer than it takes stays free, as it
/// reads no other command when it has that one.
pub(crate) const PLACES: usize = SENDS as usize - 1 - CONTEXTS;

/// Sends to a destination for which there is a place, and room, whatever others have.
pub(crate) const SHARE: usize = 16;

/// Destinations that have such a share beside one that receives nothing.
pub(crate) const OTHERS: usize = 62;

/// Sends to one destination that are at the NIC at once, while no other has any there.
pub(crate) const PLACES_OF_ONE: usize = PLACES - OTHERS * SHARE;

/// Sends that wait in the library, unless the program sets another bound.
pub(crate) const HELD: usize = 16_384;

/// Destinations from which on those are looked for to which nothing is under way.
const MANY: usize = 64;

/// A Send that has no command yet.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) descriptor: Descriptor,
    pub(super) payload: [u8; INLINE_CAPACITY],
    /// It is that of a context, which is filled.
    pub(super) context: Option<ContextName>,
}

/// Names a destination of an [`Outbox`] to which something is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u32);

/// Node and port.
type Name = (u16, u16);

/// What is under way to a process.
#[derive(Debug, Default)]
struct Destination {
    name: Name,
    at_nic: usize,
    held: VecDeque<Held>,
}

/// Sends of an endpoint, by destination.
#[derive(Debug)]
pub(super) struct Outbox {
    by_name: BTreeMap<Name, Place>,
    destinations: Vec<Destination>,
    /// Those of no name.
    free: Vec<Place>,
    /// The destination of the last Send.
    last: Option<(Name, Place)>,
    /// Destinations were in use when all were looked through.
    used: usize,
    at_nic: usize,
    held: usize,
    /// Destinations for which Sends are held, the one whose turn it is first.
    turns: VecDeque<Place>,
    /// One of them may have got a place.
    changed: bool,
    /// Sends that are held at most.
    most: usize,
}

impl Default for Outbox {
    fn default() -> Self {
        Outbox {
            by_name: BTreeMap::new(),
            destinations: Vec::new(),
            free: Vec::new(),
            last: None,
            used: 0,
            at_nic: 0,
            held: 0,
            turns: VecDeque::new(),
            changed: false,
            most: HELD,
        }
    }
}

impl Outbox {
    /// Bounds the Sends that are held.
    pub(super) fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// The destination that a command names.
    #[inline]
    pub(super) fn of(&mut self, header: &CommandHeader) -> Place {
        let name = (header.remote_node.get(), header.remote_port.get());
        match self.last {
            Some((last, place)) if last == name => place,
            _ => self.find(name),
        }
    }

    fn find(&mut self, name: Name) -> Place {
        let place = match self.by_name.get(&name) {
            Some(place) => *place,
            None => self.add(name),
        };
        self.last = Some((name, place));
        place
    }

    fn add(&mut self, name: Name) -> Place {
        if self.by_name.len() >= MANY.max(2 * self.used) {
            self.forget_idle();
        }
        let fresh = Place(self.destinations.len() as u32);
        let place = self.free.pop().unwrap_or(fresh);
        if place == fresh {
            self.destinations.push(Destination::default());
        }
        self.destination(place).name = name;
        self.by_name.insert(name, place);
        place
    }

    /// Forgets destinations to which nothing is under way.
    fn forget_idle(&mut self) {
        let destinations = &self.destinations;
        let free = &mut self.free;
        self.by_name.retain(|_, place| {
            let destination = &destinations[place.0 as usize];
            let idle = destination.at_nic == 0 && destination.held.is_empty();
            free.extend(idle.then_some(*place));
            !idle
        });
        self.used = self.by_name.len();
        self.last = None;
    }

    fn destination(&mut self, place: Place) -> &mut Destination {
        &mut self.destinations[place.0 as usize]
    }

    /// Returns true if there is a place at the NIC for another Send to a destination.
    #[inline]
    fn has_place(&self, place: Place) -> bool {
        self.at_nic < PLACES_OF_ONE || self.has_share(place)
    }

    #[cold]
    fn has_share(&self, place: Place) -> bool {
        self.at_nic < PLACES && self.destinations[place.0 as usize].at_nic < SHARE
    }

    /// Returns true if Sends to a destination wait, so that another one stands behind them.
    #[inline]
    pub(super) fn waits(&self, place: Place) -> bool {
        self.held > 0 && !self.destinations[place.0 as usize].held.is_empty()
    }

    /// Returns true if another Send to a destination may be posted at once.
    #[inline]
    pub(super) fn may_post(&self, place: Place) -> bool {
        !self.waits(place) && self.has_place(place)
    }

    /// A Send without a context was posted.
    #[inline]
    pub(super) fn posted(&mut self, place: Place) {
        self.at_nic += 1;
        self.destination(place).at_nic += 1;
    }

    /// A Send that was posted has ended.
    #[inline]
    pub(super) fn ended(&mut self, place: Place) {
        self.at_nic -= 1;
        self.destination(place).at_nic -= 1;
        self.changed = true;
    }

    /// Returns true if another Send to a destination may be held.
    pub(super) fn may_hold(&self, place: Place) -> bool {
        self.held < self.most || self.destinations[place.0 as usize].held.len() < SHARE
    }

    /// Holds a Send until there is a place for it.
    pub(super) fn hold(&mut self, place: Place, send: Held) {
        let held = &mut self.destination(place).held;
        held.push_back(send);
        if held.len() == 1 {
            self.turns.push_back(place);
        }
        self.held += 1;
        self.changed = true;
    }

    /// Returns true if a Send that is held may be posted.
    #[inline]
    pub(super) fn has_turns(&self) -> bool {
        self.changed && self.held > 0
    }

    /// The Send that is posted next, if there is a place for one.
    pub(super) fn next(&mut self) -> Option<&Held> {
        if !self.has_turns() {
            return None;
        }
        for _ in 0..self.turns.len() {
            let place = *self.turns.front()?;
            let first = self.destinations[place.0 as usize].held.front();
            let by_context = first.is_some_and(|send| send.context.is_some());
            if by_context || self.has_place(place) {
                return self.destinations[place.0 as usize].held.front();
            }
            self.turns.rotate_left(1);
        }
        self.changed = false;
        None
    }

    /// The Send that [`Outbox::next`] has returned was posted. The next turn is another
    /// destination's.
    pub(super) fn next_posted(&mut self) {
        let Some(place) = self.turns.pop_front() else {
            return;
        };
        self.held -= 1;
        let destination = self.destination(place);
        let by_context = destination
            .held
            .pop_front()
            .is_some_and(|send| send.context.is_some());
        if !destination.held.is_empty() {
            self.turns.push_back(place);
        }
        if !by_context {
            self.posted(place);
        }
    }

    /// Forgets all Sends.
    pub(super) fn clear(&mut self) {
        let most = self.most;
        *self = Outbox {
            most,
            ..Outbox::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use qnic_abi::command::CommandBody;
    use qnic_abi::message::SendCommand;

    use super::*;

    fn send(node: u16, number: u64, by_context: bool) -> Held {
        let mut descriptor = SendCommand::command().descriptor();
        descriptor.header.remote_node = node.into();
        let mut payload = [0; INLINE_CAPACITY];
        payload[..8].copy_from_slice(&number.to_le_bytes());
        let context = by_context.then_some(ContextName {
            direction: crate::core::contexts::Direction::Send,
            number: 0,
        });
        Held {
            descriptor,
            payload,
            context,
        }
    }

    /// Sends, or holds the Send. Returns true if it was posted.
    fn post(outbox: &mut Outbox, node: u16, number: u64) -> bool {
        let held = send(node, number, false);
        let place = outbox.of(&held.descriptor.header);
        let posts = outbox.may_post(place);
        match posts {
            true => outbox.posted(place),
            false => outbox.hold(place, held),
        }
        posts
    }

    /// Posts what is held as far as there are places. Returns destinations and numbers.
    fn go_on(outbox: &mut Outbox) -> Vec<(u16, u64)> {
        let mut posted = Vec::new();
        while let Some(held) = outbox.next() {
            let number = u64::from_le_bytes(held.payload[..8].try_into().unwrap());
            posted.push((held.descriptor.header.remote_node.get(), number));
            outbox.next_posted();
        }
        posted
    }

    fn end(outbox: &mut Outbox, node: u16) {
        let place = outbox.of(&send(node, 0, false).descriptor.header);
        outbox.ended(place);
    }

    #[test]
    fn one_destination_leaves_the_others_their_shares() {
        let mut outbox = Outbox::default();
        let posted = (0..2000).filter(|number| post(&mut outbox, 1, *number));
        assert_eq!(posted.count(), PLACES_OF_ONE);
        assert_eq!(go_on(&mut outbox), []);
        for node in 2..2 + OTHERS as u16 {
            let posted = (0..20).filter(|number| post(&mut outbox, node, *number));
            assert_eq!(posted.count(), SHARE, "{node}");
        }
        // Places are free again for the first destination only below its bound.
        end(&mut outbox, 1);
        assert_eq!(go_on(&mut outbox), []);
        end(&mut outbox, 2);
        assert_eq!(go_on(&mut outbox), [(2, 16)]);
    }

    #[test]
    fn sends_to_a_destination_keep_their_order_and_destinations_have_turns() {
        let mut outbox = Outbox::default();
        let mut number = 0;
        let mut fill = |outbox: &mut Outbox, node| {
            while post(outbox, node, number) {
                number += 1;
            }
            number += 1;
        };
        fill(&mut outbox, 1);
        fill(&mut outbox, 2);
        let first = number;
        for number in first..first + 4 {
            assert!(!post(&mut outbox, 1 + number as u16 % 2, number));
        }
        for _ in 0..2 * SHARE + 8 {
            end(&mut outbox, 1);
        }
        let posted = go_on(&mut outbox);
        assert_eq!(posted.len(), 6);
        for node in [1, 2] {
            let of_node = posted.iter().filter(|it| it.0 == node);
            assert!(of_node.map(|it| it.1).is_sorted());
        }
        assert!(posted.windows(2).all(|pair| pair[0].0 != pair[1].0));
    }

    /// Also when there is a place for it, and the one that waits has not had its turn.
    #[test]
    fn a_send_stands_behind_those_that_wait() {
        let mut outbox = Outbox::default();
        while post(&mut outbox, 1, 0) {}
        end(&mut outbox, 1);
        assert!(!post(&mut outbox, 1, 1));
        assert_eq!(go_on(&mut outbox), [(1, 0)]);
        end(&mut outbox, 1);
        assert_eq!(go_on(&mut outbox), [(1, 1)]);
    }

    #[test]
    fn a_context_needs_no_place_and_no_overtaking() {
        let mut outbox = Outbox::default();
        while post(&mut outbox, 1, 0) {}
        let place = outbox.of(&send(1, 0, false).descriptor.header);
        outbox.hold(place, send(1, 7, true));
        let other = outbox.of(&send(2, 0, false).descriptor.header);
        outbox.hold(other, send(2, 8, true));
        assert_eq!(go_on(&mut outbox), [(2, 8)]);
        end(&mut outbox, 1);
        assert_eq!(go_on(&mut outbox), [(1, 0), (1, 7)]);
    }

    #[test]
    fn what_is_held_is_bounded_and_each_destination_has_its_share() {
        let mut outbox = Outbox::default();
        outbox.set_most(40);
        while post(&mut outbox, 1, 0) {}
        let place = outbox.of(&send(1, 0, false).descriptor.header);
        while outbox.may_hold(place) {
            outbox.hold(place, send(1, 0, false));
        }
        assert_eq!(outbox.held, 40);
        let other = outbox.of(&send(2, 0, false).descriptor.header);
        for _ in 0..SHARE {
            assert!(outbox.may_hold(other));
            outbox.hold(other, send(2, 0, false));
        }
        assert!(!outbox.may_hold(other));
    }

    #[test]
    fn idle_destinations_are_forgotten() {
        let mut outbox = Outbox::default();
        for round in 0..10 {
            for node in 0..1000 {
                assert!(post(&mut outbox, node, round));
                end(&mut outbox, node);
            }
        }
        assert!(outbox.destinations.len() <= 2 * MANY);
        for node in 0..400 {
            post(&mut outbox, node, 0);
        }
        for node in 0..400 {
            end(&mut outbox, node);
        }
        assert_eq!(outbox.at_nic, 0);
    }
}

//! Programs of the host on the Ethernet of this process: `forward`, a tap.
//!
//! ```text
//!   program ─ socket ─► host thread ──[Fabric::receive_from_host]──► ports of this process
//!           ◄─ socket ─ host thread ◄─ [HostPort] ◄── [Hosts] ◄───── frames to its address, and to groups
//! ```
//! A program has the address of its number, from when it joins until it leaves. The links of the nodes
//! do not matter: a node that is cut off can be reached.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use qnic_config::{MacAddress, MAX_HOST_PORTS};

use super::{EthernetFrame, Inbox};

/// The programs that have joined.
#[derive(Debug, Default)]
pub struct Hosts(Mutex<Vec<Option<Arc<Inbox>>>>);

/// The place of one program. It leaves when this is dropped.
#[derive(Debug)]
pub struct HostPort {
    hosts: Arc<Hosts>,
    number: u8,
    inbox: Arc<Inbox>,
}

impl Hosts {
    /// Lets a program join. `None`: there are [`MAX_HOST_PORTS`] already.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn join(self: &Arc<Self>) -> std::io::Result<Option<HostPort>> {
        let inbox = Arc::new(Inbox::new()?);
        let mut places = self.lock();
        let free = places.iter().position(Option::is_none);
        let place = free.unwrap_or(places.len());
        let Some(number) = u8::try_from(place).ok().filter(|it| *it < MAX_HOST_PORTS) else {
            return Ok(None);
        };
        let occupied = Some(inbox.clone());
        match free {
            Some(place) => places[place] = occupied,
            None => places.push(occupied),
        }
        drop(places);
        Ok(Some(HostPort {
            hosts: self.clone(),
            number,
            inbox,
        }))
    }

    /// Gives a frame to the program with this number. Returns false if there is none, or it has no room.
    pub(crate) fn put(&self, number: u8, frame: &EthernetFrame) -> bool {
        let places = self.lock();
        let inbox = places.get(usize::from(number)).and_then(Option::as_ref);
        inbox.is_some_and(|inbox| inbox.put(frame.clone()))
    }

    /// Gives a frame to all of them.
    pub(crate) fn put_all(&self, frame: &EthernetFrame) {
        for inbox in self.lock().iter().flatten() {
            // One without room loses it.
            let _ = inbox.put(frame.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Arc<Inbox>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostPort {
    /// Its address.
    pub fn mac(&self) -> MacAddress {
        MacAddress::of_host(self.number)
    }

    /// What has come for it.
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Returns true if it may send this: no other has the address of its source.
    pub fn may_send(&self, frame: &EthernetFrame) -> bool {
        frame.source() == self.mac()
    }
}

impl Drop for HostPort {
    fn drop(&mut self) {
        self.hosts.lock()[usize::from(self.number)] = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::plain;
    use super::*;

    #[test]
    fn programs_have_addresses_while_they_are_there() {
        let hosts = Arc::new(Hosts::default());
        let mut joined: Vec<_> = (0..MAX_HOST_PORTS)
            .map(|_| hosts.join().unwrap().unwrap())
            .collect();
        assert!(hosts.join().unwrap().is_none());
        assert_eq!(joined[5].mac(), MacAddress::of_host(5));
        assert_eq!(joined[5].mac().host_number(), Some(5));
        assert_eq!(MacAddress([0x52, 0x54, 0, 0x71, 0, 5]).host_number(), None);
        let frame = plain(1, 2, b"frame");
        assert!(hosts.put(5, &frame));
        assert!(!hosts.put(MAX_HOST_PORTS, &frame));
        assert_eq!(joined[5].inbox().take(), Some(frame.clone()));
        assert!(!joined[5].may_send(&frame));
        drop(joined.remove(5));
        assert!(!hosts.put(5, &frame));
        hosts.put_all(&frame);
        assert!(joined.iter().all(|host| host.inbox().take().is_some()));
        assert_eq!(hosts.join().unwrap().unwrap().number, 5);
    }
}

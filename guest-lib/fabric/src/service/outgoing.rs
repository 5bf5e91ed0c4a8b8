//! Messages of a service on their way, and what is left of those that nothing waits for.

use qnic::message::{Destination, Request};

use super::Process;
use crate::address::Peer;
use crate::arena::Bounce;
use crate::errno::{Errno, Result};

/// Longest message that travels in its command.
const INLINE_MAX: usize = 256;

/// A message that is being sent.
pub(super) struct Sent<'a> {
    // In front: dropped before its memory is used again.
    request: Request<'a>,
    bounce: Option<Bounce>,
}

impl<'a> Sent<'a> {
    /// Sends a head and bytes behind it.
    ///
    /// # Errors
    /// [`crate::errno::AGAIN`]: there is no room for it now. Those of the library.
    pub(super) fn post(
        own: &'a Process,
        to: &Destination,
        head: &[u8],
        bytes: &[u8],
    ) -> Result<Self> {
        let length = head.len() + bytes.len();
        let mut copy = [0; INLINE_MAX];
        if length <= own.endpoint.inline_max().min(INLINE_MAX) {
            let copy = &mut copy[..length];
            copy[..head.len()].copy_from_slice(head);
            copy[head.len()..].copy_from_slice(bytes);
            let request = own.endpoint.send(to, &*copy).post()?;
            return Ok(Sent {
                request,
                bounce: None,
            });
        }
        let bounce = own.arena.take(&own.endpoint, length)?;
        let fill = own.arena.write(&bounce, 0, head);
        let fill = fill.and_then(|()| own.arena.write(&bounce, head.len(), bytes));
        let posted = fill.and_then(|()| {
            let part = own.arena.part(&bounce, length)?;
            Ok(own.endpoint.send(to, part).post()?)
        });
        match posted {
            Ok(request) => Ok(Sent {
                request,
                bounce: Some(bounce),
            }),
            Err(error) => {
                own.arena.give_back(bounce);
                Err(error)
            }
        }
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// It has failed.
    pub(super) fn test(&mut self) -> Result<bool> {
        Ok(self.request.test()?.is_some())
    }
}

/// Messages and receives whose end nothing waits for, but their memory.
#[derive(Default)]
pub(super) struct Leaving<'a> {
    list: Vec<(Peer, Sent<'a>)>,
    /// Bytes of their bounce memory.
    bytes: usize,
}

impl<'a> Leaving<'a> {
    /// Leaves a message to a peer.
    pub(super) fn send(&mut self, peer: Peer, sent: Sent<'a>) {
        self.bytes += sent.bytes();
        self.list.push((peer, sent));
    }

    /// Takes a receive back.
    pub(super) fn receive(&mut self, peer: Peer, mut request: Request<'a>, room: Bounce) {
        // Without a NIC it has ended.
        let _ = request.cancel();
        let bounce = Some(room);
        self.send(peer, Sent { request, bounce });
    }

    /// Bytes of bounce memory that all of them have.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many there are of a peer.
    pub(super) fn count(&self, peer: Peer) -> usize {
        self.list.iter().filter(|(it, _)| *it == peer).count()
    }

    /// Gives the memory of those back that have ended.
    pub(super) fn tend(&mut self, own: &Process) {
        let has_ended = |(_, sent): &mut (Peer, Sent<'a>)| !matches!(sent.test(), Ok(false));
        let mut index = 0;
        while let Some(item) = self.list.get_mut(index) {
            match has_ended(item) {
                false => index += 1,
                true => {
                    let (_, sent) = self.list.swap_remove(index);
                    self.bytes -= sent.bytes();
                    sent.finish(own);
                }
            }
        }
    }
}

impl Sent<'_> {
    fn bytes(&self) -> usize {
        self.bounce.as_ref().map_or(0, Bounce::len)
    }

    /// Gives the memory of one that has ended back.
    pub(super) fn finish(self, own: &Process) {
        let Sent { request, bounce } = self;
        drop(request);
        if let Some(bounce) = bounce {
            own.arena.give_back(bounce);
        }
    }
}

/// The peer does not serve memory, or not any more.
pub(super) const GONE: Errno = Errno(libc::ECONNABORTED);

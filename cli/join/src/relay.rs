//! What joins a client's connection to one of the guest.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use rustix::event::PollFlags;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{self, State};

/// A client and its connection to the guest.
pub(crate) struct Relay {
    pub(crate) client: TcpStream,
    pub(crate) guest: SocketHandle,
    /// The guest has accepted.
    was_open: bool,
    /// The client sends no more.
    client_ended: bool,
    /// The guest sends no more, and the client has been told.
    guest_ended: bool,
    /// The client has reset its connection.
    is_broken: bool,
}

/// How a relay has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Both ends have closed, or the client has reset the connection.
    Closed,
    /// The guest has reset the connection, or was silent for too long.
    Lost,
    /// The guest has not accepted.
    Refused,
}

impl Relay {
    pub(crate) fn new(client: TcpStream, guest: SocketHandle) -> io::Result<Self> {
        client.set_nonblocking(true)?;
        client.set_nodelay(true)?;
        Ok(Relay {
            client,
            guest,
            was_open: false,
            client_ended: false,
            guest_ended: false,
            is_broken: false,
        })
    }

    /// Moves what there is, as far as there is room. Returns how it has ended, if it has.
    pub(crate) fn turn(&mut self, guest: &mut tcp::Socket<'_>) -> Option<End> {
        self.was_open |= guest.may_send();
        if self.is_broken || self.pump(guest).is_err() {
            // The client has gone: the guest's connection is reset.
            guest.abort();
            return Some(End::Closed);
        }
        match guest.state() {
            State::Closed | State::TimeWait if self.was_open && self.guest_ended => {
                Some(End::Closed)
            }
            State::Closed if self.was_open => {
                let _ = self.client.shutdown(Shutdown::Both);
                Some(End::Lost)
            }
            State::Closed => Some(End::Refused),
            _ => None,
        }
    }

    fn pump(&mut self, guest: &mut tcp::Socket<'_>) -> io::Result<()> {
        while !self.client_ended && guest.can_send() {
            let client = &mut self.client;
            let read = guest.send(|room| moved(client.read(room)));
            match read.unwrap_or(Ok(None))? {
                None => break,
                Some(0) => {
                    self.client_ended = true;
                    guest.close();
                }
                Some(_) => {}
            }
        }
        while guest.can_recv() {
            let client = &mut self.client;
            let written = guest.recv(|bytes| moved(client.write(bytes)));
            if written.unwrap_or(Ok(None))?.is_none() {
                break;
            }
        }
        let has_all = self.was_open && !guest.can_recv() && !guest.may_recv();
        if has_all && guest.state() != State::Closed && !self.guest_ended {
            self.guest_ended = true;
            self.client.shutdown(Shutdown::Write)?;
        }
        Ok(())
    }

    /// The client has reset its connection.
    pub(crate) fn client_has_gone(&mut self) {
        self.is_broken = true;
    }

    /// What to wait for at the client's end, which tells of a reset as well; `None`: both directions
    /// have ended.
    pub(crate) fn events(&self, guest: &tcp::Socket<'_>) -> Option<PollFlags> {
        if self.client_ended && self.guest_ended {
            return None;
        }
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, !self.client_ended && guest.can_send());
        events.set(PollFlags::OUT, guest.can_recv());
        Some(events)
    }
}

/// The bytes that were moved, for the buffer and for the caller; `None`: it would block.
fn moved(result: io::Result<usize>) -> (usize, io::Result<Option<usize>>) {
    match result {
        Ok(length) => (length, Ok(Some(length))),
        Err(error) if error.kind() == ErrorKind::WouldBlock => (0, Ok(None)),
        Err(error) if error.kind() == ErrorKind::Interrupted => (0, Ok(None)),
        Err(error) => (0, Err(error)),
    }
}

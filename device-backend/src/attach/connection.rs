//! The thread of one NIC that accepts front ends and handles their messages, one front
//! end at a time.
//!
//! It ends when the process stops: an eventfd wakes it from waiting, and the
//! socket that it may be reading from is shut down.

use std::io::{ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use vhost::vhost_user::{BackendReqHandler, Error};

use super::front_end::FrontEnd;
use super::Attachment;
use crate::stop::Stop;
use crate::throttle::throttled;

/// Size of a message header, and the number of SET_BACKEND_REQ_FD in it.
const HEADER_BYTES: usize = 12;
const SET_BACKEND_REQ_FD: u32 = 21;

/// Serves the front ends of a NIC until `stop` is raised.
pub(crate) fn serve(nic: &Arc<Attachment>, listener: &UnixListener, stop: &Stop) {
    let mut epoch = 0;
    while let Some(stream) = stop.accept(listener) {
        throttled!(nic, info, pid = peer(&stream), "front end connected");
        let front_end = Arc::new(Mutex::new(FrontEnd::new(nic.clone(), epoch)));
        let connection = Connection {
            nic,
            front_end: &front_end,
            listener,
            stop,
        };
        if let Err(error) = connection.run(stream) {
            throttled!(nic, warn, "the connection to the front end failed: {error}");
        }
        stop.unwatch();
        let mut front_end = lock(&front_end);
        front_end.disconnect();
        epoch = front_end.epoch;
        throttled!(nic, info, "front end gone");
    }
}

struct Connection<'a> {
    nic: &'a Attachment,
    front_end: &'a Arc<Mutex<FrontEnd>>,
    listener: &'a UnixListener,
    stop: &'a Stop,
}

impl Connection<'_> {
    /// Handles messages until the front end is gone, sends a malformed message, or the
    /// process stops.
    fn run(mut self, stream: UnixStream) -> Result<(), Error> {
        let connected = self.nic.ask(|port, _| port.connected = true);
        if connected.is_err() {
            return Ok(());
        }
        match self.stop.watch(&stream) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            watched => watched.map_err(Error::SocketError)?,
        }
        let watched = stream.try_clone().map_err(Error::SocketError)?;
        let mut protocol = BackendReqHandler::from_stream(stream, self.front_end.clone());
        loop {
            let sources = [watched.as_fd(), self.listener.as_fd()];
            let ready = self.stop.wait(sources, None);
            let Some([stream, listener]) = ready.map_err(Error::SocketError)? else {
                return Ok(());
            };
            if stream {
                self.keep_channel(&watched);
                match protocol.handle_request() {
                    Ok(()) => {}
                    // The front end is gone, or the engine has stopped.
                    Err(Error::Disconnected | Error::BackendInternalError) => return Ok(()),
                    Err(_) if std::mem::take(&mut lock(self.front_end).refused) => {}
                    Err(error) => return Err(error),
                }
            } else if listener {
                self.turn_away();
            }
        }
    }

    /// Keeps a descriptor of the channel if the next message brings it: a front end that
    /// never responds there must not delay the end of the connection, and `vhost` gives
    /// no access to the channel once it has it.
    fn keep_channel(&self, stream: &UnixStream) {
        let mut front_end = lock(self.front_end);
        if front_end.mapper.is_none() {
            if let Some(channel) = peek_channel(stream) {
                front_end.next_channel = Some(channel);
            }
        }
    }

    /// A NIC has one front end at a time.
    fn turn_away(&mut self) {
        if let Ok((other, _)) = self.listener.accept() {
            throttled!(
                self.nic,
                warn,
                pid = peer(&other),
                "turned a second front end away: this NIC serves one at a time"
            );
        }
    }
}

fn lock(front_end: &Mutex<FrontEnd>) -> MutexGuard<'_, FrontEnd> {
    front_end.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The descriptor that the next message brings, if it is SET_BACKEND_REQ_FD. The
/// message is not consumed.
fn peek_channel(stream: &UnixStream) -> Option<UnixStream> {
    let mut header = [0; HEADER_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut header)];
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::net::recvmsg(stream, &mut parts, &mut control, flags).ok()?;
    let mut descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<OwnedFd>>(),
        _ => Vec::new(),
    });
    let descriptor = descriptors.next()?;
    let request = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
    (received.bytes == HEADER_BYTES && request == SET_BACKEND_REQ_FD)
        .then(|| UnixStream::from(descriptor))
}

fn peer(stream: &UnixStream) -> i32 {
    rustix::net::sockopt::socket_peercred(stream).map_or(0, |peer| peer.pid.as_raw_nonzero().get())
}

//! The thread of one NIC that accepts front ends and handles their messages, one front
//! end at a time.
//!
//! It ends when the process stops: an eventfd wakes it from waiting, and the
//! socket that it may be reading from is shut down.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vhost::vhost_user::{BackendReqHandler, Error};

use super::front_end::FrontEnd;
use super::preview::Preview;
use super::Attachment;
use crate::stop::Stop;
use crate::throttle::throttled;

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
                if self.preview(&watched).map_err(Error::SocketError)? {
                    continue;
                }
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

    /// Looks at the next message before `vhost` does. Returns true if it is handled already.
    ///
    /// Of the channel a descriptor is kept: a front end that never responds there must not
    /// delay the end of the connection, and `vhost` gives no access to the channel once it
    /// has it. A SET_VRING_ADDR that is not aligned is QEMU passing on what its guest has
    /// chosen: the queue cannot start, and the connection goes on.
    fn preview(&self, stream: &UnixStream) -> std::io::Result<bool> {
        match Preview::of(stream) {
            None => Ok(false),
            Some(Preview::Channel(channel)) => {
                let mut front_end = lock(self.front_end);
                if front_end.mapper.is_none() {
                    front_end.next_channel = Some(channel);
                }
                Ok(false)
            }
            Some(Preview::Misaligned(message)) => {
                let mut front_end = lock(self.front_end);
                let noted = front_end.misaligned_rings(message.index, message.rings);
                let acknowledges = front_end.acknowledges();
                // A front end that does not read holds up its own connection, and no lock.
                drop(front_end);
                if noted {
                    message.take(stream, acknowledges)?;
                }
                Ok(noted)
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

fn peer(stream: &UnixStream) -> i32 {
    rustix::net::sockopt::socket_peercred(stream).map_or(0, |peer| peer.pid.as_raw_nonzero().get())
}

//! The calls of the program.

use qnic_abi::stream::{Reason, HEADER_BYTES, MIN_FRAME_BYTES};
use qnic_shared::timing::Time;

use super::table::{Alarm, Endpoint, Parts};
use crate::stream_protocol::address::{Address, ConnectionId, Error, Failure};
use crate::stream_protocol::buffer::{ReceivedFrame, SendFrame};
use crate::stream_protocol::connection::{Connection, Stage};

impl<S: SendFrame, R: ReceivedFrame> Endpoint<S, R> {
    /// Begins a connection. `frame_bytes`: the longest frame of the route, the header included; 0 if only
    /// the configuration limits it.
    ///
    /// # Errors
    /// [`Error::Full`]
    pub fn connect(
        &mut self,
        now: Time,
        to: Address,
        frame_bytes: usize,
    ) -> Result<ConnectionId, Error> {
        let most = self.config.frame_bytes;
        let bytes = match frame_bytes {
            0 => most,
            bytes => bytes.clamp(MIN_FRAME_BYTES, most),
        };
        let id = self.insert(now, to, 0, Stage::Opening).ok_or(Error::Full)?;
        if let Some(connection) = self.get_mut(id) {
            connection.set_frame_bytes(bytes);
            connection.is_accepted = true;
        }
        self.begin(now, id);
        Ok(id)
    }

    /// A connection that was inserted grants its window, and sends its first frame.
    pub(crate) fn begin(&mut self, now: Time, id: ConnectionId) {
        let Some(parts) = self.parts(id) else {
            return;
        };
        let Parts {
            connection,
            receive,
            receive_share,
            config,
            ..
        } = parts;
        connection.receiver.grant(receive, receive_share);
        let at = now.after(connection.timeout(config));
        self.arm(id, at, Alarm::Retransmit(id), |timers| {
            &mut timers.retransmit
        });
        self.schedule(id);
    }

    /// Lets peers connect, or stops it: waiting connections are then refused.
    pub fn listen(&mut self, is_listening: bool) {
        self.is_listening = is_listening;
        if !is_listening {
            while let Some(id) = self.pending.first_key_value().map(|(_, id)| *id) {
                self.reset(id, Reason::Refused);
            }
        }
    }

    /// Accepts a connection that a peer has opened.
    pub fn accept(&mut self) -> Option<(ConnectionId, Address)> {
        let id = self.incoming.pop_front()?;
        let connection = self.get_mut(id)?;
        connection.is_accepted = true;
        let (peer, theirs) = (connection.peer, connection.theirs);
        self.pending.remove(&(peer, theirs));
        Some((id, peer))
    }

    /// Returns true if the peer has confirmed the connection.
    ///
    /// # Errors
    /// [`Error::NoConnection`], [`Error::Failed`]
    pub fn is_open(&self, id: ConnectionId) -> Result<bool, Error> {
        match self.of_program(id)?.stage {
            Stage::Failed(failure) => Err(failure.into()),
            stage => Ok(stage != Stage::Opening),
        }
    }

    /// Takes bytes to be sent; returns their number, at least one. Frames come from `allocate`, which
    /// may have none. Call [`Endpoint::poll_transmit`] next.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] without any room, [`Error::Ended`] after [`Endpoint::finish`], …
    pub fn write(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        mut allocate: impl FnMut() -> Option<S>,
    ) -> Result<usize, Error> {
        self.of_program(id)?;
        let Parts {
            connection,
            send,
            send_share,
            ..
        } = self.parts(id).ok_or(Error::NoConnection)?;
        match connection.stage {
            Stage::Failed(failure) => return Err(failure.into()),
            _ if connection.sender.is_ended() => return Err(Error::Ended),
            Stage::Opening | Stage::Accepting => return Err(Error::WouldBlock),
            Stage::Open | Stage::Lingering => {}
        }
        let held = &mut connection.send_held;
        let payload = connection.payload;
        let taken = connection.sender.write(bytes, payload, |count| {
            *held = send.change(*held, (count + 1).min(send_share));
            (*held > count).then(&mut allocate).flatten()
        });
        connection.settle_budget(send);
        if taken == 0 && !bytes.is_empty() {
            return Err(Error::WouldBlock);
        }
        self.schedule(id);
        Ok(taken)
    }

    /// Copies out bytes that have come; returns their number, 0 if the stream has ended.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if none have come, …
    pub fn read(&mut self, id: ConnectionId, bytes: &mut [u8]) -> Result<usize, Error> {
        self.of_program(id)?;
        let Parts {
            connection,
            receive,
            receive_share,
            ..
        } = self.parts(id).ok_or(Error::NoConnection)?;
        let count = connection.receiver.read(bytes);
        match connection.stage {
            Stage::Failed(_) => connection.receiver.stop(receive),
            _ => connection.receiver.grant(receive, receive_share),
        }
        let outcome = match connection.stage {
            _ if count > 0 || bytes.is_empty() || connection.receiver.is_finished() => Ok(count),
            Stage::Failed(failure) => Err(failure.into()),
            _ => Err(Error::WouldBlock),
        };
        self.schedule(id);
        outcome
    }

    /// Ends this side's stream: the peer reads what was written, and then the end.
    ///
    /// # Errors
    /// [`Error::NoConnection`], [`Error::WouldBlock`] before the connection is open,
    /// [`Error::Failed`]
    pub fn finish(&mut self, id: ConnectionId) -> Result<(), Error> {
        match self.of_program(id)?.stage {
            Stage::Failed(failure) => return Err(failure.into()),
            Stage::Opening | Stage::Accepting => return Err(Error::WouldBlock),
            Stage::Open | Stage::Lingering => {}
        }
        if let Some(connection) = self.get_mut(id) {
            connection.sender.end();
        }
        self.schedule(id);
        Ok(())
    }

    /// Returns true if the peer has all written bytes, the end included.
    ///
    /// # Errors
    /// [`Error::NoConnection`], [`Error::Failed`]
    pub fn is_delivered(&self, id: ConnectionId) -> Result<bool, Error> {
        let connection = self.of_program(id)?;
        match connection.stage {
            Stage::Failed(failure) => Err(failure.into()),
            _ => Ok(connection.sender.len() == 0),
        }
    }

    /// Closes a connection. Written bytes are still sent, and the stream ended. If bytes
    /// have come that were not read, or come later, the peer's stream is reset.
    pub fn close(&mut self, now: Time, id: ConnectionId) {
        if self.of_program(id).is_err() {
            return;
        }
        let Some(connection) = self.get_mut(id) else {
            return;
        };
        connection.is_accepted = false;
        connection.left_at = Some(now);
        match connection.stage {
            Stage::Failed(_) => self.remove(id),
            Stage::Opening => self.remove(id),
            _ if connection.receiver.is_readable() => self.reset(id, Reason::Aborted),
            _ => {
                connection.sender.end();
                self.schedule(id);
                self.settle(id);
            }
        }
    }

    /// Gives a connection up: the peer is told, and nothing more is read.
    pub fn abort(&mut self, id: ConnectionId) {
        if self.of_program(id).is_ok() {
            self.reset(id, Reason::Aborted);
        }
    }

    /// Ends a connection with a Reset.
    pub(crate) fn reset(&mut self, id: ConnectionId, reason: Reason) {
        let Some(connection) = self.get_mut(id) else {
            return;
        };
        connection.is_accepted = false;
        if connection.theirs != 0 && !matches!(connection.stage, Stage::Failed(_)) {
            connection.reset_due = Some(reason);
        }
        let opened = (connection.peer, connection.theirs);
        if self.pending.get(&opened) == Some(&id) {
            self.pending.remove(&opened);
            self.incoming.retain(|other| *other != id);
        }
        match self.get(id).map(|connection| connection.stage) {
            Some(Stage::Failed(_)) => self.remove(id),
            _ => self.fail(id, Failure::Reset),
        }
    }

    /// The connection, if the program has it.
    fn of_program(&self, id: ConnectionId) -> Result<&Connection<S, R>, Error> {
        let connection = self.get(id).ok_or(Error::NoConnection)?;
        match connection.is_accepted {
            true => Ok(connection),
            false => Err(Error::NoConnection),
        }
    }

    /// Limits frames to so many bytes from now on, the header included, because the route carries
    /// no more.
    pub fn limit_frame_bytes(&mut self, id: ConnectionId, bytes: usize) {
        if let Some(connection) = self.get_mut(id) {
            let own = connection.payload + HEADER_BYTES;
            connection.set_frame_bytes(own.min(bytes.max(MIN_FRAME_BYTES)));
        }
    }

    /// Most bytes of data in a frame of the connection.
    ///
    /// # Errors
    /// [`Error::NoConnection`]
    pub fn payload(&self, id: ConnectionId) -> Result<usize, Error> {
        Ok(self.of_program(id)?.payload)
    }

    /// Smoothed round trip to the peer in nanoseconds; 0 before one was measured.
    ///
    /// # Errors
    /// [`Error::NoConnection`]
    pub fn round_trip(&self, id: ConnectionId) -> Result<u64, Error> {
        Ok(self.of_program(id)?.round_trip.smoothed())
    }
}

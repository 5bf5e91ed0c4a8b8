//! The socket, and the datagrams that wait to be sent on it.
//!
//! ```text
//!   Outlet(Priority) ─► batch ─┐
//!                              ├─► one system call each, the priority batch first
//!   Outlet(Data) ─────► batch ─┘
//! ```
//! A batch has datagrams of one length to one address; the last may be shorter. It leaves when
//! it is full, when a datagram comes that does not go with it, and at the end of a round. A
//! batch of bulk never leaves before the small datagrams that wait.

use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use qnic_nic::env::Channel;
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};

use super::peer::Output;

/// Bytes asked for in each direction of the socket; the system may grant less.
const SOCKET_BUFFER: usize = 4 << 20;

/// Most bytes in one call that sends; a limit of IP.
const MAX_BATCH: usize = 60_000;

/// A socket.
pub(super) struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    priority: Batch,
    data: Batch,
}

/// Datagrams that leave together.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    segment: usize,
    /// Bytes of complete datagrams.
    complete: usize,
    destination: Option<SocketAddr>,
}

/// Where the datagrams of a channel to one address go.
pub(super) struct Outlet<'a> {
    socket: &'a mut Socket,
    channel: Channel,
}

impl Output for Outlet<'_> {
    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.socket.batch(self.channel).bytes
    }

    fn finish(&mut self) {
        let (socket, channel) = (&mut *self.socket, self.channel);
        if !socket.batch(channel).takes_last() {
            socket.send(channel);
        }
        let segments = socket.state.max_gso_segments();
        if socket.batch(channel).complete_last(segments) {
            socket.send(channel);
        }
    }

    fn flush(&mut self) {
        self.socket.send(self.channel);
    }

    fn channel(&self) -> Channel {
        self.channel
    }
}

impl Batch {
    /// Returns true if the datagram that was appended can leave with those before it.
    fn takes_last(&self) -> bool {
        self.complete == 0 || self.bytes.len() - self.complete <= self.segment
    }

    /// Completes the datagram that was appended. Returns true if none can follow.
    fn complete_last(&mut self, most: usize) -> bool {
        let length = self.bytes.len() - self.complete;
        if self.complete == 0 {
            self.segment = length;
        }
        self.complete = self.bytes.len();
        let segments = self.complete / self.segment.max(1);
        let full = segments >= most || self.complete + self.segment > MAX_BATCH;
        length < self.segment || full
    }
}

impl Socket {
    pub(super) fn bind(address: SocketAddr) -> std::io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // As much as the system grants; less is only slower.
        let _ = state.set_send_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER);
        let _ = state.set_recv_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER);
        Ok(Socket {
            socket,
            state,
            priority: Batch::default(),
            data: Batch::default(),
        })
    }

    pub(super) fn address(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn batch(&mut self, channel: Channel) -> &mut Batch {
        match channel {
            Channel::Priority => &mut self.priority,
            Channel::Data => &mut self.data,
        }
    }

    /// The output of a channel to a peer. Sends what waits there for another peer first.
    pub(super) fn to(&mut self, destination: SocketAddr, channel: Channel) -> Outlet<'_> {
        if self.batch(channel).destination != Some(destination) {
            self.send(channel);
            self.batch(channel).destination = Some(destination);
        }
        Outlet {
            socket: self,
            channel,
        }
    }

    /// Sends all complete datagrams.
    pub(super) fn flush(&mut self) {
        self.send(Channel::Data);
    }

    /// Sends the complete datagrams of a channel, and those that go before them; keeps the one
    /// that is being made. What the system does not accept is lost, as on any wire.
    fn send(&mut self, channel: Channel) {
        if channel == Channel::Data {
            self.send(Channel::Priority);
        }
        let (state, socket) = (&self.state, UdpSockRef::from(&self.socket));
        let batch = match channel {
            Channel::Priority => &mut self.priority,
            Channel::Data => &mut self.data,
        };
        let contents = &batch.bytes[..batch.complete];
        if let Some(destination) = batch.destination.filter(|_| !contents.is_empty()) {
            let transmit = Transmit {
                destination,
                ecn: None,
                contents,
                segment_size: (batch.segment < contents.len()).then_some(batch.segment),
                src_ip: None,
            };
            let _lost = state.send(socket, &transmit);
        }
        batch.bytes.drain(..batch.complete);
        batch.complete = 0;
    }

    /// Receives into buffers; returns how many were filled.
    pub(super) fn receive(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> std::io::Result<usize> {
        let socket = UdpSockRef::from(&self.socket);
        self.state.recv(socket, buffers, metas)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(socket: &mut Socket, to: SocketAddr, channel: Channel, datagram: &[u8]) {
        let mut outlet = socket.to(to, channel);
        outlet.buffer().extend_from_slice(datagram);
        outlet.finish();
    }

    /// What has arrived: the first byte of each datagram.
    fn arrived(receiver: &UdpSocket) -> Vec<u8> {
        receiver.set_nonblocking(true).unwrap();
        let mut bytes = [0; 1 << 16];
        std::iter::from_fn(|| receiver.recv(&mut bytes).ok().map(|_| bytes[0])).collect()
    }

    /// U4: it leaves before the bulk that waits, also before bulk that fills a batch.
    #[test]
    fn a_small_frame_does_not_wait_behind_bulk() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let receiver = UdpSocket::bind(any).unwrap();
        let to = receiver.local_addr().unwrap();
        let mut socket = Socket::bind(any).unwrap();
        for _ in 0..5 {
            put(&mut socket, to, Channel::Data, &[1; 4000]);
        }
        put(&mut socket, to, Channel::Priority, &[2; 100]);
        put(&mut socket, to, Channel::Priority, &[3; 200]);
        socket.flush();
        assert_eq!(arrived(&receiver), [2, 3, 1, 1, 1, 1, 1]);
        put(&mut socket, to, Channel::Priority, &[2; 100]);
        for _ in 0..MAX_BATCH / 4000 {
            put(&mut socket, to, Channel::Data, &[1; 4000]);
        }
        assert_eq!(arrived(&receiver).first(), Some(&2), "before any flush");
    }
}

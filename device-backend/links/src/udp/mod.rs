//! Frames in UDP datagrams, between device processes and hosts (X7).
//!
//! [`UdpCarrier`] is the socket around the sessions with its peers. Datagrams of one length to one peer leave
//! with one system call (segmentation offload), and one call receives a batch
//! (`recvmmsg`, receive offload). A datagram that is not from a known process with
//! the cluster's key is counted and dropped.

mod datagram;
mod fragment;
mod peer;
mod replay;

use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use qnic_nic::Time;
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState, BATCH_SIZE};

use crate::carrier::{Carrier, CarrierReport};
use datagram::{process_number, Header};
pub use datagram::{ClusterKey, ShortKey};
use peer::{Change, Output, Peer};

/// Bytes asked for in each direction of the socket; the system may grant less.
const SOCKET_BUFFER: usize = 4 << 20;

/// Most bytes in one call that sends; a limit of IP.
const MAX_BATCH: usize = 60_000;

/// Bytes of one receive buffer: the most that receive offload joins.
const RECEIVE_BUFFER: usize = 1 << 16;

/// Most system calls for one [`Carrier::receive`].
const CALLS_PER_RECEIVE: usize = 4;

/// Another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpPeer {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
}

/// Frames in UDP datagrams.
pub struct UdpCarrier {
    name: String,
    key: ClusterKey,
    socket: Socket,
    number: u64,
    peers: Vec<(SocketAddr, Peer)>,
    buffers: Vec<Vec<u8>>,
    /// The last system call received nothing.
    drained: bool,
    rejected: u64,
}

impl std::fmt::Debug for UdpCarrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpCarrier")
            .field("name", &self.name)
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}

/// A socket, and the datagrams that wait to be sent on it: datagrams of one length to
/// one peer; the last may be shorter.
struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    bytes: Vec<u8>,
    segment: usize,
    /// Bytes of complete datagrams.
    complete: usize,
    destination: Option<SocketAddr>,
}

impl Output for Socket {
    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    fn finish(&mut self) {
        let length = self.bytes.len() - self.complete;
        if length > self.segment {
            self.flush();
        }
        if self.complete == 0 {
            self.segment = length;
        }
        self.complete = self.bytes.len();
        let segments = self.complete / self.segment.max(1);
        let full =
            segments >= self.state.max_gso_segments() || self.complete + self.segment > MAX_BATCH;
        if length < self.segment || full {
            self.flush();
        }
    }
}

impl Socket {
    fn bind(address: SocketAddr) -> std::io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // As much as the system grants; less is only slower.
        let _ = state.set_send_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER);
        let _ = state.set_recv_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER);
        Ok(Socket {
            socket,
            state,
            bytes: Vec::new(),
            segment: 0,
            complete: 0,
            destination: None,
        })
    }

    /// The output to a peer. Sends what waits for another peer first.
    fn to(&mut self, destination: SocketAddr) -> &mut Self {
        if self.destination != Some(destination) {
            self.flush();
            self.destination = Some(destination);
        }
        self
    }

    /// Sends the complete datagrams and keeps the one that is being made. What the system
    /// does not accept is lost, as on any wire.
    fn flush(&mut self) {
        let contents = &self.bytes[..self.complete];
        if let Some(destination) = self.destination.filter(|_| !contents.is_empty()) {
            let transmit = Transmit {
                destination,
                ecn: None,
                contents,
                segment_size: (self.segment < contents.len()).then_some(self.segment),
                src_ip: None,
            };
            let _lost = self.state.send(UdpSockRef::from(&self.socket), &transmit);
        }
        self.bytes.drain(..self.complete);
        self.complete = 0;
    }
}

impl UdpCarrier {
    /// A carrier of the process `name`, which listens on `listen`, to `peers`.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn new(
        name: &str,
        listen: SocketAddr,
        key: ClusterKey,
        peers: &[UdpPeer],
    ) -> std::io::Result<Self> {
        let socket = Socket::bind(listen)?;
        let clock = SystemTime::now().duration_since(UNIX_EPOCH);
        let session = clock.map_or(1, |since| since.as_nanos() as u64);
        let peer = |peer: &UdpPeer| {
            let address = peer.address.to_string();
            (peer.address, Peer::new(name, &peer.name, address, session))
        };
        Ok(UdpCarrier {
            name: name.to_owned(),
            key,
            socket,
            number: process_number(name),
            peers: peers.iter().map(peer).collect(),
            buffers: vec![vec![0; RECEIVE_BUFFER]; BATCH_SIZE],
            drained: false,
            rejected: 0,
        })
    }

    /// Address of the socket.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.socket.socket.local_addr()
    }

    fn tick(&mut self, now: Time) -> bool {
        let mut busy = false;
        for (address, peer) in &mut self.peers {
            if peer.deadline() > now {
                continue;
            }
            busy = true;
            let change = peer.tick(now, &self.key, self.socket.to(*address));
            log(&self.name, peer, change, self.rejected);
        }
        busy
    }

    fn receive_datagram(&mut self, now: Time, datagram: &[u8], take: &mut dyn FnMut(usize, &[u8])) {
        let opened = Header::open(&self.key, datagram);
        let known = opened.and_then(|(header, body)| {
            let mut peers = self.peers.iter();
            let index = peers.position(|(_, peer)| header.source == peer.number)?;
            (header.destination == self.number).then_some((index, header, body))
        });
        let Some((index, header, body)) = known else {
            self.rejected += 1;
            return;
        };
        let (address, peer) = &mut self.peers[index];
        let output = self.socket.to(*address);
        let (received, change) = peer.receive(now, &self.key, header, body, output);
        log(&self.name, peer, change, self.rejected);
        if let Some(frame) = received {
            take(index, &frame);
        }
    }
}

/// Logs a change, naming both ends.
fn log(own: &str, peer: &Peer, change: Option<Change>, rejected: u64) {
    let peer = &peer.report;
    match change {
        None => {}
        Some(Change::Connected) => {
            tracing::info!(
                "process \"{}\" at {} is connected by UDP",
                peer.name,
                peer.address
            );
        }
        Some(Change::Silent) => tracing::error!(
            "process \"{own}\" gets no response from process \"{}\" at {}: is it running, is the \
             address right, does a firewall stop UDP, is the key the same? ({rejected} datagrams \
             with another key so far)",
            peer.name,
            peer.address
        ),
    }
}

impl Carrier for UdpCarrier {
    fn send(&mut self, _now: Time, process: usize, fill: &mut dyn FnMut(&mut Vec<u8>) -> bool) {
        if let Some((address, peer)) = self.peers.get_mut(process) {
            peer.send(&self.key, self.socket.to(*address), fill);
        }
    }

    fn flush(&mut self, _now: Time) {
        self.socket.flush();
    }

    fn receive(&mut self, now: Time, take: &mut dyn FnMut(usize, &[u8])) -> bool {
        let mut busy = self.tick(now);
        let mut buffers = std::mem::take(&mut self.buffers);
        for _ in 0..CALLS_PER_RECEIVE {
            let mut metas = [RecvMeta::default(); BATCH_SIZE];
            let mut slices: Vec<_> = buffers.iter_mut().map(|one| IoSliceMut::new(one)).collect();
            let socket = UdpSockRef::from(&self.socket.socket);
            let count = self.socket.state.recv(socket, &mut slices, &mut metas);
            let empty = std::io::ErrorKind::WouldBlock;
            self.drained = matches!(&count, Err(error) if error.kind() == empty);
            let Ok(count) = count else { break };
            busy = true;
            for (meta, buffer) in metas[..count].iter().zip(&buffers) {
                let datagrams = buffer.get(..meta.len).unwrap_or_default();
                for datagram in datagrams.chunks(meta.stride.max(1)) {
                    self.receive_datagram(now, datagram, take);
                }
            }
        }
        self.buffers = buffers;
        busy
    }

    fn prepare_sleep(&mut self) -> bool {
        self.drained
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.socket.as_fd()
    }

    fn next_deadline(&self) -> Option<Time> {
        self.peers.iter().map(|(_, peer)| peer.deadline()).min()
    }

    fn report(&self) -> CarrierReport {
        let address = self.address().map(|address| address.to_string());
        let peers = self.peers.iter();
        CarrierReport {
            kind: "udp",
            address: address.unwrap_or_else(|error| error.to_string()),
            rejected: self.rejected,
            processes: peers.map(|(_, peer)| peer.report.clone()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Processes;

    fn key(byte: u8) -> ClusterKey {
        ClusterKey::new(&[byte; 32]).unwrap()
    }

    /// One process for each key, on free ports; all are configured to know each other.
    fn world(keys: &[u8]) -> Processes<UdpCarrier> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let reserved: Vec<_> = keys.iter().map(|_| UdpSocket::bind(any).unwrap()).collect();
        let peer = |(index, socket): (usize, &UdpSocket)| UdpPeer {
            name: format!("p{index}"),
            address: socket.local_addr().unwrap(),
        };
        let peers: Vec<_> = reserved.iter().enumerate().map(peer).collect();
        drop(reserved);
        let carrier = |(own, byte): (&UdpPeer, &u8)| {
            let others = peers.iter().filter(|peer| *peer != own);
            let others: Vec<_> = others.cloned().collect();
            UdpCarrier::new(&own.name, own.address, key(*byte), &others).unwrap()
        };
        let carriers = peers.iter().zip(keys).map(carrier).map(Some);
        Processes::new(carriers.collect(), ())
    }

    fn connected(world: &Processes<UdpCarrier>) -> bool {
        let mut carriers = world.carriers.iter().flatten();
        world.connected()
            && carriers.all(|one| one.report().processes.iter().all(|peer| peer.mtu > 4096))
    }

    #[test]
    fn frames_of_all_lengths_reach_their_process_in_batches() {
        let mut world = world(&[1, 1, 1]);
        world.until("all connected", connected);
        let links = [(0, 0, 1), (0, 1, 2), (1, 0, 0), (2, 1, 1)];
        let mut sent = world.send_all(40, &links, [96, 4192, 4192, 700]);
        sent.iter_mut().for_each(|frames| frames.sort());
        world.frames.iter_mut().for_each(|frames| frames.sort());
        assert_eq!(world.frames, sent);
    }

    #[test]
    fn a_process_with_another_key_is_rejected_and_counted() {
        let mut world = world(&[1, 2]);
        world.until("rejections are counted", |world| {
            [0, 1].iter().all(|one| world.report(*one).rejected >= 3)
        });
        world.send(0, 0, b"frame");
        for process in [0, 1] {
            assert!(!world.about(process, 0).connected);
            assert_eq!(world.about(process, 0).frames_received, 0);
        }
        assert_eq!(world.about(0, 0).dropped, 1);
    }
}

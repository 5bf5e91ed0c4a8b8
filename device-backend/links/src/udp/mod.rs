//! Frames in UDP datagrams, between device processes and hosts (X7).
//!
//! | module | what |
//! |---|---|
//! | `datagram` | layout; the tag that shows that a datagram is of this cluster |
//! | `window` | each datagram is taken once |
//! | `chunk` | frames longer than the path takes |
//! | `peer` | the conversation with one process: sessions, liveness, size of datagrams |
//!
//! [`UdpCarrier`] is the socket around them. Datagrams of one length to one peer leave
//! with one system call (segmentation offload), and one call takes in a batch
//! (`recvmmsg`, receive offload). A datagram that is not from a known process with
//! the cluster's key is counted and ignored.

mod chunk;
mod datagram;
mod peer;
mod window;

use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use qnic_nic::Time;
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState, BATCH_SIZE};

use crate::carrier::{Carrier, CarrierReport};
use datagram::{process_number, Address};
pub use datagram::{ClusterKey, ShortKey};
use peer::{Brought, Change, Output, Peer};

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
    batch: Batch,
    buffers: Vec<Vec<u8>>,
    /// The last call that receives found nothing.
    drained: bool,
    strangers: u64,
}

impl std::fmt::Debug for UdpCarrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpCarrier")
            .field("name", &self.name)
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}

struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
}

/// Datagrams of one length to one peer that wait to be sent; the last may be shorter.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    segment: usize,
    /// Bytes that are finished datagrams.
    whole: usize,
    /// Where they go.
    destination: Option<SocketAddr>,
}

/// Where the datagrams of one peer go.
struct ToPeer<'a> {
    batch: &'a mut Batch,
    socket: &'a Socket,
}

impl<'a> ToPeer<'a> {
    /// Sends first what waits for another peer.
    fn new(batch: &'a mut Batch, socket: &'a Socket, destination: SocketAddr) -> Self {
        if batch.destination != Some(destination) {
            batch.send_whole(socket);
            batch.destination = Some(destination);
        }
        ToPeer { batch, socket }
    }
}

impl Output for ToPeer<'_> {
    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.batch.bytes
    }

    fn finish(&mut self) {
        let batch = &mut *self.batch;
        let length = batch.bytes.len() - batch.whole;
        if length > batch.segment {
            batch.send_whole(self.socket);
        }
        if batch.whole == 0 {
            batch.segment = length;
        }
        batch.whole = batch.bytes.len();
        let segments = batch.whole / batch.segment.max(1);
        let full = segments >= self.socket.state.max_gso_segments()
            || batch.whole + batch.segment > MAX_BATCH;
        if length < batch.segment || full {
            batch.send_whole(self.socket);
        }
    }
}

impl Batch {
    /// Sends what is finished and keeps what is not.
    fn send_whole(&mut self, socket: &Socket) {
        if let Some(destination) = self.destination.filter(|_| self.whole > 0) {
            socket.send(destination, &self.bytes[..self.whole], self.segment);
        }
        self.bytes.drain(..self.whole);
        self.whole = 0;
    }
}

impl Socket {
    /// What the system does not take is lost, as on any wire.
    fn send(&self, destination: SocketAddr, contents: &[u8], segment: usize) {
        let transmit = Transmit {
            destination,
            ecn: None,
            contents,
            segment_size: (segment < contents.len()).then_some(segment),
            src_ip: None,
        };
        let _lost = self.state.send(UdpSockRef::from(&self.socket), &transmit);
    }
}

impl UdpCarrier {
    /// A carrier of the process `name` that listens at `listen` and talks to `peers`.
    ///
    /// # Errors
    /// What the system says to the socket.
    pub fn new(
        name: &str,
        listen: SocketAddr,
        key: ClusterKey,
        peers: &[UdpPeer],
    ) -> std::io::Result<Self> {
        let socket = UdpSocket::bind(listen)?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // As much as the system grants; less is only slower.
        let _ = state.set_send_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER);
        let _ = state.set_recv_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER);
        let clock = SystemTime::now().duration_since(UNIX_EPOCH);
        let session = clock.map_or(1, |since| since.as_nanos() as u64);
        let peer = |peer: &UdpPeer| {
            let address = peer.address.to_string();
            let conversation = Peer::new(name, &peer.name, address, session, usize::MAX);
            (peer.address, conversation)
        };
        Ok(UdpCarrier {
            name: name.to_owned(),
            key,
            socket: Socket { socket, state },
            number: process_number(name),
            peers: peers.iter().map(peer).collect(),
            batch: Batch::default(),
            buffers: vec![vec![0; RECEIVE_BUFFER]; BATCH_SIZE],
            drained: false,
            strangers: 0,
        })
    }

    /// Address that the socket has.
    ///
    /// # Errors
    /// What the system says.
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
            let mut output = ToPeer::new(&mut self.batch, &self.socket, *address);
            let change = peer.tick(now, &self.key, &mut output);
            report(&self.name, peer, change, self.strangers);
        }
        busy
    }

    /// Takes one datagram.
    fn take_datagram(&mut self, now: Time, datagram: &[u8], take: &mut dyn FnMut(usize, &[u8])) {
        let opened = Address::open(&self.key, datagram);
        let opened = opened.filter(|(address, _)| address.destination == self.number);
        let known = opened.and_then(|(address, body)| {
            let mut peers = self.peers.iter();
            let place = peers.position(|(_, peer)| peer.number == address.source)?;
            Some((place, address, body))
        });
        let Some((place, address, body)) = known else {
            self.strangers += 1;
            return;
        };
        let (destination, peer) = &mut self.peers[place];
        let mut output = ToPeer::new(&mut self.batch, &self.socket, *destination);
        let (brought, change) = peer.receive(now, &self.key, &address, body, &mut output);
        report(&self.name, peer, change, self.strangers);
        match brought {
            Brought::Nothing => {}
            Brought::Frame(frame) => take(place, frame),
            Brought::Reassembled(frame) => take(place, &frame),
        }
    }
}

/// Tells people what has changed, naming both ends.
fn report(own: &str, peer: &Peer, change: Option<Change>, strangers: u64) {
    let peer = &peer.report;
    match change {
        None => {}
        Some(Change::Connected) => {
            tracing::info!("process \"{}\" at {} answers", peer.name, peer.address);
        }
        Some(Change::Silent) => tracing::error!(
            "process \"{own}\" gets no answer from process \"{}\" at {}: is it running, is the \
             address right, does a firewall stop UDP, is the key the same? ({strangers} datagrams \
             with another key so far)",
            peer.name,
            peer.address
        ),
    }
}

impl Carrier for UdpCarrier {
    fn send(&mut self, _now: Time, process: usize, fill: &mut dyn FnMut(&mut Vec<u8>) -> bool) {
        if let Some((address, peer)) = self.peers.get_mut(process) {
            let mut output = ToPeer::new(&mut self.batch, &self.socket, *address);
            peer.send(&self.key, &mut output, fill);
        }
    }

    fn flush(&mut self, _now: Time) {
        self.batch.send_whole(&self.socket);
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
                    self.take_datagram(now, datagram, take);
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
        CarrierReport {
            kind: "udp",
            address: self
                .address()
                .map_or_else(|error| error.to_string(), |address| address.to_string()),
            strangers: self.strangers,
            processes: self
                .peers
                .iter()
                .map(|(_, peer)| peer.report.clone())
                .collect(),
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

    /// Sockets of one process each, with free ports, that know each other.
    fn world(keys: &[u8]) -> Processes<UdpCarrier> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let names: Vec<_> = (0..keys.len()).map(|index| format!("p{index}")).collect();
        let reserved: Vec<_> = keys.iter().map(|_| UdpSocket::bind(any).unwrap()).collect();
        let peers: Vec<_> = names
            .iter()
            .zip(&reserved)
            .map(|(name, socket)| UdpPeer {
                name: name.clone(),
                address: socket.local_addr().unwrap(),
            })
            .collect();
        drop(reserved);
        let carrier = |(index, byte): (usize, &u8)| {
            let others = peers.iter().filter(|peer| peer.name != names[index]);
            let others: Vec<_> = others.cloned().collect();
            UdpCarrier::new(&names[index], peers[index].address, key(*byte), &others).unwrap()
        };
        Processes::new(keys.iter().enumerate().map(carrier).map(Some).collect())
    }

    fn connected(world: &Processes<UdpCarrier>) -> bool {
        let mut carriers = world.carriers.iter().flatten();
        world.joined()
            && carriers.all(|one| one.report().processes.iter().all(|peer| peer.mtu > 4096))
    }

    #[test]
    fn frames_of_all_lengths_cross_in_batches_and_reach_whom_they_are_for() {
        let mut world = world(&[1, 1, 1]);
        world.until("all connected", connected);
        let mut sent = [Vec::new(), Vec::new(), Vec::new()];
        for round in 0..40usize {
            for (from, process, to) in [(0, 0, 1), (0, 1, 2), (1, 0, 0), (2, 1, 1)] {
                let length = [96, 4192, 4192, 700][(round + from) % 4];
                let frame = vec![(round * 4 + from) as u8; length];
                world.send(from, process, &frame);
                sent[to].push(frame);
            }
        }
        let all = |world: &Processes<_>| {
            world
                .frames
                .iter()
                .zip(&sent)
                .all(|(a, b)| a.len() >= b.len())
        };
        world.until("all frames", all);
        for (mut came, mut sent) in world.frames.into_iter().zip(sent) {
            came.sort();
            sent.sort();
            assert_eq!(came, sent);
        }
    }

    #[test]
    fn another_key_is_counted_and_brings_nothing() {
        let mut world = world(&[1, 2]);
        world.until("strangers are counted", |world| {
            [0, 1].iter().all(|one| world.report(*one).strangers >= 3)
        });
        world.send(0, 0, b"frame");
        for process in [0, 1] {
            assert!(!world.about(process, 0).connected);
            assert_eq!(world.about(process, 0).frames_received, 0);
        }
        assert_eq!(world.about(0, 0).dropped, 1);
    }
}

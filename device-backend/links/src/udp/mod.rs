//! Frames in UDP datagrams, between device processes and hosts (X7).
//!
//! [`UdpCarrier`] is the socket around the sessions with its peers:
//!
//! ```text
//!   UdpCarrier ─► Peer ──► Keying ──► Handshaker     key pairs ─► keys (Noise)
//!   socket        frames,  sessions,  Session        keys ─► datagrams, each counts once
//!                 probes   rekeying
//! ```
//!
//! Each process has a key pair and knows the public keys of the others. A datagram that is not from
//! one of them is counted and dropped, so frames of a peer come from that peer; the fabric drops
//! those whose source is not a node of it. Datagrams are encrypted unless both sides are told not
//! to.
//!
//! Datagrams of one length to one peer leave with one system call (segmentation offload),
//! and one call receives a batch (`recvmmsg`, receive offload).
//!
//! # Two channels (U4)
//! The header of a datagram says its channel. Datagrams wait in three places:
//!
//! | where | what goes first |
//! |---|---|
//! | in the batch of this process that is being put together (the module `socket`) | the priority channel has a batch of its own, which leaves before bulk does |
//! | in the receiver's socket buffer, while the receiver is busy | one call usually takes all that is there; of these datagrams, those of the priority channel are decrypted and given to the NICs first |
//! | in the kernel of the sender and in the network | the order stays as it is |
//!
//! On loopback only the first two exist. To let the priority channel go first in the last one would
//! take a second socket with a priority of its own, and so a second port in every firewall, for a
//! queue that congestion control keeps short.

mod datagram;
mod fragment;
mod handshake;
mod keying;
mod peer;
mod replay;
mod session;
mod socket;

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use qnic_config::plan::{PrivateKey, PublicKey};
use qnic_nic::env::Channel;
use qnic_nic::Time;
use quinn_udp::{RecvMeta, BATCH_SIZE};

use crate::carrier::{Carrier, CarrierReport, ProcessReport};
use crate::codec::MAX_FRAME;
use datagram::{Handshake, Header};
use handshake::Pair;
use keying::{peer_index, Doubt};
use peer::{Change, Peer, Received, SIZES};
use socket::Socket;

/// Bytes of one receive buffer: the most that receive offload joins.
const RECEIVE_BUFFER: usize = 1 << 16;

/// Most system calls for one [`Carrier::receive`].
const CALLS_PER_RECEIVE: usize = 4;

/// The smallest of the sizes that are tried, and the headers of IPv6 and UDP before it.
const SMALLEST: usize = SIZES[SIZES.len() - 1];
const IP_HEADERS: usize = 48;

/// The channel that is handled first of what one call has received. All of that is less than
/// the window in which a session takes counters, so nothing becomes too old by it.
const FIRST: Option<Channel> = Some(Channel::Priority);

/// Another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpPeer {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its public key, which identifies it.
    pub public_key: PublicKey,
}

/// What identifies this process on a network of UDP.
#[derive(Debug, Clone)]
pub struct UdpIdentity {
    /// Its name.
    pub name: String,
    /// Its key.
    pub private_key: PrivateKey,
    /// Whether datagrams are encrypted; must be the same in all processes.
    pub encrypt: bool,
}

/// Frames in UDP datagrams.
pub struct UdpCarrier {
    name: String,
    socket: Socket,
    peers: Vec<(SocketAddr, Peer)>,
    buffers: Vec<Vec<u8>>,
    /// Where datagrams are decrypted.
    scratch: Vec<u8>,
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

impl UdpCarrier {
    /// A carrier of the process `own`, which listens on `listen`, to `peers`.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn new(own: &UdpIdentity, listen: SocketAddr, peers: &[UdpPeer]) -> std::io::Result<Self> {
        let socket = Socket::bind(listen)?;
        let clock = SystemTime::now().duration_since(UNIX_EPOCH);
        let stamp = clock.map_or(1, |since| since.as_nanos() as u64);
        let peer = |(index, peer): (u16, &UdpPeer)| {
            let pair = Pair {
                own: own.name.clone(),
                peer: peer.name.clone(),
                private: own.private_key.clone(),
                public: peer.public_key,
                encrypt: own.encrypt,
            };
            let address = peer.address.to_string();
            (peer.address, Peer::new(pair, index, address, stamp))
        };
        Ok(UdpCarrier {
            name: own.name.clone(),
            socket,
            peers: (0..).zip(peers).map(peer).collect(),
            buffers: vec![vec![0; RECEIVE_BUFFER]; BATCH_SIZE],
            scratch: Vec::new(),
            drained: false,
            rejected: 0,
        })
    }

    /// Address of the socket.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.socket.address()
    }

    fn tick(&mut self, now: Time) -> bool {
        let mut busy = false;
        for (address, peer) in &mut self.peers {
            if peer.deadline() > now {
                continue;
            }
            busy = true;
            let change = peer.tick(now, &mut self.socket.to(*address, Channel::Data));
            log(&self.name, peer, change, self.rejected);
        }
        busy
    }

    fn receive_datagram(&mut self, now: Time, datagram: &[u8], take: &mut dyn FnMut(usize, &[u8])) {
        let sealed = Header::of(datagram).map(|(header, _)| header);
        let handshake = Handshake::of(datagram);
        let index = match (sealed, handshake) {
            (Some(header), _) => Some(peer_index(header.session.get())),
            (None, Some(header)) => {
                let mut peers = self.peers.iter();
                peers.position(|(_, peer)| header.source == peer.number())
            }
            (None, None) => None,
        };
        let peer = index.and_then(|index| Some((index, self.peers.get_mut(index)?)));
        let Some((index, (address, peer))) = peer else {
            self.rejected += 1;
            return;
        };
        let output = &mut self.socket.to(*address, Channel::Data);
        let (received, change) = match (sealed, handshake) {
            (Some(header), _) => peer.receive(now, header, datagram, &mut self.scratch, output),
            (None, Some(header)) => peer.receive_handshake(now, header, datagram, output),
            (None, None) => (Received::Rejected, None),
        };
        match received {
            Received::Rejected => self.rejected += 1,
            Received::Taken => {}
            Received::Frame(frame) => take(index, &frame),
        }
        log(&self.name, peer, change, self.rejected);
    }
}

/// The datagrams in a buffer that was received.
fn datagrams<'a>((meta, buffer): (&RecvMeta, &'a Vec<u8>)) -> impl Iterator<Item = &'a [u8]> {
    let bytes = buffer.get(..meta.len).unwrap_or_default();
    bytes.chunks(meta.stride.max(1))
}

/// Logs a change, naming both ends.
fn log(own: &str, peer: &Peer, change: Option<Change>, rejected: u64) {
    let ProcessReport { name, address, .. } = &peer.report;
    match change {
        None => {}
        Some(Change::Connected) => {
            tracing::info!("process \"{name}\" at {address} is connected by UDP");
        }
        Some(Change::Narrow) => tracing::error!(
            "process \"{own}\" reaches process \"{name}\" at {address} with small datagrams only: \
             none of {SMALLEST} bytes arrives, so longer frames are lost; the path between the two \
             needs an MTU of {} bytes: look at the interfaces and tunnels on it",
            SMALLEST + IP_HEADERS
        ),
        Some(Change::Silent) => tracing::error!(
            "process \"{own}\" has no connection with process \"{name}\" at {address}: {} \
             ({rejected} datagrams rejected so far)",
            reason(own, peer)
        ),
    }
}

/// Why there is no connection, and what to do.
fn reason(own: &str, peer: &Peer) -> String {
    let (name, pair) = (&peer.report.name, peer.pair());
    let does = |encrypts| {
        if encrypts {
            "encrypts"
        } else {
            "does not encrypt"
        }
    };
    match peer.doubt() {
        None => "it does not respond; is it running, is the address right, does a firewall stop \
                 UDP?"
            .to_owned(),
        Some(Doubt::Keys) => format!(
            "their keys do not fit; this process has the public key {} for \"{name}\", and \
             \"{own}\" itself has {}: compare both with what \"cargo qnic keys show\" says on \
             the two hosts",
            pair.public,
            pair.private.public()
        ),
        Some(Doubt::Encryption) => format!(
            "\"{own}\" {}, and \"{name}\" {}: set `encrypt` of the network to the same on both",
            does(pair.encrypt),
            does(!pair.encrypt)
        ),
        Some(Doubt::Version) => {
            "it speaks another version of the protocol: run the same qnic on both hosts".to_owned()
        }
    }
}

impl Carrier for UdpCarrier {
    fn send(
        &mut self,
        _now: Time,
        process: usize,
        channel: Channel,
        fill: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) {
        if let Some((address, peer)) = self.peers.get_mut(process) {
            peer.send(&mut self.socket.to(*address, channel), fill);
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
            let count = self.socket.receive(&mut slices, &mut metas);
            let empty = std::io::ErrorKind::WouldBlock;
            self.drained = matches!(&count, Err(error) if error.kind() == empty);
            let Ok(count) = count else { break };
            busy = true;
            let received = || metas[..count].iter().zip(&buffers).flat_map(datagrams);
            let is_first = |datagram: &&[u8]| Header::channel_of(datagram) == FIRST;
            let others = |datagram: &&[u8]| Header::channel_of(datagram) != FIRST;
            for datagram in received().filter(is_first).chain(received().filter(others)) {
                self.receive_datagram(now, datagram, take);
            }
        }
        self.buffers = buffers;
        busy
    }

    fn prepare_sleep(&mut self) -> bool {
        self.drained
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn next_deadline(&self) -> Option<Time> {
        self.peers.iter().map(|(_, peer)| peer.deadline()).min()
    }

    fn max_frame(&self, process: usize) -> usize {
        let peer = self.peers.get(process);
        peer.map_or(MAX_FRAME, |(_, peer)| peer.max_frame())
    }

    fn take_path_change(&mut self) -> bool {
        let mut changed = false;
        for (_, peer) in &mut self.peers {
            changed |= peer.take_path_change();
        }
        changed
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
mod tests;

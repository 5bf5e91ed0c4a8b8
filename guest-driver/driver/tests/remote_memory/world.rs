//! The virtual cluster: nodes, the wire between them, and time, all from one seed.

use std::collections::BTreeMap;

use fastrand::Rng;
use qnic_abi::remote_memory::{Attach, Kind, HEADER_BYTES};
use qnic_abi::{NodeId, Secret};
use qnic_driver::datagram::Address;
use qnic_driver::remote_memory::{
    ClientConfig, ClientState, Limits, ServerConfig, ServerState, Ticket,
};
use zerocopy::IntoBytes;

use crate::copies::Copies;
use crate::nodes::{sending, without_allocation, ClientNode, Sending, ServerNode};
use crate::page::Lent;
use crate::wire::{Packet, Quality, Wire, MS, US};

/// Key of all servers.
pub(crate) const KEY: Secret = Secret(*b"the cluster key.");
/// Parameters of clients and servers.
pub(crate) const BLOCKS: u64 = 24;
pub(crate) const REQUEST_TIMEOUT: u64 = 3000 * MS;
pub(crate) const SERVER_TIMEOUT: u64 = 300 * MS;
pub(crate) const LEASE: u64 = 2500 * MS;
/// Longest time that the NIC takes to read a page.
const READING: u64 = 60 * US;

/// The role of a node.
pub(crate) enum Role {
    Down,
    Client(Box<ClientNode>),
    Server(Box<ServerNode>),
}

/// A node.
pub(crate) struct Node {
    pub(crate) address: Address,
    pub(crate) role: Role,
    /// How often it has started.
    life: u64,
    /// Packets of a thousand in which it lies.
    pub(crate) lies: u32,
    /// The packets that it has sent, for a liar to send again.
    said: Vec<Packet>,
    /// Until then it stands still; what arrives meanwhile waits.
    paused_until: u64,
}

enum Event {
    Arrives(Packet),
    /// The NIC has read a page, and sends it.
    Reads {
        node: usize,
        life: u64,
        packet: Packet,
        page: Lent,
        ticket: Ticket,
    },
    /// The program of a client makes requests.
    Works {
        node: usize,
        life: u64,
    },
}

/// The cluster.
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) rng: Rng,
    pub(crate) nodes: Vec<Node>,
    pub(crate) wire: Wire,
    /// Requests that each client has under way.
    pub(crate) depth: usize,
    /// Until then requests may be under way that a liar has answered.
    pub(crate) honest_from: u64,
    /// Until when programs make requests.
    pub(crate) works_until: u64,
    /// Session of the last packet that was sent.
    pub(crate) last_session: u64,
    pub(crate) copies: Copies,
    /// How long a server is busy with each packet.
    pub(crate) service: u64,
    /// When the server on each node will have served all packets.
    idle_at: Vec<u64>,
    events: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    next_content: u64,
}

/// The address of a node.
pub(crate) fn address(node: usize) -> Address {
    Address {
        node: NodeId(node as u16),
        port: 600 + node as u16,
    }
}

impl World {
    /// Nodes that are down.
    pub(crate) fn new(seed: u64, nodes: usize, quality: Quality) -> Self {
        let node = |index| Node {
            address: address(index),
            role: Role::Down,
            life: 0,
            lies: 0,
            said: Vec::new(),
            paused_until: 0,
        };
        World {
            now: 1000 * MS,
            rng: Rng::with_seed(seed),
            nodes: (0..nodes).map(node).collect(),
            wire: Wire::new(quality),
            depth: 0,
            honest_from: 0,
            works_until: 0,
            last_session: 0,
            copies: Copies::default(),
            service: 0,
            idle_at: vec![0; nodes],
            events: BTreeMap::new(),
            next_event: 0,
            next_content: 1,
        }
    }

    /// The parameters of a server on it.
    pub(crate) fn server_config(&mut self) -> ServerConfig {
        ServerConfig {
            incarnation: self.rng.u64(..),
            key: KEY,
            pages: 4 * BLOCKS as usize,
            quota: 2 * BLOCKS as usize,
            clients: 4,
            window: 8,
            lease: LEASE,
            leave_interval: 50 * MS,
        }
    }

    /// The parameters of a client of these servers.
    pub(crate) fn client_config(
        &mut self,
        volume: u64,
        replicas: usize,
        servers: &[usize],
    ) -> ClientConfig {
        let mut limits = Limits {
            request_timeout: REQUEST_TIMEOUT,
            server_timeout: SERVER_TIMEOUT,
            attach_timeout: 8000 * MS,
            renew_interval: 70 * MS,
            ..Limits::default()
        };
        limits.retransmit.initial = 20 * MS;
        limits.retransmit.floor = MS;
        limits.retransmit.floor_oldest = MS;
        limits.retransmit.ceiling = 60 * MS;
        ClientConfig {
            volume,
            client: self.rng.u64(1..),
            key: KEY,
            blocks: BLOCKS,
            replicas,
            thin: false,
            servers: servers.iter().map(|server| address(*server)).collect(),
            requests: 16,
            copies: 3,
            limits,
        }
    }

    pub(crate) fn start_server(&mut self, node: usize) {
        let config = self.server_config();
        self.start_server_with(node, config);
    }

    pub(crate) fn start_server_with(&mut self, node: usize, config: ServerConfig) {
        self.start(node, Role::Server(Box::new(ServerNode::new(config))));
    }

    pub(crate) fn start_client(&mut self, node: usize, config: ClientConfig) {
        self.copies.forget(node);
        let client = ClientNode::new(config, self.now);
        self.start(node, Role::Client(Box::new(client)));
        let life = self.nodes[node].life;
        self.schedule(0, Event::Works { node, life });
    }

    fn start(&mut self, node: usize, role: Role) {
        self.nodes[node].life += 1;
        self.nodes[node].role = role;
        self.pump(node);
    }

    /// Kills the program on a node: its memory is lost.
    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].life += 1;
        self.nodes[node].role = Role::Down;
    }

    pub(crate) fn client(&mut self, node: usize) -> &mut ClientNode {
        match &mut self.nodes[node].role {
            Role::Client(client) => client,
            _ => panic!("node {node} is no client"),
        }
    }

    pub(crate) fn server(&mut self, node: usize) -> &mut ServerNode {
        match &mut self.nodes[node].role {
            Role::Server(server) => server,
            _ => panic!("node {node} is no server"),
        }
    }

    fn schedule(&mut self, after: u64, event: Event) {
        self.next_event += 1;
        self.events
            .insert((self.now + after, self.next_event), event);
    }

    /// Puts a packet on the wire.
    pub(crate) fn send(&mut self, packet: Packet) {
        for delay in self.wire.carry(&mut self.rng, &packet) {
            let delay = delay + self.queue(delay, &packet);
            self.schedule(delay, Event::Arrives(packet.clone()));
        }
    }

    /// How long a packet that arrives after `delay` waits for its server, and keeps it busy.
    fn queue(&mut self, delay: u64, packet: &Packet) -> u64 {
        let node = usize::from(packet.to.node.0);
        if self.service == 0 || !matches!(self.nodes[node].role, Role::Server(_)) {
            return 0;
        }
        let arrives = self.now + delay;
        let idle_at = &mut self.idle_at[node];
        *idle_at = arrives.max(*idle_at) + self.service;
        *idle_at - arrives
    }

    /// How long a packet that comes now would wait at the busiest server.
    pub(crate) fn longest_queue(&self) -> u64 {
        let waits = self.idle_at.iter().map(|at| at.saturating_sub(self.now));
        waits.max().unwrap_or(0)
    }

    /// Does the next event, unless it is later than `until`. Returns false if it is.
    fn step(&mut self, until: u64) -> bool {
        let due = |role: &Role| match role {
            Role::Down => None,
            Role::Client(node) => node.client.deadline(),
            Role::Server(node) => node.server.deadline(),
        };
        let timers = self.nodes.iter().enumerate();
        let timers = timers.filter_map(|(index, node)| {
            let due = due(&node.role)?.max(node.paused_until);
            Some((due, index))
        });
        let timer = timers.min();
        let event = self.events.first_key_value().map(|(key, _)| *key);
        let event_time = event.map_or(u64::MAX, |key| key.0);
        let time = event_time.min(timer.map_or(u64::MAX, |timer| timer.0));
        if time > until {
            self.now = self.now.max(until);
            return false;
        }
        self.now = self.now.max(time);
        match (event, timer) {
            (Some(key), _) if key.0 == time => {
                let event = self.events.remove(&key).unwrap();
                self.happen(event);
            }
            (_, Some((_, node))) => self.pump(node),
            _ => unreachable!(),
        }
        true
    }

    /// A node stands still for so long, with all that it has.
    pub(crate) fn pause(&mut self, node: usize, nanoseconds: u64) {
        self.nodes[node].paused_until = self.now + nanoseconds;
    }

    /// For how long the node of an event still stands still.
    fn pause_of(&self, event: &Event) -> u64 {
        let node = match event {
            Event::Arrives(packet) => packet.to.node.0.into(),
            Event::Reads { node, .. } | Event::Works { node, .. } => *node,
        };
        self.nodes[node].paused_until.saturating_sub(self.now)
    }

    fn happen(&mut self, event: Event) {
        let pause = self.pause_of(&event);
        if pause > 0 {
            return self.schedule(pause, event);
        }
        match event {
            Event::Arrives(packet) => {
                let node = usize::from(packet.to.node.0);
                let now = self.now;
                if self.is_forgotten(node, &packet) {
                    return self.forget(node, packet);
                }
                match &mut self.nodes[node].role {
                    Role::Down => return,
                    Role::Client(client) => client.receive(now, &packet),
                    Role::Server(server) => server.receive(now, &packet),
                }
                self.pump(node);
            }
            Event::Reads {
                node,
                life,
                mut packet,
                page,
                ticket,
            } => {
                if self.nodes[node].life != life {
                    return;
                }
                packet.data = Some(page.content());
                drop(page);
                let now = self.now;
                match &mut self.nodes[node].role {
                    Role::Client(it) => {
                        without_allocation(|| it.client.handle_sent(now, ticket));
                    }
                    Role::Server(it) => without_allocation(|| it.server.handle_sent(ticket)),
                    Role::Down => {}
                }
                self.emit(node, packet);
                self.pump(node);
            }
            Event::Works { node, life } if self.nodes[node].life == life => self.work(node, life),
            Event::Works { .. } => {}
        }
    }

    /// Lets a node do its pending work.
    pub(crate) fn pump(&mut self, node: usize) {
        let now = self.now;
        match &mut self.nodes[node].role {
            Role::Down => return,
            Role::Client(it) => without_allocation(|| it.client.tick(now)),
            Role::Server(it) => without_allocation(|| it.server.tick(now)),
        }
        let from = self.nodes[node].address;
        loop {
            let next = match &mut self.nodes[node].role {
                Role::Down => None,
                Role::Client(it) => {
                    without_allocation(|| sending(from, it.client.poll_transmit(now)))
                }
                Role::Server(it) => {
                    without_allocation(|| sending(from, it.server.poll_transmit(now)))
                }
            };
            let Some(Sending { packet, page }) = next else {
                break;
            };
            match page {
                None => self.emit(node, packet),
                Some((page, ticket)) => {
                    let after = self.rng.u64(0..READING);
                    let life = self.nodes[node].life;
                    self.schedule(
                        after,
                        Event::Reads {
                            node,
                            life,
                            packet,
                            page,
                            ticket,
                        },
                    );
                }
            }
        }
        match &mut self.nodes[node].role {
            Role::Down => {}
            Role::Client(client) => client.collect(now),
            Role::Server(server) => server.collect(),
        }
        self.check_written(node);
    }

    /// Checks that a completed write is on as many servers as required, or as possible.
    fn check_written(&mut self, node: usize) {
        let Role::Client(it) = &mut self.nodes[node].role else {
            return;
        };
        let written = core::mem::take(&mut it.written);
        let lies = self.nodes.iter().any(|node| node.lies > 0);
        if lies || self.now < self.honest_from {
            return;
        }
        let Role::Client(it) = &self.nodes[node].role else {
            return;
        };
        let usable = it.client.servers();
        let usable = usable.filter(|it| it.state == ServerState::Live && !it.leaving);
        let usable = usable.filter(|it| it.pages < it.granted);
        // Late answers of a server that is down may keep it live for the client.
        let is_up = |node: u16| matches!(self.nodes[usize::from(node)].role, Role::Server(_));
        let usable = usable.filter(|it| is_up(it.address.node.0)).count();
        for block in written {
            let copies = self.copies.of(node, block);
            let enough = it.replicas.min(usable).max(1);
            assert!(
                copies >= enough,
                "block {block} is written with {copies} copies of {enough}"
            );
        }
    }

    /// Returns true if a liar does not carry out a write.
    fn is_forgotten(&mut self, node: usize, packet: &Packet) -> bool {
        let lies = self.nodes[node].lies;
        packet.header[0] == Kind::Write as u8 && lies > 0 && self.rng.u32(0..1000) < lies
    }

    /// A liar acknowledges a write that it has not stored.
    fn forget(&mut self, node: usize, packet: Packet) {
        let mut header = packet.header;
        header[0] = Kind::Written as u8;
        self.send(Packet {
            from: self.nodes[node].address,
            to: packet.from,
            header,
            target: 0,
            data: None,
        });
    }

    /// A packet leaves a node; a liar sends another one.
    fn emit(&mut self, node: usize, packet: Packet) {
        let session = packet.header[8..16].try_into();
        self.last_session = session.map_or(0, u64::from_le_bytes);
        self.copies.note(&packet);
        let lies = self.nodes[node].lies;
        if lies == 0 || self.rng.u32(0..1000) >= lies {
            if lies > 0 && self.nodes[node].said.len() < 64 {
                self.nodes[node].said.push(packet.clone());
            }
            return self.send(packet);
        }
        let said = &self.nodes[node].said;
        let lie = match self.rng.u32(0..4) {
            0 if !said.is_empty() => said[self.rng.usize(0..said.len())].clone(),
            1 => Packet {
                data: packet.data.map(|_| self.rng.u64(..)),
                header: core::array::from_fn(|_| self.rng.u8(..)),
                ..packet
            },
            2 => Packet {
                target: packet.target + self.rng.u64(1..4),
                ..packet
            },
            _ => {
                // One field is changed: kind or reason, window, request, session, block, version.
                let mut header = packet.header;
                let offset = [0, 1, 2, 4, 5, 8, 16, 24, 25][self.rng.usize(0..9)];
                header[offset] = self.rng.u8(..).min(30);
                Packet { header, ..packet }
            }
        };
        self.send(lie);
    }

    /// The program of a client makes one request or two, and comes back soon.
    fn work(&mut self, node: usize, life: u64) {
        let (now, depth) = (self.now, self.depth);
        if now < self.works_until {
            for _ in 0..self.rng.u32(1..3) {
                let block = self.rng.u64(0..BLOCKS);
                let writes = self.rng.bool();
                let content = self.next_content;
                let client = self.client(node);
                let active = client.client.state() == ClientState::Active;
                if !active || client.requests.len() >= depth {
                    break;
                }
                match writes {
                    true => _ = client.write(now, block, content),
                    false => _ = client.read(now, block),
                }
                self.next_content += 1;
            }
            self.pump(node);
        }
        let pause = self.rng.u64(0..2 * MS);
        self.schedule(pause, Event::Works { node, life });
    }

    /// Lets so many nanoseconds pass.
    pub(crate) fn pass(&mut self, nanoseconds: u64) {
        let until = self.now + nanoseconds;
        let mut steps = 0u64;
        while self.step(until) {
            steps += 1;
            assert!(steps < 20_000_000, "time does not pass at {}", self.now);
        }
    }

    /// Lets time pass until a condition holds.
    ///
    /// # Panics
    /// If it does not within so many nanoseconds.
    pub(crate) fn pass_until(
        &mut self,
        limit: u64,
        what: &str,
        holds: impl Fn(&mut World) -> bool,
    ) {
        let until = self.now + limit;
        while !holds(self) {
            if self.now >= until {
                self.tell();
                panic!("{what}: not within {} ms", limit / MS);
            }
            self.pass((limit / 500).max(1));
        }
    }

    /// Prints the state of all nodes.
    fn tell(&self) {
        for node in &self.nodes {
            match &node.role {
                Role::Down => eprintln!("{:?}: down", node.address),
                Role::Server(it) => {
                    let (pages, attached) = (it.server.pages(), it.server.attached());
                    let counters = it.server.counters();
                    eprintln!(
                        "{:?}: {pages} pages, {attached} clients, {counters:?}",
                        node.address
                    );
                }
                Role::Client(it) => {
                    let (state, repair) = (it.client.state(), it.client.repair());
                    let counters = it.client.counters();
                    eprintln!("{:?}: {state:?}, {repair:?}, {counters:?}", node.address);
                    it.client
                        .servers()
                        .for_each(|server| eprintln!("    {server:?}"));
                }
            }
        }
    }

    /// The message of an earlier client of a node that asks a server for memory.
    pub(crate) fn attach_of_another_life(&mut self, client: usize, server: usize) -> Packet {
        let attach = Attach {
            kind: Kind::Attach as u8,
            client: self.rng.u64(1..).into(),
            volume: 7.into(),
            key: KEY.0,
            ..Attach::default()
        };
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(attach.as_bytes());
        Packet {
            from: address(client),
            to: address(server),
            header,
            target: 0,
            data: None,
        }
    }

    /// Makes a write besides those of the programs.
    pub(crate) fn write(&mut self, node: usize, block: u64) {
        self.next_content += 1;
        let (now, content) = (self.now, self.next_content);
        assert!(self.client(node).write(now, block, content));
        self.pump(node);
    }

    /// Makes a read besides those of the programs.
    pub(crate) fn read(&mut self, node: usize, block: u64) {
        let now = self.now;
        assert!(self.client(node).read(now, block));
        self.pump(node);
    }
}

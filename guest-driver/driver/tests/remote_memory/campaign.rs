//! Seeds: programs read and write while the wire is bad, servers and clients are killed, return,
//! leave, fall silent and lie. An oracle checks each read; at the end all replicas are there again.

use qnic_driver::remote_memory::{ClientState, Failure, ServerState};

use crate::nodes::ClientNode;
use crate::wire::{Quality, MS, US};
use crate::world::{Role, World, BLOCKS, LEASE, REQUEST_TIMEOUT, SERVER_TIMEOUT};

/// Which events may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Conditions {
    /// At most R − 1 servers at a time are lost, and the next only when all is repaired:
    /// no request may fail.
    Careful,
    /// All events: requests may fail, and pages be lost, but no read is wrong.
    Wild,
}

/// One run.
struct Run {
    world: World,
    conditions: Conditions,
    servers: Vec<usize>,
    clients: Vec<usize>,
    replicas: usize,
    /// Until when clients may not have noticed the last event.
    unnoticed_until: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let conditions = match seed % 2 {
            0 => Conditions::Careful,
            _ => Conditions::Wild,
        };
        let mut rng = fastrand::Rng::with_seed(!seed);
        let slow = rng.u32(0..4) == 0;
        let quality = Quality {
            lost: rng.u32(0..80),
            doubled: rng.u32(0..80),
            delay: match slow {
                true => (9 * MS, 11 * MS),
                false => (20 * US, rng.u64(30..400) * US),
            },
            late: rng.u32(0..30),
        };
        let servers = rng.usize(3..6);
        let clients = rng.usize(1..3);
        let replicas = rng.usize(1..4).min(servers - 1);
        let mut world = World::new(seed, servers + clients, quality);
        world.depth = rng.usize(1..12);
        if conditions == Conditions::Wild && rng.bool() {
            world.nodes[0].lies = rng.u32(1..300);
        }
        let servers: Vec<_> = (0..servers).collect();
        let clients: Vec<_> = (servers.len()..servers.len() + clients).collect();
        let mut run = Run {
            world,
            conditions,
            servers,
            clients,
            replicas,
            unnoticed_until: 0,
        };
        run.start();
        run
    }

    fn start(&mut self) {
        for server in self.servers.clone() {
            self.world.start_server(server);
        }
        for client in self.clients.clone() {
            self.start_client(client);
        }
        self.world.pass_until(8000 * MS, "attach", |world| {
            world.nodes.iter().all(|node| match &node.role {
                Role::Client(it) => it.client.state() == ClientState::Active,
                _ => true,
            })
        });
    }

    fn start_client(&mut self, node: usize) {
        let (servers, replicas) = (self.servers.clone(), self.replicas);
        let config = self.world.client_config(node as u64, replicas, &servers);
        self.world.start_client(node, config);
    }

    /// Returns true if every client has all replicas, and nothing to do.
    fn is_whole(world: &mut World) -> bool {
        world.nodes.iter().all(|node| match &node.role {
            Role::Client(it) => {
                let repair = it.client.repair();
                let servers = it.client.servers();
                let settled = |state| {
                    matches!(
                        state,
                        ServerState::Live | ServerState::Silent | ServerState::Detached
                    )
                };
                it.client.state() == ClientState::Active
                    && !repair.running
                    && repair.missing == 0
                    && servers.map(|server| server.state).all(settled)
            }
            _ => true,
        })
    }

    fn down(&self) -> Vec<usize> {
        let is_down = |node: &usize| matches!(self.world.nodes[*node].role, Role::Down);
        self.servers.iter().copied().filter(is_down).collect()
    }

    /// One event, bad or good.
    fn disturb(&mut self) {
        let wild = self.conditions == Conditions::Wild;
        self.world.wire.heal();
        if !wild && self.world.now < self.unnoticed_until {
            return;
        }
        self.unnoticed_until = self.world.now + 2 * SERVER_TIMEOUT;
        let down = self.down();
        let up: Vec<_> = self
            .servers
            .iter()
            .copied()
            .filter(|it| !down.contains(it))
            .collect();
        if !down.is_empty() && self.world.rng.bool() {
            let back = down[self.world.rng.usize(0..down.len())];
            return self.world.start_server(back);
        }
        if !wild && !Run::is_whole(&mut self.world) {
            return;
        }
        let spare = wild || up.len() > self.replicas;
        let Some(victim) = self.world.rng.choice(&up).copied() else {
            return;
        };
        match self.world.rng.u32(0..10) {
            0..=2 if spare && (wild || self.replicas > 1) => self.world.kill(victim),
            3 | 4 => {
                let now = self.world.now;
                self.world.server(victim).server.leave(now);
                self.world.pump(victim);
            }
            5 if wild => self.world.start_server(victim),
            6 if wild => {
                let client = *self.world.rng.choice(&self.clients).unwrap();
                self.start_client(client);
            }
            7 | 8 if spare => {
                let client = *self.world.rng.choice(&self.clients).unwrap();
                self.world.wire.cut(client as u16, victim as u16);
            }
            9 if wild => self.cut_client_off(),
            _ => {}
        }
    }

    /// Cuts a client off: no server reaches it, and it does not reach some. Its writes may be stored
    /// without its knowledge.
    fn cut_client_off(&mut self) {
        let client = *self.world.rng.choice(&self.clients).unwrap() as u16;
        for server in self.servers.clone() {
            match self.world.rng.u32(0..4) {
                0 => self.world.wire.cut(client, server as u16),
                _ => self.world.wire.cut_one_way(server as u16, client),
            }
        }
    }

    /// Switches off servers that have left.
    fn switch_off(&mut self) {
        for node in self.servers.clone() {
            if let Role::Server(it) = &self.world.nodes[node].role {
                if it.server.has_left() {
                    self.world.kill(node);
                }
            }
        }
    }

    fn work(&mut self) {
        let rounds = self.world.rng.u32(8..20);
        for _ in 0..rounds {
            self.disturb();
            let wild = self.conditions == Conditions::Wild;
            let longest = if wild { 2 * LEASE } else { 3 * SERVER_TIMEOUT };
            let span = match self.world.rng.bool() {
                true => self.world.rng.u64(0..longest),
                false => self.world.rng.u64(0..SERVER_TIMEOUT),
            };
            self.world.works_until = self.world.now + span;
            self.world.pass(span);
            self.switch_off();
        }
    }

    /// The wire is good and all servers are there: all replicas return.
    fn recover(&mut self) {
        self.world.wire.heal();
        self.world.works_until = 0;
        self.world.honest_from = self.world.now + REQUEST_TIMEOUT;
        for node in self.servers.clone() {
            let leaves = match &self.world.nodes[node].role {
                Role::Server(it) => it.server.has_left(),
                _ => true,
            };
            if self.world.nodes[node].lies > 0 {
                // A liar is honest again only when the last request that it has lied to has
                // ended.
                self.world.kill(node);
                self.world.pass(REQUEST_TIMEOUT);
                self.world.nodes[node].lies = 0;
                self.world.start_server(node);
            } else if leaves {
                self.world.start_server(node);
            }
        }
        self.world.pass(REQUEST_TIMEOUT + LEASE);
        for client in self.clients.clone() {
            let it = self.world.client(client);
            assert!(it.requests.is_empty(), "requests hang: {:?}", it.requests);
            assert!(
                it.longest <= REQUEST_TIMEOUT + 2 * MS,
                "{} ms",
                it.longest / MS
            );
            if it.client.state() != ClientState::Active {
                self.start_client(client);
            }
        }
        // A leaving server can leave now, and comes back.
        self.world.pass_until(20_000 * MS, "leave", |world| {
            let leaves = |role: &Role| match role {
                Role::Server(it) => it.server.is_leaving() && !it.server.has_left(),
                _ => false,
            };
            !world.nodes.iter().any(|node| leaves(&node.role))
        });
        self.switch_off();
        for node in self.down() {
            self.world.start_server(node);
        }
        self.wait_until_whole();
    }

    /// Reads everything; then loses R − 1 servers at a time, and still reads everything.
    fn verify(&mut self) {
        for client in self.clients.clone() {
            self.read_all(client);
            let it = self.world.client(client);
            if self.conditions == Conditions::Careful {
                assert_eq!(it.failures, [], "client {client}");
            }
            it.failures.clear();
            // Lost blocks are written again, and from now on no page may be lost.
            self.rewrite(client);
        }
        let victims = self.servers.clone();
        for victims in victims.chunks((self.replicas - 1).max(1)) {
            self.wait_until_whole();
            if self.replicas > 1 {
                victims.iter().for_each(|victim| self.world.kill(*victim));
            }
            for client in self.clients.clone() {
                self.read_all(client);
                let failures = &self.world.client(client).failures;
                assert_eq!(*failures, [], "client {client}, replicas {}", self.replicas);
            }
            // Clients notice, and copy to the servers that are left.
            self.world.pass(4 * SERVER_TIMEOUT);
            for node in self.down() {
                self.world.start_server(node);
            }
        }
    }

    fn read_all(&mut self, client: usize) {
        for block in 0..BLOCKS {
            self.world.read(client, block);
            let free = |world: &mut World| world.client(client).requests.len() < 8;
            self.world.pass_until(2 * REQUEST_TIMEOUT, "read", free);
        }
        let idle = |world: &mut World| world.client(client).requests.is_empty();
        self.world.pass_until(2 * REQUEST_TIMEOUT, "reads", idle);
    }

    /// Waits until all servers are there and have their pages.
    fn wait_until_whole(&mut self) {
        self.world.pass_until(20_000 * MS, "repair", |world| {
            let live =
                |it: &ClientNode| it.client.servers().all(|it| it.state == ServerState::Live);
            let all_live = world.nodes.iter().all(|node| match &node.role {
                Role::Client(it) => live(it),
                _ => true,
            });
            all_live && Run::is_whole(world)
        });
    }

    fn rewrite(&mut self, client: usize) {
        for block in 0..BLOCKS {
            self.world.write(client, block);
            let idle = |world: &mut World| world.client(client).requests.len() < 8;
            self.world.pass_until(2 * REQUEST_TIMEOUT, "write", idle);
        }
        let idle = |world: &mut World| world.client(client).requests.is_empty();
        self.world.pass_until(2 * REQUEST_TIMEOUT, "writes", idle);
        let it = self.world.client(client);
        assert_eq!(it.failures, [] as [Failure; 0]);
        assert!((0..BLOCKS).all(|block| it.oracle.is_written(block)));
    }

    /// All detach; every page is back in its pool.
    fn end(&mut self) {
        for client in self.clients.clone() {
            let now = self.world.now;
            self.world.client(client).client.detach(now);
            self.world.pump(client);
        }
        self.world.pass(LEASE + REQUEST_TIMEOUT);
        for node in 0..self.world.nodes.len() {
            match &self.world.nodes[node].role {
                Role::Down => {}
                Role::Client(it) => {
                    assert_eq!(it.client.state(), ClientState::Detached);
                    it.assert_quiet();
                }
                Role::Server(it) => {
                    assert_eq!((it.server.pages(), it.server.attached()), (0, 0));
                    it.assert_quiet();
                }
            }
        }
    }
}

/// Runs one seed.
pub(crate) fn run(seed: u64) {
    let mut run = Run::new(seed);
    run.work();
    if run.conditions == Conditions::Careful {
        for client in run.clients.clone() {
            assert_eq!(run.world.client(client).failures, [], "client {client}");
        }
    }
    run.recover();
    run.verify();
    run.end();
}

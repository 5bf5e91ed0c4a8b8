//! Servers and one client, for the stories.

use qnic_abi::remote_memory::Reason;
use qnic_abi::Secret;
use qnic_driver::remote_memory::{ClientConfig, ClientState, Failure, ServerState};

use crate::wire::{Quality, MS};
use crate::world::{World, BLOCKS};

/// The client of the cluster is the last node.
pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) client: usize,
}

impl Cluster {
    /// This many servers, and a client that has attached them.
    pub(crate) fn new(servers: usize, replicas: usize) -> Self {
        let mut cluster = Cluster::detached(servers);
        cluster.attach(replicas);
        cluster
    }

    /// This many servers, and no client yet.
    pub(crate) fn detached(servers: usize) -> Self {
        let mut world = World::new(1, servers + 2, Quality::LOSSLESS);
        (0..servers).for_each(|server| world.start_server(server));
        Cluster {
            world,
            client: servers,
        }
    }

    pub(crate) fn attach(&mut self, replicas: usize) {
        self.attach_with(replicas, |_| {});
    }

    /// The same with another configuration of the client.
    pub(crate) fn attach_with(&mut self, replicas: usize, change: impl Fn(&mut ClientConfig)) {
        self.begin_to_attach_with(replicas, change);
        self.wait("attach", |cluster| {
            cluster.client_state(cluster.client) == ClientState::Active
        });
    }

    pub(crate) fn begin_to_attach(&mut self, replicas: usize) {
        self.begin_to_attach_with(replicas, |_| {});
    }

    fn begin_to_attach_with(&mut self, replicas: usize, change: impl Fn(&mut ClientConfig)) {
        let servers: Vec<_> = (0..self.client).collect();
        let mut config = self.world.client_config(7, replicas, &servers);
        change(&mut config);
        self.world.start_client(self.client, config);
    }

    /// From now on this server, new or not, refuses clients with this reason.
    pub(crate) fn refuses(&mut self, server: usize, reason: Reason) {
        let mut config = self.world.server_config();
        match reason {
            Reason::WrongKey => config.key = Secret([1; 16]),
            Reason::TooManyClients => config.clients = 1,
            _ => {}
        }
        self.world.start_server_with(server, config);
        match reason {
            Reason::TooManyClients => {
                let other = self.world.client_config(8, 1, &[server]);
                self.world.start_client(self.client, other);
                self.wait("the other client", |cluster| {
                    cluster.world.server(server).server.attached() == 1
                });
            }
            Reason::Leaving => {
                let now = self.world.now;
                self.world.server(server).server.leave(now);
            }
            _ => {}
        }
    }

    pub(crate) fn client_state(&mut self, node: usize) -> ClientState {
        self.world.client(node).client.state()
    }

    /// Lets time pass until a condition holds.
    pub(crate) fn wait(&mut self, what: &str, holds: impl Fn(&mut Cluster) -> bool) {
        for _ in 0..10_000 {
            if holds(self) {
                return;
            }
            self.world.pass(MS);
        }
        panic!("{what} does not happen");
    }

    pub(crate) fn is_idle(&mut self) -> bool {
        self.world.client(self.client).requests.is_empty()
    }

    pub(crate) fn write_all(&mut self) {
        self.each(|cluster, block| cluster.world.write(cluster.client, block));
    }

    pub(crate) fn read_all(&mut self) {
        self.each(|cluster, block| cluster.world.read(cluster.client, block));
    }

    pub(crate) fn each(&mut self, request: impl Fn(&mut Cluster, u64)) {
        for block in 0..BLOCKS {
            request(self, block);
            self.wait("the requests", Cluster::is_idle);
        }
    }

    pub(crate) fn failures(&mut self) -> Vec<Failure> {
        core::mem::take(&mut self.world.client(self.client).failures)
    }

    pub(crate) fn server_pages(&mut self, server: usize) -> usize {
        self.world.server(server).server.pages()
    }

    pub(crate) fn server_state(&mut self, server: usize) -> ServerState {
        let client = self.client;
        let mut servers = self.world.client(client).client.servers();
        servers.nth(server).unwrap().state
    }

    pub(crate) fn is_repaired(&mut self) -> bool {
        let client = self.client;
        let repair = self.world.client(client).client.repair();
        !repair.running && repair.missing == 0
    }
}

//! Remote memory on the real NIC: driver core and device process, without a VM (H9). Each test has
//! a device of its own in this process; its last node is the client.

mod cluster;

use std::collections::HashMap;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use qnic_abi::counters::CounterSource;
use qnic_abi::remote_memory::Reason;
use qnic_abi::uapi;
use qnic_abi::{NodeId, Secret, PAGE_SIZE};
use qnic_device::NetworkSettings;
use qnic_host::datagram::{Address, Buffer};
use qnic_host::remote_memory::{
    AttachError, AttachRefusal, ClientConfig, ClientState, Failure, Limits, Memory, ServerConfig,
    ServerState, Volume, VolumeUser,
};
use qnic_host::{DeviceMemory, HostNode, HostPlatform};

use cluster::{bad_links, Cluster};

const SOON: Duration = Duration::from_secs(60);
const MS: u64 = 1_000_000;
const SERVER_PORT: u16 = 40;
const CLIENT_PORT: u16 = 41;
const KEY: Secret = Secret(*b"0123456789abcdef");
/// Blocks of the volume.
const BLOCKS: u64 = 256;

/// Servers, and a client on the last node.
struct Nodes(Cluster);

impl Nodes {
    fn new(servers: u16, network: Option<NetworkSettings>) -> Self {
        Nodes(Cluster::new(servers + 1, network))
    }

    fn serve(&self, node: usize, incarnation: u64) -> Memory<HostPlatform> {
        let config = ServerConfig {
            incarnation,
            key: KEY,
            pages: 2 * BLOCKS as usize,
            quota: 2 * BLOCKS as usize,
            clients: 4,
            window: 32,
            lease: 3000 * MS,
            leave_interval: 50 * MS,
        };
        self.0.nodes[node]
            .serve_memory(SERVER_PORT, config)
            .unwrap()
    }

    fn config(&self, replicas: usize) -> ClientConfig {
        let servers = self.0.nodes.len() as u16 - 1;
        let address = |node| Address {
            node: NodeId(node),
            port: SERVER_PORT,
        };
        ClientConfig {
            volume: 7,
            client: 99,
            key: KEY,
            blocks: BLOCKS,
            replicas,
            thin: false,
            servers: (0..servers).map(address).collect(),
            requests: 64,
            copies: 8,
            limits: Limits {
                request_timeout: 5000 * MS,
                server_timeout: 500 * MS,
                attach_timeout: 3000 * MS,
                renew_interval: 100 * MS,
                ..Limits::default()
            },
        }
    }

    fn attach(&self, config: ClientConfig) -> Result<Disk, AttachError> {
        let node = self.0.nodes.last().unwrap();
        let (sender, ended) = channel();
        let user = Arc::new(User(Mutex::new(sender)));
        let volume = node.attach_volume(CLIENT_PORT, config, user)?;
        Ok(Disk {
            volume,
            ended,
            node: node.clone(),
            contents: HashMap::new(),
            round: 0,
        })
    }
}

type Ended = (u64, Result<(), Failure>, Buffer<HostPlatform>);

struct User(Mutex<Sender<Ended>>);

impl VolumeUser<HostPlatform> for User {
    fn done(&self, token: u64, result: Result<(), Failure>, page: Buffer<HostPlatform>) {
        // A test that has ended listens no more.
        let _ = self.0.lock().unwrap().send((token, result, page));
    }
}

/// A volume, and its expected contents.
struct Disk {
    volume: Volume<HostPlatform>,
    ended: Receiver<Ended>,
    node: HostNode,
    /// The round in which each block was written last.
    contents: HashMap<u64, u64>,
    round: u64,
}

fn bytes(block: u64, round: u64) -> Vec<u8> {
    let words = 0..PAGE_SIZE as u64 / 8;
    let word = |index| block << 40 ^ round << 20 ^ index;
    words.flat_map(|index| word(index).to_le_bytes()).collect()
}

impl Disk {
    fn page(&self, content: &[u8]) -> Buffer<HostPlatform> {
        let page = self.node.new_page().unwrap();
        page.write_bytes(0, content);
        Buffer::new(page)
    }

    fn end(&self) -> Ended {
        self.ended.recv_timeout(SOON).expect("a request hangs")
    }

    /// Writes all blocks, many at a time.
    fn write_all(&mut self) {
        self.round += 1;
        let round = self.round;
        self.each(|disk, block| {
            let page = disk.page(&bytes(block, round));
            disk.volume.write(block, block, page).is_ok()
        });
        self.contents
            .extend((0..BLOCKS).map(|block| (block, round)));
    }

    /// Reads all blocks, and compares.
    fn verify_all(&mut self) {
        let ended = self.each(|disk, block| {
            let page = disk.page(&[0xaa; PAGE_SIZE]);
            disk.volume.read(block, block, page).is_ok()
        });
        for (block, page) in ended {
            let mut there = vec![0; PAGE_SIZE];
            page.memory().read_bytes(0, &mut there);
            let expected = match self.contents.get(&block) {
                Some(round) => bytes(block, *round),
                None => vec![0; PAGE_SIZE],
            };
            assert!(there == expected, "block {block}");
        }
    }

    fn each(&self, begin: impl Fn(&Disk, u64) -> bool) -> Vec<(u64, Buffer<HostPlatform>)> {
        let mut ended = Vec::new();
        let mut end = |(block, result, page): Ended| {
            assert_eq!(result, Ok(()), "block {block}");
            ended.push((block, page));
        };
        for (under_way, block) in (0..BLOCKS).enumerate() {
            assert!(begin(self, block));
            if under_way >= 31 {
                end(self.end());
            }
        }
        (0..31).for_each(|_| end(self.end()));
        ended
    }

    fn server_state(&self, server: usize) -> ServerState {
        self.volume.server(server).unwrap().state
    }

    fn wait(&self, what: &str, holds: impl Fn(&Disk) -> bool) {
        let limit = Instant::now() + SOON;
        while !holds(self) {
            assert!(Instant::now() < limit, "{what}: {:?}", self.volume.status());
            std::thread::yield_now();
        }
    }

    fn wait_until_whole(&self) {
        self.wait("repair", |disk| {
            let repair = disk.volume.status().repair;
            !repair.running && repair.missing == 0
        });
    }
}

#[test]
fn attaching_ends_when_the_last_server_has_answered() {
    let cluster = Nodes::new(2, None);
    let _servers = [cluster.serve(0, 1), cluster.serve(1, 2)];
    let config = cluster.config(2);
    let limit = Duration::from_nanos(config.limits.attach_timeout);
    let before = Instant::now();
    let disk = cluster.attach(config).unwrap();
    let took = before.elapsed();
    assert!(took < limit, "{took:?}: {:?}", disk.volume.status());
}

#[test]
fn pages_go_out_and_come_back_without_a_copy() {
    let cluster = Nodes::new(3, None);
    let servers = [0, 1, 2].map(|node| cluster.serve(node, node as u64));
    let mut disk = cluster.attach(cluster.config(2)).unwrap();
    disk.verify_all();
    for _ in 0..5 {
        disk.write_all();
        disk.verify_all();
    }
    let status = disk.volume.status();
    assert_eq!(status.counters.failed, 0);
    assert_eq!(status.pages_copied, 0);
    let counters = uapi::Counters::read(CounterSource::Datagrams, |call| disk.node.counters(call));
    assert_eq!(counters.unwrap()["bytes_copied"], 0);
    let used: usize = servers.iter().map(|it| it.status().used).sum();
    assert_eq!(used as u64, 2 * BLOCKS);
    drop(disk);
    for server in &servers {
        assert_eq!((server.status().used, server.status().clients), (0, 0));
    }
}

/// Servers are killed one after the other and come back empty, on links that lose, double and
/// reorder: no page is lost.
#[test]
fn servers_are_killed_in_turn_on_bad_links() {
    let cluster = Nodes::new(3, bad_links(5.0, 50_000));
    let mut servers: Vec<_> = (0..3)
        .map(|node| cluster.serve(node, node as u64))
        .collect();
    let mut disk = cluster.attach(cluster.config(2)).unwrap();
    disk.write_all();
    for victim in 0..3 {
        // The servers behind it move up; the one that comes back is the last.
        drop(servers.remove(0));
        disk.verify_all();
        disk.write_all();
        disk.wait("silence", |disk| {
            disk.server_state(victim) != ServerState::Live
        });
        disk.wait_until_whole();
        servers.push(cluster.serve(victim, 100 + victim as u64));
        disk.wait("return", |disk| {
            disk.server_state(victim) == ServerState::Live
        });
        disk.verify_all();
    }
    let counters = disk.volume.status().counters;
    assert!(
        counters.retransmissions > 0 && counters.copied > 0,
        "{counters:?}"
    );
    assert_eq!(counters.failed, 0);
}

#[test]
fn a_server_leaves_in_order() {
    let cluster = Nodes::new(2, None);
    let servers = [0, 1].map(|node| cluster.serve(node, node as u64));
    let mut disk = cluster.attach(cluster.config(1)).unwrap();
    disk.write_all();
    assert!(servers[0].status().used > 0);
    assert!(
        servers[0].leave(SOON.as_nanos() as u64),
        "{:?}",
        servers[0].status()
    );
    assert_eq!(servers[0].status().used, 0);
    let [first, _second] = servers;
    drop(first);
    disk.verify_all();
    assert_eq!(disk.volume.status().counters.failed, 0);
}

/// The last server is killed: errors in bounded time, no hang, and a server that returns empty is not
/// taken for a holder.
#[test]
fn without_servers_there_are_errors_in_time() {
    let cluster = Nodes::new(1, None);
    let server = cluster.serve(0, 1);
    let mut disk = cluster.attach(cluster.config(1)).unwrap();
    disk.write_all();
    drop(server);
    let begin = Instant::now();
    for block in 0..8 {
        disk.volume.read(block, block, disk.page(&[])).unwrap();
        disk.volume.write(block, block + 8, disk.page(&[])).unwrap();
    }
    for _ in 0..16 {
        assert_eq!(disk.end().1, Err(Failure::TimedOut));
    }
    assert!(begin.elapsed() < Duration::from_secs(8));
    let _server = cluster.serve(0, 2);
    disk.wait("return", |disk| disk.server_state(0) == ServerState::Live);
    disk.volume.read(20, 20, disk.page(&[])).unwrap();
    assert_eq!(disk.end().1, Err(Failure::Lost));
    disk.write_all();
    disk.verify_all();
}

#[test]
fn without_key_or_server_attaching_fails_with_the_reason() {
    let cluster = Nodes::new(1, None);
    let config = cluster.config(1);
    let nobody = cluster.attach(config.clone()).err().unwrap();
    assert_eq!(nobody, AttachError::Refused(None));
    let _server = cluster.serve(0, 1);
    let other = ClientConfig {
        key: Secret([9; 16]),
        ..config
    };
    let refused = cluster.attach(other).err().unwrap();
    let server = cluster.config(1).servers[0];
    let reason = Reason::WrongKey;
    let refusal = AttachRefusal {
        server,
        reason,
        room: 0,
    };
    assert_eq!(refused, AttachError::Refused(Some(refusal)));
}

/// The device ends while requests are under way: each ends with an error and its page.
#[test]
fn the_end_of_the_device_ends_all_requests() {
    let mut cluster = Nodes::new(2, None);
    let _servers = [0, 1].map(|node| cluster.serve(node, node as u64));
    let mut disk = cluster.attach(cluster.config(2)).unwrap();
    disk.write_all();
    cluster.0.device = None;
    let mut begun = 0;
    for block in 0..16 {
        begun += u32::from(disk.volume.read(block, block, disk.page(&[])).is_ok());
        begun += u32::from(disk.volume.write(block, block, disk.page(&[])).is_ok());
    }
    for _ in 0..begun {
        let (_, result, page) = disk.end();
        assert!(result.is_err());
        drop(page);
    }
    disk.wait("the end", |disk| {
        disk.volume.status().state == ClientState::Detached
    });
    assert!(disk.volume.read(0, 0, disk.page(&[])).is_err());
}

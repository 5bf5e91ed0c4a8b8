//! Remote memory without virtual machines (H9): a node that gives memory, and a node whose volume
//! is in it. Both run until they are killed; an error ends them.

use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use qnic_abi::remote_memory::{FIRST_CLIENT_PORT, SERVER_PORT};
use qnic_abi::{NodeId, Secret, PAGE_SIZE};
use qnic_host::datagram::{Address, Buffer};
use qnic_host::remote_memory::{
    ClientConfig, Failure, Limits, ServerConfig, ServerState, Volume, VolumeUser,
};
use qnic_host::{DeviceMemory, HostNode, HostPlatform};

use qnic_apps::demo::node::{say, say_line};

/// Key of servers and clients alike.
const KEY: Secret = Secret(*b"memory of qnic-a");
/// Memory of a node beyond the pages that it gives.
const ARENA: usize = 16 << 20;
/// Requests under way.
const DEPTH: usize = 64;
/// Requests of a round.
const ROUND: u64 = 2000;
/// Longest time for a request to end.
const LIMIT: Duration = Duration::from_secs(60);
const MS: u64 = 1_000_000;

#[derive(Args)]
pub(crate) struct ServerOptions {
    /// Pages that it gives
    #[arg(long, default_value_t = 8192)]
    pages: usize,
}

#[derive(Args)]
pub(crate) struct ClientOptions {
    /// Numbers of the nodes that give memory, such as 1,2
    #[arg(long, value_name = "NODE,…", value_delimiter = ',')]
    servers: Vec<u16>,
    /// On how many of them each block is kept
    #[arg(long, default_value_t = 2)]
    replicas: usize,
    /// Blocks of the volume
    #[arg(long, default_value_t = 4096)]
    blocks: u64,
}

fn connect(arena: usize) -> Result<HostNode> {
    let socket = std::env::var_os("QNIC_HOST_SOCKET").context("it runs in host mode only")?;
    HostNode::connect(socket, arena).context("connect to the device process")
}

/// Gives memory until it is killed.
pub(crate) fn serve(options: &ServerOptions) -> Result<()> {
    let node = connect(ARENA + options.pages * PAGE_SIZE)?;
    let config = ServerConfig {
        incarnation: fastrand::u64(..),
        key: KEY,
        pages: options.pages,
        quota: options.pages,
        clients: 4,
        window: 64,
        lease: 5000 * MS,
        leave_interval: 100 * MS,
    };
    let _memory = node.serve_memory(SERVER_PORT, config)?;
    say("serving", options.pages)?;
    loop {
        std::thread::park();
    }
}

type Ended = (u64, Result<(), Failure>, Buffer<HostPlatform>);

struct User(Mutex<Sender<Ended>>);

impl VolumeUser<HostPlatform> for User {
    fn done(&self, token: u64, result: Result<(), Failure>, page: Buffer<HostPlatform>) {
        if let Ok(sender) = self.0.lock() {
            // The receiver is gone when the program ends.
            let _ = sender.send((token, result, page));
        }
    }
}

/// A volume, and what is in it.
struct Disk {
    volume: Volume<HostPlatform>,
    ended: Receiver<Ended>,
    /// Pages that no request has.
    pages: Vec<Buffer<HostPlatform>>,
    /// How often each block was written.
    writes: Vec<u64>,
    /// The request of each block, if one is under way: does it write?
    under_way: Vec<Option<bool>>,
}

/// Writes and reads blocks at random, and compares, until it is killed.
pub(crate) fn verify(options: &ClientOptions) -> Result<()> {
    let node = connect(ARENA)?;
    let address = |node: &u16| Address {
        node: NodeId(*node),
        port: SERVER_PORT,
    };
    let config = ClientConfig {
        volume: 1,
        client: fastrand::u64(1..),
        key: KEY,
        blocks: options.blocks,
        replicas: options.replicas,
        thin: false,
        servers: options.servers.iter().map(address).collect(),
        requests: DEPTH,
        copies: 8,
        limits: Limits {
            server_timeout: 1000 * MS,
            renew_interval: 200 * MS,
            ..Limits::default()
        },
    };
    let (sender, ended) = channel();
    let user = Arc::new(User(Mutex::new(sender)));
    let volume = node.attach_volume(FIRST_CLIENT_PORT, config, user)?;
    let pages = (0..DEPTH).map(|_| Ok(Buffer::new(node.new_page()?)));
    let mut disk = Disk {
        volume,
        ended,
        pages: pages.collect::<Result<_>>()?,
        writes: vec![0; options.blocks as usize],
        under_way: vec![None; options.blocks as usize],
    };
    say("attached", options.blocks)?;
    for round in 1u64.. {
        disk.round()?;
        let status = disk.volume.status();
        let servers = (0..options.servers.len()).filter_map(|index| disk.volume.server(index));
        let live = servers.filter(|server| server.state == ServerState::Live);
        let counters = status.counters;
        let whole = !status.repair.running && status.repair.missing == 0;
        say_line(&serde_json::json!({
            "round": round,
            "live": live.count(),
            "whole": whole,
            "copied": counters.copied,
            "retransmissions": counters.retransmissions,
            "copied_pages": status.pages_copied,
        }))?;
    }
    Ok(())
}

impl Disk {
    /// So many requests, each of a block that has none.
    fn round(&mut self) -> Result<()> {
        for _ in 0..ROUND {
            let page = match self.pages.pop() {
                Some(page) => page,
                None => self.end()?,
            };
            let block = fastrand::usize(..self.writes.len());
            if self.under_way[block].is_some() {
                self.pages.push(page);
                continue;
            }
            let writes = fastrand::bool();
            self.begin(block, writes, page)?;
        }
        while self.pages.len() < DEPTH {
            let page = self.end()?;
            self.pages.push(page);
        }
        Ok(())
    }

    fn begin(&mut self, block: usize, writes: bool, page: Buffer<HostPlatform>) -> Result<()> {
        let token = block as u64;
        self.under_way[block] = Some(writes);
        let taken = if writes {
            self.writes[block] += 1;
            page.memory()
                .write_bytes(0, &content(block, self.writes[block]));
            self.volume.write(token, token, page)
        } else {
            self.volume.read(token, token, page)
        };
        taken
            .map_err(|(_, refusal)| refusal)
            .context("a request is not taken")
    }

    /// Waits for the end of a request; what was read has to be what was written.
    fn end(&mut self) -> Result<Buffer<HostPlatform>> {
        let ended = self.ended.recv_timeout(LIMIT).context("a request hangs")?;
        let (block, result, page) = (ended.0 as usize, ended.1, ended.2);
        result.with_context(|| format!("block {block}"))?;
        let Some(writes) = self.under_way[block].take() else {
            bail!("block {block} ends twice");
        };
        if !writes {
            let mut there = [0; PAGE_SIZE];
            page.memory().read_bytes(0, &mut there);
            let is_right = there == content(block, self.writes[block]);
            ensure!(is_right, "block {block} is not what was written");
        }
        Ok(page)
    }
}

/// What is in a block after so many writes.
fn content(block: usize, writes: u64) -> [u8; PAGE_SIZE] {
    let mut content = [0; PAGE_SIZE];
    if writes > 0 {
        let mut rng = fastrand::Rng::with_seed((block as u64) << 32 | writes);
        rng.fill(&mut content);
    }
    content
}

//! The configuration of a client.

use alloc::vec::Vec;

use qnic_abi::remote_memory::MAX_BLOCK;
use qnic_abi::Secret;
use qnic_shared::timing::RetransmitLimits;

use super::server_set::MAX_SERVERS;
use super::slots::{MAX_LEGS, MAX_SLOTS};
use crate::datagram::Address;
use crate::platform::NoMemory;

/// Highest replication degree.
pub const MAX_REPLICAS: usize = MAX_LEGS / 2;

/// Times, all in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// After this time a request has ended, with an error if there is no other result.
    pub request_timeout: u64,
    /// A server that has not answered for this long is silent, and others replace it.
    pub server_timeout: u64,
    /// Attaching has succeeded by then, or fails. It fails earlier as soon as so many servers
    /// have refused that too few are left.
    pub attach_timeout: u64,
    /// How often a server is asked whether it is alive.
    pub renew_interval: u64,
    /// When a message is sent again only because no answer comes. The
    /// timer runs for the oldest one, so `floor_oldest` counts.
    pub retransmit: RetransmitLimits,
    /// How long messages may wait in the queue of a server; beyond that the client waits itself.
    pub queue_delay: u64,
}

impl Default for Limits {
    fn default() -> Self {
        const MS: u64 = 1_000_000;
        Limits {
            request_timeout: 20_000 * MS,
            server_timeout: 2_000 * MS,
            attach_timeout: 30_000 * MS,
            renew_interval: 500 * MS,
            retransmit: RetransmitLimits {
                initial: 100 * MS,
                // The time that an emulated guest may need to wake up.
                floor: 10 * MS,
                floor_oldest: 10 * MS,
                ceiling: 400 * MS,
                ack_delay: 4 * MS,
            },
            queue_delay: 10 * MS,
        }
    }
}

/// The parameters of a client.
#[derive(Debug, Clone)]
pub struct Config {
    /// Number of the volume.
    pub volume: u64,
    /// Random number of this life of the client, not zero.
    pub client: u64,
    /// The key that the servers require.
    pub key: Secret,
    /// Blocks of the volume, of a page each.
    pub blocks: u64,
    /// Replicas of each block, 1 to [`MAX_REPLICAS`].
    pub replicas: usize,
    /// Reserve nothing: the servers may hold less than all blocks with their replicas.
    pub thin: bool,
    /// The servers; those beyond `replicas` share the load, and replace others.
    pub servers: Vec<Address>,
    /// Requests that can be under way.
    pub requests: usize,
    /// Copies that can be under way besides, at least 1.
    pub copies: usize,
    /// Times.
    pub limits: Limits,
}

/// Which parameter is wrong, or what is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The number of blocks.
    #[error("a volume has 1 to {} blocks", MAX_BLOCK + 1)]
    Blocks,
    /// The replication degree.
    #[error("there are 1 to {MAX_REPLICAS} replicas, and at least as many servers")]
    Replicas,
    /// The list of servers.
    #[error("there are at most {MAX_SERVERS} servers, and each is named once")]
    Servers,
    /// Numbers of requests.
    #[error("there are 1 to {MAX_SLOTS} requests and copies")]
    Requests,
    /// The number of this life.
    #[error("the number of the client is zero")]
    Client,
    /// No memory.
    #[error("out of memory")]
    NoMemory,
}

impl From<NoMemory> for ConfigError {
    fn from(_: NoMemory) -> Self {
        ConfigError::NoMemory
    }
}

impl Config {
    /// Checks the configuration.
    ///
    /// # Errors
    /// The first wrong parameter.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let servers = &self.servers;
        let twice = |index: usize| servers[..index].contains(&servers[index]);
        if self.blocks == 0 || self.blocks > MAX_BLOCK + 1 {
            Err(ConfigError::Blocks)
        } else if servers.len() > MAX_SERVERS || (0..servers.len()).any(twice) {
            Err(ConfigError::Servers)
        } else if self.replicas == 0 || self.replicas > MAX_REPLICAS.min(servers.len()) {
            Err(ConfigError::Replicas)
        } else if self.requests == 0
            || self.copies == 0
            || self.requests.saturating_add(self.copies) > MAX_SLOTS
        {
            Err(ConfigError::Requests)
        } else if self.client == 0 {
            Err(ConfigError::Client)
        } else {
            Ok(())
        }
    }
}
